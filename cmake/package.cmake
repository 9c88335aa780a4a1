# Packages: `cpack` in the build folder of a level (levels.cmake) makes a .deb and a .tar.gz. KATT_PACKAGE names the build
# folders of further levels, which they hold, too (scripts/package). The programs lie in lib/katt/LEVEL, what starts
# the right one in bin.
set(KATT_PACKAGE "" CACHE STRING "Build folders of further levels that cpack puts into the package")
if(NOT KATT_CPU IN_LIST katt_levels)
  return()
endif()
set(source ${PROJECT_SOURCE_DIR}/drivers)
set(libraries lib/katt/libraries) # of the .tar.gz

# Programs of each level. A package of Debian finds its libraries by the second entries. RPATH and not RUNPATH: it
# serves the libraries' own libraries, too.
set_target_properties(katt_program PROPERTIES INSTALL_RPATH "\$ORIGIN/../libraries")
target_link_options(katt_program PRIVATE -Wl,--disable-new-dtags)
install(TARGETS katt_program katt_candidate RUNTIME DESTINATION lib/katt/${KATT_CPU} COMPONENT level EXCLUDE_FROM_ALL)
install(PROGRAMS ${source}/package/katt-candidate-python DESTINATION lib/katt/${KATT_CPU} COMPONENT level EXCLUDE_FROM_ALL)

# Once: what chooses.
set(levels ${KATT_CPU})
foreach(folder ${KATT_PACKAGE})
  cmake_path(GET folder FILENAME level)
  list(APPEND levels ${level})
endforeach()
set(lines "")
foreach(level ${katt_levels}) # in their order
  if(level IN_LIST levels)
    list(JOIN katt_needs_${level} " " needs)
    string(APPEND lines "${level} ${needs}\n")
  endif()
endforeach()
file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/levels CONTENT "${lines}" @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/levels DESTINATION lib/katt COMPONENT launcher EXCLUDE_FROM_ALL)
install(PROGRAMS ${source}/package/katt DESTINATION bin COMPONENT launcher EXCLUDE_FROM_ALL)

# Once: the rest.
install(PROGRAMS ${source}/package/katt-report DESTINATION bin COMPONENT package EXCLUDE_FROM_ALL)
install(DIRECTORY ${source}/report/katt_report ${source}/peers/katt_peers DESTINATION lib/katt/python COMPONENT package
        EXCLUDE_FROM_ALL PATTERN __pycache__ EXCLUDE)
install(FILES ${PROJECT_SOURCE_DIR}/src/candidate/katt/candidate.h DESTINATION include/katt COMPONENT package
        EXCLUDE_FROM_ALL)
install(DIRECTORY ${PROJECT_SOURCE_DIR}/experiments DESTINATION share/katt COMPONENT package EXCLUDE_FROM_ALL
        FILES_MATCHING PATTERN "sweep.toml")
install(FILES ${PROJECT_SOURCE_DIR}/README.md ${PROJECT_SOURCE_DIR}/CHANGELOG.md DESTINATION share/doc/katt
        COMPONENT package EXCLUDE_FROM_ALL)
install(FILES ${PROJECT_SOURCE_DIR}/LICENSE DESTINATION share/doc/katt RENAME copyright COMPONENT package EXCLUDE_FROM_ALL)
set(licences "\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/share/doc/katt/licences")
install(CODE "execute_process(COMMAND \"${source}/../scripts/licences\" \"${licences}\" COMMAND_ERROR_IS_FATAL ANY)"
        COMPONENT package EXCLUDE_FROM_ALL)
# The system's libraries, without those that every Linux has.
install(CODE "
  file(GET_RUNTIME_DEPENDENCIES EXECUTABLES $<TARGET_FILE:katt_program> RESOLVED_DEPENDENCIES_VAR found
       PRE_EXCLUDE_REGEXES [[^ld-linux]] POST_EXCLUDE_REGEXES [[/lib(c|m|dl|rt|pthread|resolv)\\.so]])
  set(folder \$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/${libraries})
  file(INSTALL DESTINATION \${CMAKE_INSTALL_PREFIX}/${libraries} TYPE SHARED_LIBRARY FOLLOW_SYMLINK_CHAIN FILES \${found})
  file(GLOB installed \${folder}/*)
  foreach(library \${installed})
    if(NOT IS_SYMLINK \${library}) # with a path of its own a library would not take the program's
      file(RPATH_REMOVE FILE \${library})
    endif()
  endforeach()
  execute_process(COMMAND \"${source}/../scripts/licences\" \"${licences}\" \"$<TARGET_FILE:katt_program>\"
                  COMMAND_ERROR_IS_FATAL ANY)
  " COMPONENT libraries EXCLUDE_FROM_ALL)

set(CPACK_PACKAGE_NAME katt)
set(CPACK_PACKAGE_VENDOR "the Katt project")
set(CPACK_PACKAGE_CONTACT "the Katt project")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "Testbed of transformer kernels")
set(CPACK_PACKAGE_DESCRIPTION "Sweeps, verifies and judges transformer kernels, trains and runs LLaMAs. For x86-64 with AVX2;
a program for each level of a CPU, chosen when it starts.")
set(CPACK_RESOURCE_FILE_LICENSE ${PROJECT_SOURCE_DIR}/LICENSE)
set(CPACK_STRIP_FILES ON)
set(CPACK_GENERATOR DEB TGZ)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_DEPENDS libopenblas0-openmp)
set(CPACK_DEBIAN_PACKAGE_RECOMMENDS "python3-h5py, python3-matplotlib, python3-numpy")
set(CPACK_DEBIAN_PACKAGE_SUGGESTS "openmpi-bin, python3-pandas")
set(CPACK_INSTALL_CMAKE_PROJECTS "")
foreach(component level launcher package)
  list(APPEND CPACK_INSTALL_CMAKE_PROJECTS ${PROJECT_BINARY_DIR} katt ${component} /)
endforeach()
foreach(folder ${KATT_PACKAGE})
  list(APPEND CPACK_INSTALL_CMAKE_PROJECTS ${folder} katt level /)
endforeach()
set(CPACK_PROJECT_CONFIG_FILE ${PROJECT_BINARY_DIR}/cpack_generator.cmake)
file(CONFIGURE OUTPUT ${CPACK_PROJECT_CONFIG_FILE} CONTENT [[
# The .tar.gz is for any system: it brings its libraries.
if(CPACK_GENERATOR STREQUAL TGZ)
  list(APPEND CPACK_INSTALL_CMAKE_PROJECTS "@PROJECT_BINARY_DIR@" katt libraries /)
endif()
]] @ONLY)
include(CPack)
