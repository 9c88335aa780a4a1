# Builds the pinned Kokkos and Kokkos Kernels once per configuration into
# KATT_DEPS_DIR/<hash of the configuration>, then finds them there. Sets katt_kokkos_prefix.
set(katt_kokkos_options
    -DCMAKE_BUILD_TYPE=Release
    -DCMAKE_CXX_COMPILER=${CMAKE_CXX_COMPILER}
    -DCMAKE_CXX_STANDARD=20
    -DCMAKE_CXX_EXTENSIONS=OFF
    -DCMAKE_POSITION_INDEPENDENT_CODE=ON
    -DCMAKE_INSTALL_LIBDIR=lib
    -DKokkos_ENABLE_SERIAL=ON
    -DKokkos_ENABLE_OPENMP=ON
    -DKokkos_ENABLE_DEPRECATED_CODE_4=OFF
    -DKokkos_ARCH_${katt_kokkos_cpu}=ON
    -DKokkos_ENABLE_DEBUG_BOUNDS_CHECK=${KATT_BOUNDS_CHECKS})
cmake_path(GET KATT_BLAS_LIBRARY PARENT_PATH katt_blas_dir)
cmake_path(GET KATT_BLAS_LIBRARY STEM katt_blas_name)
string(REGEX REPLACE "^lib" "" katt_blas_name ${katt_blas_name})
set(katt_kernels_options
    -DCMAKE_BUILD_TYPE=Release
    -DCMAKE_CXX_COMPILER=${CMAKE_CXX_COMPILER}
    -DCMAKE_CXX_EXTENSIONS=OFF
    -DCMAKE_INSTALL_LIBDIR=lib
    -DKokkosKernels_ENABLE_ALL_COMPONENTS=OFF
    -DKokkosKernels_ENABLE_COMPONENT_BLAS=ON
    -DKokkosKernels_ENABLE_COMPONENT_BATCHED=ON
    -DKokkosKernels_ADD_DEFAULT_ETI=OFF
    -DKokkosKernels_ENABLE_TPL_BLAS=ON
    -DKokkosKernels_ENABLE_TPL_LAPACK=OFF
    -DKokkosKernels_ENABLE_TPL_CUSPARSE=OFF
    -DKokkosKernels_ENABLE_TPL_CUSOLVER=OFF
    -DBLAS_LIBRARIES=${katt_blas_name}
    -DBLAS_LIBRARY_DIRS=${katt_blas_dir}
    # gfortran's convention, which OpenBLAS follows; detecting it would take a Fortran compiler.
    "-DF77_BLAS_MANGLE=(name,NAME) name ## _")

if(CMAKE_CROSSCOMPILING)
  foreach(options katt_kokkos_options katt_kernels_options)
    list(APPEND ${options} -DCMAKE_TOOLCHAIN_FILE=${CMAKE_TOOLCHAIN_FILE} -DKATT_SYSROOT=${CMAKE_SYSROOT})
  endforeach()
endif()

# The thread sanitizer must see how Kokkos' threads wait for each other.
if(KATT_SANITIZE STREQUAL "thread")
  list(APPEND katt_kokkos_options -DCMAKE_CXX_FLAGS=-fsanitize=thread)
  list(APPEND katt_kernels_options -DCMAKE_CXX_FLAGS=-fsanitize=thread)
endif()

if(KATT_CUDA)
  # Kokkos' own library is compiled for one architecture, with PTX that later devices compile for themselves:
  # the latest that it knows, up to the first of ours. Our sources are compiled for all of KATT_CUDA_ARCH.
  foreach(known 70/VOLTA70 75/TURING75 80/AMPERE80 86/AMPERE86 89/ADA89 90/HOPPER90)
    cmake_path(GET known PARENT_PATH number)
    if(NOT number GREATER katt_cuda_number)
      cmake_path(GET known FILENAME katt_kokkos_cuda_name)
    endif()
  endforeach()
  if(NOT katt_kokkos_cuda_name)
    message(FATAL_ERROR "KATT_CUDA_ARCH is ${KATT_CUDA_ARCH}; the pinned Kokkos 4.5.1 begins at 70")
  endif()
  set(katt_library_architecture ${KATT_CUDA_ARCH})
  list(LENGTH KATT_CUDA_ARCH count)
  if(count GREATER 1)
    set(katt_library_architecture ${katt_cuda_number})
  endif()
  set(katt_cuda_options
      -DCMAKE_CUDA_COMPILER=${CMAKE_CUDA_COMPILER}
      -DCMAKE_CUDA_ARCHITECTURES=${katt_library_architecture}
      # CMake 3.25 does not know that nvcc compiles C++20 and would leave it at C++17.
      -DCMAKE_CUDA_FLAGS=-std=c++20)
  list(APPEND katt_kernels_options ${katt_cuda_options})
  list(APPEND katt_kokkos_options ${katt_cuda_options} -DKokkos_ENABLE_CUDA=ON
       -DKokkos_ENABLE_COMPILE_AS_CMAKE_LANGUAGE=ON -DKokkos_ARCH_${katt_kokkos_cuda_name}=ON)
endif()

# The hash covers the options, the compilers and the CPU that NATIVE stands for.
if(KATT_CPU STREQUAL "NATIVE")
  execute_process(
    COMMAND ${CMAKE_CXX_COMPILER} -march=native -dM -E -x c++ /dev/null
    OUTPUT_VARIABLE katt_predefined)
else()
  set(katt_predefined "${CMAKE_CXX_COMPILER_VERSION}")
endif()
set(katt_kokkos_patch ${PROJECT_SOURCE_DIR}/cmake/patches/kokkos-4.5.1-cuda13.patch)
file(SHA256 ${katt_kokkos_patch} katt_patch_hash)
string(SHA256 katt_kokkos_hash
       "${katt_kokkos_options};${katt_kernels_options};${katt_predefined};${katt_patch_hash};${CMAKE_CUDA_COMPILER_VERSION}")
string(SUBSTRING ${katt_kokkos_hash} 0 12 katt_kokkos_hash)
set(katt_kokkos_prefix ${KATT_DEPS_DIR}/${katt_kokkos_hash})

# Runs a command with its output in the log; shows the log's tail when it fails.
function(katt_quietly what log)
  execute_process(
    COMMAND ${ARGN}
    RESULT_VARIABLE result
    OUTPUT_FILE ${log}
    ERROR_FILE ${log})
  if(NOT result EQUAL 0)
    execute_process(COMMAND tail -n 25 ${log})
    message(FATAL_ERROR "${what} failed; all of its output: ${log}")
  endif()
endfunction()

function(katt_build_kokkos)
  file(LOCK ${KATT_DEPS_DIR}/lock GUARD FUNCTION) # two presets may be configured at once
  if(EXISTS ${katt_kokkos_prefix}/complete)
    return()
  endif()
  execute_process(
    COMMAND ${PROJECT_SOURCE_DIR}/scripts/fetch_kokkos ${KATT_DEPS_DIR}/download
    RESULT_VARIABLE result
    OUTPUT_VARIABLE archive
    OUTPUT_STRIP_TRAILING_WHITESPACE)
  if(NOT result EQUAL 0)
    message(FATAL_ERROR "No Kokkos 4.5 to 5.x is installed and its pinned source could not be had")
  endif()

  message(STATUS "Building the pinned Kokkos and Kokkos Kernels into ${katt_kokkos_prefix}")
  set(work ${katt_kokkos_prefix}.work)
  file(REMOVE_RECURSE ${work} ${katt_kokkos_prefix})
  file(ARCHIVE_EXTRACT INPUT ${archive} DESTINATION ${work} PATTERNS */kokkos/* */kokkos-kernels/*)
  file(GLOB source ${work}/pycompadre-*)
  katt_quietly("Patching Kokkos" ${work}/patch.log patch -p1 -d ${source}/kokkos -i
               ${katt_kokkos_patch})
  set(generator Ninja)
  if(CMAKE_GENERATOR MATCHES "Makefiles")
    set(generator ${CMAKE_GENERATOR})
  endif()
  cmake_host_system_information(RESULT cores QUERY NUMBER_OF_LOGICAL_CORES)
  set(configure ${CMAKE_COMMAND} -G ${generator} -DCMAKE_MAKE_PROGRAM=${CMAKE_MAKE_PROGRAM}
                -DCMAKE_INSTALL_PREFIX=${katt_kokkos_prefix})
  foreach(part kokkos kokkos-kernels)
    set(options ${katt_kokkos_options})
    if(part STREQUAL "kokkos-kernels")
      set(options ${katt_kernels_options} -DKokkos_DIR=${katt_kokkos_prefix}/lib/cmake/Kokkos)
    endif()
    katt_quietly("Configuring ${part}" ${work}/${part}-configure.log ${configure} ${options} -S
                 ${source}/${part} -B ${work}/${part})
    katt_quietly("Building ${part}" ${work}/${part}-build.log ${CMAKE_COMMAND} --build
                 ${work}/${part} --target install --parallel ${cores})
  endforeach()
  file(REMOVE_RECURSE ${work})
  file(TOUCH ${katt_kokkos_prefix}/complete)
endfunction()

if(NOT EXISTS ${katt_kokkos_prefix}/complete)
  file(MAKE_DIRECTORY ${KATT_DEPS_DIR})
  katt_build_kokkos()
endif()
# An installed Kokkos that was found and rejected must not shadow this prefix, which lies outside of a cross build's
# sysroot.
unset(Kokkos_DIR CACHE)
unset(KokkosKernels_DIR CACHE)
find_package(Kokkos REQUIRED NO_MODULE PATHS ${katt_kokkos_prefix} NO_DEFAULT_PATH NO_CMAKE_FIND_ROOT_PATH)
find_package(KokkosKernels REQUIRED NO_MODULE PATHS ${katt_kokkos_prefix} NO_DEFAULT_PATH NO_CMAKE_FIND_ROOT_PATH)
