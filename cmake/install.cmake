# What an installation holds: programs, the library with its public headers, what CMake and pkg-config
# need to find it, the demo model, and the license.  The tree may be moved as a whole: programs look for the library
# beside themselves, coli.pc and coliConfig.cmake for everything relative to where they are.
include(CMakePackageConfigHelpers)

file(RELATIVE_PATH coli_lib_from_bin "/${CMAKE_INSTALL_BINDIR}" "/${CMAKE_INSTALL_LIBDIR}")
set_target_properties(coli_cli qwen36 PROPERTIES INSTALL_RPATH "$ORIGIN/${coli_lib_from_bin}")

install(TARGETS coli_cli qwen36)
install(TARGETS coli EXPORT coliTargets)
install(DIRECTORY libcoli/include/coli DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
        FILES_MATCHING PATTERN "*.h")
install(DIRECTORY models/ DESTINATION ${CMAKE_INSTALL_DATADIR}/coli/models)
install(FILES LICENSE NOTICE DESTINATION ${CMAKE_INSTALL_DOCDIR})

set(coli_cmake_dir ${CMAKE_INSTALL_LIBDIR}/cmake/coli)
install(EXPORT coliTargets NAMESPACE coli:: DESTINATION ${coli_cmake_dir})
configure_package_config_file(cmake/coliConfig.cmake.in coliConfig.cmake
    INSTALL_DESTINATION ${coli_cmake_dir} PATH_VARS CMAKE_INSTALL_FULL_DATADIR
    NO_CHECK_REQUIRED_COMPONENTS_MACRO)
write_basic_package_version_file(coliConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/coliConfig.cmake
              ${CMAKE_CURRENT_BINARY_DIR}/coliConfigVersion.cmake DESTINATION ${coli_cmake_dir})

file(RELATIVE_PATH coli_prefix_from_pc "/${CMAKE_INSTALL_LIBDIR}/pkgconfig" "/")
string(REGEX REPLACE "/$" "" coli_prefix_from_pc "${coli_prefix_from_pc}")
configure_file(cmake/coli.pc.in coli.pc @ONLY)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/coli.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
