# `cmake --install`: headers, libraries, programs and a CMake package; with a Kokkos built from the
# pinned source, that too, so that the prefix is all a consumer needs.
include(CMakePackageConfigHelpers)

install(
  TARGETS katt_ops katt_ranks katt_nn katt_hdf5 katt katt_driver katt_code katt_program
  EXPORT katt-targets
  ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR}
  RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
install(TARGETS katt_candidate RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
# Programs that the system's Python runs: the report, and candidates in Python.
install(PROGRAMS drivers/package/katt-report drivers/package/katt-candidate-python DESTINATION ${CMAKE_INSTALL_BINDIR})
install(
  DIRECTORY drivers/report/katt_report drivers/peers/katt_peers
  DESTINATION lib/katt/python
  PATTERN __pycache__ EXCLUDE)
install(
  DIRECTORY src/candidate/
  DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
  FILES_MATCHING
  PATTERN "*.h")
install(
  DIRECTORY src/
  DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/katt
  FILES_MATCHING
  PATTERN "*.hpp")
install(
  DIRECTORY drivers
  DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/katt
  FILES_MATCHING
  PATTERN "*.hpp"
  PATTERN "report" EXCLUDE)
set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/katt)
install(EXPORT katt-targets NAMESPACE katt:: DESTINATION ${package_dir})
set(katt_brings_kokkos FALSE)
if(katt_kokkos_prefix)
  set(katt_brings_kokkos TRUE)
endif()
configure_package_config_file(cmake/kattConfig.cmake.in ${PROJECT_BINARY_DIR}/kattConfig.cmake
                              INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/kattConfigVersion.cmake
                                 COMPATIBILITY SameMinorVersion)
install(
  FILES ${PROJECT_BINARY_DIR}/kattConfig.cmake ${PROJECT_BINARY_DIR}/kattConfigVersion.cmake
        cmake/katt_cuda_language.cmake
  DESTINATION ${package_dir})
if(katt_brings_kokkos)
  install(
    DIRECTORY ${katt_kokkos_prefix}/
    DESTINATION .
    USE_SOURCE_PERMISSIONS
    PATTERN "complete" EXCLUDE)
endif()
