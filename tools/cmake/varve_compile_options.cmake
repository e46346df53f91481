# Flags for every target of this project: warnings are errors, sanitizers by VARVE_SANITIZE.
add_compile_options(-Wall -Wextra -Wshadow -Werror
                    $<$<COMPILE_LANG_AND_ID:CXX,Clang>:-Wthread-safety>)
# gcc 12 takes the deliberately undefined registers of its own intrinsics for mistakes, and tells
# about an ABI change of 2015 whenever a vector is passed by value.
add_compile_options("$<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized;-Wno-psabi>")

if(VARVE_SANITIZE)
  add_compile_options(-fsanitize=${VARVE_SANITIZE} -fno-sanitize-recover=all
                      -fno-omit-frame-pointer -g)
  add_compile_definitions(_GLIBCXX_ASSERTIONS)
  add_link_options(-fsanitize=${VARVE_SANITIZE})
endif()

if(VARVE_FUZZ)
  if(NOT CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
    message(FATAL_ERROR "VARVE_FUZZ needs clang, found ${CMAKE_CXX_COMPILER_ID}: use preset dev")
  endif()
  # Coverage in every library, so that the fuzzer sees where its input leads.
  add_compile_options(-fsanitize=fuzzer-no-link)
  add_link_options(-fsanitize=fuzzer-no-link)
  # For plugins, which no fuzzer loads: coverage brings what their file may not have (MRI-L002, MRI-L009).
  set(VARVE_NO_COVERAGE -fno-sanitize=fuzzer-no-link)
endif()
