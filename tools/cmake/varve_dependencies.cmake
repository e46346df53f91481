# Everything the project links to. tools/setup installs all of it; a missing package names the Debian package.
find_package(Threads REQUIRED)
# libdnnl-dev. Debian's own package config drags in an OpenCL SDK that the CPU engine does not need.
find_path(DNNL_INCLUDE_DIR dnnl.hpp REQUIRED)
find_library(DNNL_LIBRARY dnnl REQUIRED)
add_library(DNNL::dnnl UNKNOWN IMPORTED)
set_target_properties(DNNL::dnnl PROPERTIES IMPORTED_LOCATION ${DNNL_LIBRARY}
                      INTERFACE_INCLUDE_DIRECTORIES ${DNNL_INCLUDE_DIR})
find_package(OpenMP REQUIRED COMPONENTS CXX)
find_package(HWY 1.0.3 REQUIRED) # libhwy-dev
find_package(absl REQUIRED)      # libabsl-dev
find_package(Boost 1.74 REQUIRED COMPONENTS program_options filesystem)
find_package(nlohmann_json 3.11 REQUIRED)  # nlohmann-json3-dev
find_package(tomlplusplus 3.3 REQUIRED)    # libtomlplusplus-dev
find_package(llama REQUIRED)     # built by tools/setup from PyPI's llama-cpp-python; pass -DCMAKE_PREFIX_PATH=<prefix>
if(VARVE_TESTS)
  find_package(GTest REQUIRED)   # libgtest-dev libgmock-dev
endif()
if(VARVE_BENCH)
  find_package(benchmark REQUIRED)  # libbenchmark-dev
endif()
