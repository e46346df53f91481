# cpack -G DEB: two packages. varve: the program, its plugins, profiles, and the libllama they use.
# libmri-dev: all that a plugin is built and tested with.
set(CPACK_PACKAGE_VENDOR Varve)
set(CPACK_PACKAGE_CONTACT "Varve <varve@example.org>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "asks long documents; the model's memory is a policy")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)  # build ids stay
set(CPACK_COMPONENTS_GROUPING ONE_PER_GROUP)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)

set(CPACK_COMPONENT_VARVE_DESCRIPTION "Long documents on language models, with a memory of plugins.")
set(CPACK_DEBIAN_VARVE_PACKAGE_NAME varve)
set(CPACK_DEBIAN_VARVE_PACKAGE_SECTION science)
set(CPACK_DEBIAN_VARVE_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_VARVE_PACKAGE_SUGGESTS libmri-dev)
# The bundled libllama is no Debian package: its folder is where dpkg-shlibdeps finds it.
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS_PRIVATE_DIRS ${llama_lib_dir})

set(CPACK_COMPONENT_SDK_DESCRIPTION "Headers, C++ layer, CMake package and templates for Varve's plugins.")
set(CPACK_DEBIAN_SDK_PACKAGE_NAME libmri-dev)
set(CPACK_DEBIAN_SDK_PACKAGE_SECTION libdevel)
set(CPACK_DEBIAN_SDK_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_SDK_PACKAGE_RECOMMENDS "varve, cmake, g++ | clang")

include(CPack)
cpack_add_component_group(varve)
cpack_add_component_group(sdk)
cpack_add_component(varve GROUP varve)
cpack_add_component(plugins GROUP varve)
cpack_add_component(sdk GROUP sdk)
