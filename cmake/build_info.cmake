# Generates the source of katt::build_info(). The configuration fills in its facts here;
# write_build_info.cmake fills in the commit and the dirty flag at every build.

function(katt_add_build_info source)
  string(TOUPPER "${CMAKE_BUILD_TYPE}" type)
  # Kokkos brings the CPU's flags; those of the host compiler are what matters here.
  get_target_property(kokkos_flags Kokkos::kokkoscore INTERFACE_COMPILE_OPTIONS)
  string(REGEX MATCHALL "-(march|mtune|mcpu)[^;>$]*" kokkos_flags "${kokkos_flags}")
  list(REMOVE_DUPLICATES kokkos_flags)
  list(JOIN kokkos_flags " " kokkos_flags)
  list(JOIN katt_sanitize_flags " " sanitize_flags)
  string(STRIP "${CMAKE_CXX_FLAGS} ${CMAKE_CXX_FLAGS_${type}} ${OpenMP_CXX_FLAGS} ${kokkos_flags} ${sanitize_flags}"
               KATT_COMPILE_FLAGS)
  set(KATT_COMPILER "${CMAKE_CXX_COMPILER_ID} ${CMAKE_CXX_COMPILER_VERSION}")
  if(KATT_CUDA)
    list(JOIN KATT_CUDA_ARCH ", sm_" architectures)
    string(APPEND KATT_COMPILER ", nvcc ${CMAKE_CUDA_COMPILER_VERSION} for sm_${architectures}")
  endif()
  string(TOLOWER "${Kokkos_DEVICES}" KATT_BACKENDS)
  list(JOIN KATT_BACKENDS " " KATT_BACKENDS)
  file(REAL_PATH ${KATT_BLAS_LIBRARY} KATT_BLAS)

  set(dir ${PROJECT_BINARY_DIR}/generated)
  configure_file(${PROJECT_SOURCE_DIR}/cmake/build_info.cpp.in ${dir}/build_info.cpp.in @ONLY)
  add_custom_target(
    katt_build_info
    COMMAND ${CMAKE_COMMAND} -D SOURCE_DIR=${PROJECT_SOURCE_DIR} -D TEMPLATE=${dir}/build_info.cpp.in
            -D OUTPUT=${dir}/build_info.cpp -P ${PROJECT_SOURCE_DIR}/cmake/write_build_info.cmake
    BYPRODUCTS ${dir}/build_info.cpp
    COMMENT "Looking up the commit")
  set(${source} ${dir}/build_info.cpp PARENT_SCOPE)
endfunction()
