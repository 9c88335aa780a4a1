# What katt is built on: packages of the system, and Kokkos with Kokkos Kernels, an installed one
# where it suits this configuration, else the pinned source (kokkos_pinned.cmake).
find_package(OpenMP REQUIRED COMPONENTS CXX)
find_package(HDF5 REQUIRED COMPONENTS C)
find_package(CLI11 REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(tomlplusplus REQUIRED)
if(KATT_CUDA)
  find_package(CUDAToolkit REQUIRED) # cuBLASLt
endif()
if(KATT_TESTS)
  find_package(GTest REQUIRED)
  find_package(rapidcheck REQUIRED)
endif()

# OpenBLAS by its full path, the OpenMP flavour first: it shares its threads with Kokkos, and which
# flavour the system's alternatives point to does not matter then.
find_library(
  KATT_BLAS_LIBRARY openblas
  PATHS /usr/lib/${CMAKE_LIBRARY_ARCHITECTURE}/openblas-openmp
  NO_DEFAULT_PATH)
find_library(KATT_BLAS_LIBRARY openblas REQUIRED)

# An installed Kokkos must have the backends asked for, and no others: CUDA changes the compiler.
# Sets RESULT to whether it has, and says why it has not.
function(katt_kokkos_suits RESULT)
  set(${RESULT} FALSE PARENT_SCOPE)
  foreach(device OPENMP SERIAL)
    if(NOT device IN_LIST Kokkos_DEVICES)
      message(STATUS "Kokkos in ${Kokkos_DIR} passed over: it lacks ${device}")
      return()
    endif()
  endforeach()
  set(has_cuda OFF)
  if("CUDA" IN_LIST Kokkos_DEVICES)
    set(has_cuda ON)
  endif()
  if(NOT has_cuda STREQUAL KATT_CUDA)
    message(STATUS "Kokkos in ${Kokkos_DIR} passed over: CUDA is ${has_cuda}, wanted ${KATT_CUDA}")
    return()
  endif()
  set(${RESULT} TRUE PARENT_SCOPE)
endfunction()

set(KATT_DEPS_DIR "" CACHE PATH "Where the pinned source is built; build/deps when empty")
mark_as_advanced(KATT_DEPS_DIR)
if(NOT KATT_DEPS_DIR)
  set(KATT_DEPS_DIR ${PROJECT_SOURCE_DIR}/build/deps)
endif()
set(katt_kokkos_prefix "") # of the pinned build; empty with an installed Kokkos
set(katt_use_installed FALSE)
# A pinned build that an earlier run found is not an installed one: its options may have changed.
foreach(package Kokkos KokkosKernels)
  cmake_path(IS_PREFIX KATT_DEPS_DIR "${${package}_DIR}" NORMALIZE katt_found_pinned)
  if(katt_found_pinned)
    unset(${package}_DIR CACHE)
  endif()
endforeach()
find_package(Kokkos 4.5...<6 QUIET NO_MODULE)
if(Kokkos_FOUND)
  katt_kokkos_suits(katt_use_installed)
endif()
if(katt_use_installed)
  find_package(KokkosKernels 4.5...<6 QUIET NO_MODULE)
  if(NOT KokkosKernels_FOUND)
    message(STATUS "Kokkos in ${Kokkos_DIR} passed over: no Kokkos Kernels beside it")
    set(katt_use_installed FALSE)
  endif()
endif()
if(katt_use_installed)
  if(NOT TARGET KokkosKernels::BLAS)
    message(WARNING "Kokkos Kernels in ${KokkosKernels_DIR} lacks BLAS: host GEMMs will be slow")
  endif()
else()
  include(kokkos_pinned)
endif()
message(STATUS "Kokkos ${Kokkos_VERSION} in ${Kokkos_DIR}")
message(STATUS "Kokkos Kernels ${KokkosKernels_VERSION} in ${KokkosKernels_DIR}")
message(STATUS "BLAS ${KATT_BLAS_LIBRARY}")
