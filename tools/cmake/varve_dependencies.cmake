# Everything the project links to, each with the Debian package that brings it; tools/setup installs
# all of it.

# varve_find(PACKAGE DEBIAN_PACKAGES …): find_package, with a message that says what to install.
macro(varve_find package debian)
  find_package(${package} ${ARGN} QUIET)
  if(NOT ${package}_FOUND)
    message(FATAL_ERROR "${package} ${ARGN}: not found. "
                        "Run tools/setup --tests, or install ${debian}.")
  endif()
endmacro()

find_package(Threads REQUIRED)
varve_find(HWY libhwy-dev 1.0.3)
varve_find(absl libabsl-dev)
varve_find(Boost "libboost-dev, libboost-filesystem-dev and libboost-program-options-dev" 1.74
           COMPONENTS program_options filesystem)
varve_find(nlohmann_json nlohmann-json3-dev 3.11)
varve_find(tomlplusplus libtomlplusplus-dev 3.3)
varve_find(OpenSSL libssl-dev COMPONENTS Crypto)
varve_find(SQLite3 libsqlite3-dev)
varve_find(prometheus-cpp prometheus-cpp-dev)

# Debian's own package file for oneDNN drags in an OpenCL SDK that the CPU engine does not need.
find_path(DNNL_INCLUDE_DIR dnnl.hpp)
find_library(DNNL_LIBRARY dnnl)
if(NOT DNNL_INCLUDE_DIR OR NOT DNNL_LIBRARY)
  message(FATAL_ERROR "oneDNN: not found. Run tools/setup, or install libdnnl-dev.")
endif()
add_library(DNNL::dnnl UNKNOWN IMPORTED)
set_target_properties(DNNL::dnnl PROPERTIES IMPORTED_LOCATION ${DNNL_LIBRARY}
                                            INTERFACE_INCLUDE_DIRECTORIES ${DNNL_INCLUDE_DIR})

# On another processor tools/setup makes another prefix: forget what was found in the old one.
if(DEFINED CACHE{varve_prefix} AND NOT "$CACHE{varve_prefix}" STREQUAL "${CMAKE_PREFIX_PATH}")
  get_cmake_property(cached CACHE_VARIABLES)
  list(FILTER cached INCLUDE REGEX "^(llama|LLAMA|ggml|GGML)_")
  foreach(variable IN LISTS cached)
    unset(${variable} CACHE)
  endforeach()
endif()
set(varve_prefix "${CMAKE_PREFIX_PATH}" CACHE INTERNAL "CMAKE_PREFIX_PATH of the last configuration")
find_package(llama QUIET)
if(NOT llama_FOUND)
  message(FATAL_ERROR "libllama: not found under CMAKE_PREFIX_PATH='${CMAKE_PREFIX_PATH}'. "
                      "tools/setup builds it, and the presets read its place from the environment: "
                      "eval \"$(tools/setup)\", then configure again.")
endif()

if(VARVE_TESTS)
  varve_find(GTest "libgtest-dev and libgmock-dev")
endif()
if(VARVE_BENCH)
  varve_find(benchmark libbenchmark-dev)
endif()
if(VARVE_CUDA)
  enable_language(CUDA)
  find_package(CUDAToolkit REQUIRED)
endif()
