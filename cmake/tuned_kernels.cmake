# The target tuned_kernels: compiles the sources of scripts/tuned_kernels.toml's kernels alone, without what a host runs
# of them, and checks the kernels by scripts/kernel_table. The sources of KATT_TUNED_ARCH's first architecture are all of
# them; of the others attention on mma.sync, whose registers the presets of tiles know.
set(KATT_TUNED_ARCH "90a;80;86;120" CACHE STRING "Architectures of the target tuned_kernels")

file(
  GLOB katt_attention_sources
  RELATIVE ${CMAKE_CURRENT_SOURCE_DIR}
  CONFIGURE_DEPENDS ops/attention/tensor_cores/*.cpp ops/attention/decode/*.cpp)
set(katt_mma_sources ${katt_attention_sources})
list(FILTER katt_mma_sources INCLUDE REGEX "/mma|/decode/")
set(katt_tuned_sources
    ${katt_attention_sources}
    ops/convert_dtype/convert_dtype.cpp
    ops/cross_entropy/cross_entropy.cpp
    ops/embedding/embedding.cpp
    ops/layernorm/layernorm.cpp
    ops/rmsnorm/rmsnorm.cpp
    ops/rope/rope.cpp
    ops/softmax/softmax.cpp
    ops/swiglu/swiglu.cpp
    training/optimizer.cpp)

# Kokkos' headers ask for the CPU that Kokkos was built for.
get_target_property(katt_kokkos_options Kokkos::kokkoscore INTERFACE_COMPILE_OPTIONS)
string(REGEX MATCHALL "-march=[^;>$]*" katt_host_flags "${katt_kokkos_options}")
list(REMOVE_DUPLICATES katt_host_flags)
list(APPEND katt_host_flags ${OpenMP_CXX_FLAGS})
list(TRANSFORM katt_host_flags PREPEND -Xcompiler=)

# Sets OUTPUT to the cubin of a source for an architecture.
function(katt_add_cubin source architecture output)
  cmake_path(GET source STEM name)
  set(cubin ${CMAKE_BINARY_DIR}/tuned/sm_${architecture}/${name}.cubin)
  set(definitions -DKATT_HAS_CUDA -DKATT_BUILDING -DNDEBUG)
  if(architecture STREQUAL 90a)
    list(APPEND definitions -DKATT_CUDA_SM90A)
  endif()
  cmake_path(GET cubin PARENT_PATH folder)
  file(MAKE_DIRECTORY ${folder})
  set(includes "$<TARGET_PROPERTY:katt_ops,INCLUDE_DIRECTORIES>")
  add_custom_command(
    OUTPUT ${cubin}
    COMMAND
      ${CMAKE_CUDA_COMPILER} -cubin -x cu -arch=sm_${architecture} -std=c++20 -O3 --expt-relaxed-constexpr
      --extended-lambda ${definitions} "-I$<JOIN:${includes},;-I>" ${katt_host_flags} -w -MD -MF ${cubin}.d -MT
      ${cubin} -o ${cubin} ${CMAKE_CURRENT_SOURCE_DIR}/${source}
    DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/${source}
    DEPFILE ${cubin}.d
    COMMENT "Compiling the kernels of ${source} for sm_${architecture}"
    COMMAND_EXPAND_LISTS VERBATIM)
  set(${output} ${cubin} PARENT_SCOPE)
endfunction()

set(katt_cubins "")
set(katt_sources ${katt_tuned_sources})
foreach(architecture IN LISTS KATT_TUNED_ARCH)
  foreach(source IN LISTS katt_sources)
    katt_add_cubin(${source} ${architecture} cubin)
    list(APPEND katt_cubins ${cubin})
  endforeach()
  set(katt_sources ${katt_mma_sources})
endforeach()
find_package(Python3 3.11 COMPONENTS Interpreter)
add_custom_target(
  tuned_kernels
  COMMAND ${Python3_EXECUTABLE} ${PROJECT_SOURCE_DIR}/scripts/kernel_table ${CMAKE_BINARY_DIR}/tuned --tuned-only
  DEPENDS ${katt_cubins}
  VERBATIM)
