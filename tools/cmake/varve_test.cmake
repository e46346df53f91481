# varve_test(NAME unit_core_config SOURCES a_test.cpp … LIBS … LABEL unit [TIMEOUT s])
# One GoogleTest binary, one ctest entry; LABEL is unit, contract, numeric, e2e, package or tidy.
function(varve_test)
  cmake_parse_arguments(T "" "NAME;LABEL;TIMEOUT" "SOURCES;LIBS;ENV" ${ARGN})
  add_executable(${T_NAME} ${T_SOURCES})
  target_link_libraries(${T_NAME} PRIVATE ${T_LIBS} GTest::gmock GTest::gtest_main)
  target_include_directories(${T_NAME} PRIVATE ${CMAKE_SOURCE_DIR})
  add_test(NAME ${T_NAME} COMMAND ${T_NAME})
  if(NOT T_TIMEOUT)
    set(T_TIMEOUT 300)
  endif()
  set_tests_properties(${T_NAME} PROPERTIES LABELS "${T_LABEL}" TIMEOUT ${T_TIMEOUT} ENVIRONMENT "${T_ENV}")
endfunction()

# varve_isolated_plugins(TARGET): a test that runs plugins of the tree in processes of their own. It has them as PLUGINS
# ("kind:name,…") in PLUGIN_DIRECTORY; programs in bin/ find mri-worker beside themselves.
function(varve_isolated_plugins target)
  set(plugins batching:fcfs batching:router kv_tier:age kv_tier:full quantizer:bf16 quantizer:int8 summary:clusters)
  string(REPLACE ":" "_" targets "${plugins}")
  add_dependencies(${target} mri-worker ${targets})
  list(JOIN plugins "," joined)
  target_compile_definitions(${target} PRIVATE PLUGINS="${joined}"
                                               PLUGIN_DIRECTORY="${CMAKE_BINARY_DIR}/lib/varve")
endfunction()
