# Properties of every target of katt: warnings, and the compiler. Call it once the target's sources
# are known.
include(katt_cuda_language)
set(KATT_INCLUDE_ROOTS ${PROJECT_SOURCE_DIR}/src ${PROJECT_SOURCE_DIR})

function(katt_target_defaults target)
  target_compile_definitions(${target} PRIVATE KATT_BUILDING) # see core/tensor.hpp
  target_compile_options(
    ${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra>
                      $<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-Wall>)
  # nvcc 13 takes the assignment of a [[nodiscard]] result for a loss of it where a lambda does it,
  # and writes parentheses around a pointer to a member that g++ then warns of. It does not know
  # g++'s pragmas (1675).
  target_compile_options(
    ${target} PRIVATE $<$<COMPILE_LANGUAGE:CUDA>:--diag-suppress=2810,1675;-Xcompiler=-Wno-parentheses>)
  # GCC 12 warns about its own AVX-512 intrinsics and strings (GCC bugs 105593 and 105651, mended
  # in 13).
  if(CMAKE_CXX_COMPILER_ID STREQUAL GNU AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
    target_compile_options(
      ${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-Wno-uninitialized;-Wno-maybe-uninitialized;-Wno-restrict;-Wno-stringop-overflow>)
  endif()
  katt_cuda_language(${target})
endfunction()

# katt_precompile(TARGET HEADERS...): parses Kokkos (1.9 s a source, of which 0.2 are left) and these headers
# once. katt_precompile(TARGET REUSE_FROM OTHER): takes what OTHER, which has the same options, has parsed.
# nvcc's sources gain nothing by it and the others of a CUDA build do not know Kokkos.
function(katt_precompile target)
  if(KATT_CUDA)
    return()
  endif()
  if(ARGV1 STREQUAL REUSE_FROM)
    target_precompile_headers(${target} ${ARGN})
  else()
    target_precompile_headers(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:<Kokkos_Core.hpp$<ANGLE-R>> ${ARGN})
  endif()
  if(KATT_CCACHE AND CMAKE_CXX_COMPILER_ID STREQUAL GNU)
    target_compile_options(${target} PRIVATE -fpch-preprocess) # ccache asks for it
  elseif(KATT_CCACHE)
    target_compile_options(${target} PRIVATE "SHELL:-Xclang -fno-pch-timestamp") # Clang's
  endif()
endfunction()

# katt_join_sources(TARGET): compiles ten sources at a time. Half of what a source without kernels takes is
# the same std::string, std::function and JSON in each; so the program is built in two thirds of the time.
# Names in anonymous namespaces are then shared by neighbours. KATT_UNITY=OFF compiles every source alone
# (scripts/lint, and whoever edits one file many times).
function(katt_join_sources target)
  set_target_properties(${target} PROPERTIES UNITY_BUILD ${KATT_UNITY} UNITY_BUILD_BATCH_SIZE 10)
  # GCC takes what is included for a header, whose structs must not hold a type of one source.
  target_compile_options(${target} PRIVATE $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-subobject-linkage>)
endfunction()
