# Flags for every target of this project: warnings are errors, sanitizers by VARVE_SANITIZE.
add_compile_options(-Wall -Wextra -Wshadow -Werror $<$<COMPILE_LANG_AND_ID:CXX,Clang>:-Wthread-safety>)
# gcc drops the stores that fill an AMX tile configuration, and warns about its own intrinsics.
add_compile_options($<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized> $<$<CXX_COMPILER_ID:GNU>:-Wno-psabi>)
if(VARVE_SANITIZE)
  add_compile_options(-fsanitize=${VARVE_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all -g)
  add_link_options(-fsanitize=${VARVE_SANITIZE})
endif()
