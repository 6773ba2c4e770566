# make install: the program, the libraries with their one header, and a CMake package whose target is fathom::fathom.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)
set(package ${CMAKE_INSTALL_LIBDIR}/cmake/fathom)

get_property(folders GLOBAL PROPERTY FATHOM_FOLDERS)
list(REMOVE_ITEM folders serve cli)  # the server and the verbs are for the program
list(TRANSFORM folders PREPEND fathom_ OUTPUT_VARIABLE libraries)
add_library(fathom_library INTERFACE)
set_target_properties(fathom_library PROPERTIES EXPORT_NAME fathom)
target_link_libraries(fathom_library INTERFACE ${libraries})

install(TARGETS fathom)
install(TARGETS ${libraries} fathom_library EXPORT fathom)
install(EXPORT fathom NAMESPACE fathom:: FILE fathomTargets.cmake DESTINATION ${package})
install(FILES src/infer/fathom.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(DIRECTORY models/ DESTINATION ${CMAKE_INSTALL_DATADIR}/fathom/models)  # -m builtin
configure_package_config_file(cmake/fathomConfig.cmake.in fathomConfig.cmake INSTALL_DESTINATION ${package})
write_basic_package_version_file(fathomConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/fathomConfig.cmake ${CMAKE_BINARY_DIR}/fathomConfigVersion.cmake
        DESTINATION ${package})
