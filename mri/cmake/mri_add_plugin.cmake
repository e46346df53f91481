# mri_add_plugin(KIND quantizer NAME int8 SOURCES int8.cpp … [LIBS …] [DEFINES …] [NO_INSTALL]
#                [STATIC_LIBSTDCXX])
#
# Builds <kind>-<name>.so, target <kind>_<name>, from C or C++ into VARVE_PLUGIN_OUTPUT_DIRECTORY
# (not set: CMAKE_BINARY_DIR) and installs it to lib/varve, where the program looks. The library
# exports mri_plugin_entry_v1 alone, needs no symbol of the host, and has a build id. Works the same
# inside this project and after find_package(mri). DEFINES MRI_TARGET_VERSION=MRI_1_0 hides what a
# 1.0 host does not know.
#
# By default the plugin shares the system's libstdc++ with the host: one copy in the process, and
# sanitizers work. STATIC_LIBSTDCXX takes it into the library, hidden, for systems with an older
# one; nothing of C++ crosses the interface, so both are safe.

function(mri_add_plugin)
  cmake_parse_arguments(P "NO_INSTALL;STATIC_LIBSTDCXX" "KIND;NAME" "SOURCES;LIBS;DEFINES" ${ARGN})
  if(P_UNPARSED_ARGUMENTS OR NOT P_KIND OR NOT P_NAME OR NOT P_SOURCES)
    message(FATAL_ERROR "mri_add_plugin: wants KIND, NAME and SOURCES; got '${ARGN}'")
  endif()
  set(map ${CMAKE_CURRENT_FUNCTION_LIST_DIR}/mri_plugin.map)
  set(target ${P_KIND}_${P_NAME})
  add_library(${target} MODULE ${P_SOURCES})
  target_link_libraries(${target} PRIVATE mri::sdk ${P_LIBS})
  target_compile_definitions(${target} PRIVATE ${P_DEFINES})
  target_compile_options(${target} PRIVATE -ftls-model=global-dynamic
                                           $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-fno-gnu-unique>)
  target_link_options(${target} PRIVATE
    LINKER:--version-script=${map} LINKER:--exclude-libs,ALL LINKER:-z,now LINKER:-z,relro
    LINKER:-z,noexecstack LINKER:--build-id
    $<$<BOOL:${P_STATIC_LIBSTDCXX}>:-static-libstdc++> $<$<BOOL:${P_STATIC_LIBSTDCXX}>:-static-libgcc>)
  get_property(languages GLOBAL PROPERTY ENABLED_LANGUAGES)
  if(CXX IN_LIST languages)
    target_compile_features(${target} PRIVATE cxx_std_20)
  endif()
  # The sanitizers' run-time library lies in the program, so their symbols stay undefined here.
  set(flags "${CMAKE_C_FLAGS} ${CMAKE_CXX_FLAGS} ${CMAKE_MODULE_LINKER_FLAGS}")
  if(NOT VARVE_SANITIZE AND NOT flags MATCHES "-fsanitize=")
    target_link_options(${target} PRIVATE LINKER:-z,defs)
  endif()
  if(VARVE_PLUGIN_OUTPUT_DIRECTORY)
    set(directory ${VARVE_PLUGIN_OUTPUT_DIRECTORY})
  else()
    set(directory ${CMAKE_BINARY_DIR})
  endif()
  set_target_properties(${target} PROPERTIES
    PREFIX "" OUTPUT_NAME ${P_KIND}-${P_NAME} SUFFIX .so LIBRARY_OUTPUT_DIRECTORY ${directory}
    LINK_DEPENDS ${map} POSITION_INDEPENDENT_CODE ON C_VISIBILITY_PRESET hidden
    CXX_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON)
  if(NOT P_LIBS)  # then all it needs is where the system's loader looks
    set_target_properties(${target} PROPERTIES SKIP_BUILD_RPATH ON INSTALL_RPATH "")
  endif()
  if(NOT P_NO_INSTALL)
    install(TARGETS ${target} LIBRARY DESTINATION lib/varve COMPONENT plugins)
  endif()
endfunction()
