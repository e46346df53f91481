# varve_fuzz(NAME fuzz_gguf SOURCES gguf_fuzz.cpp LIBS … [CORPUS folder])
# One libFuzzer program and one ctest entry, label fuzz, that runs it for FUZZ_SECONDS (default 5)
# from the seeds in CORPUS. An input that crashes it, takes more than 5 seconds or more than 2 GiB
# fails and is kept in the build folder.
function(varve_fuzz)
  cmake_parse_arguments(F "" "NAME;CORPUS" "SOURCES;LIBS" ${ARGN})
  add_executable(${F_NAME} ${F_SOURCES})
  target_include_directories(${F_NAME} PRIVATE ${CMAKE_SOURCE_DIR})
  target_link_libraries(${F_NAME} PRIVATE ${F_LIBS})
  target_link_options(${F_NAME} PRIVATE -fsanitize=fuzzer)
  # Found inputs go to the first folder, in the build tree; the seeds stay as they are.
  set(grown ${CMAKE_CURRENT_BINARY_DIR}/${F_NAME}_corpus)
  file(MAKE_DIRECTORY ${grown})
  set(seeds "")
  if(F_CORPUS)
    get_filename_component(seeds ${F_CORPUS} ABSOLUTE)
  endif()
  # The shell reads FUZZ_SECONDS when the test runs.
  add_test(NAME ${F_NAME}
           COMMAND sh -c "exec \"$@\" -max_total_time=\${FUZZ_SECONDS:-5}" fuzz
                   $<TARGET_FILE:${F_NAME}> ${grown} ${seeds} -timeout=5 -rss_limit_mb=2048
                   -print_final_stats=1 -artifact_prefix=${CMAKE_CURRENT_BINARY_DIR}/)
  set_tests_properties(${F_NAME} PROPERTIES LABELS fuzz TIMEOUT 900)
endfunction()
