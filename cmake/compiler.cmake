# Sanitizers, the CUDA language, ccache. The language standard is a feature of the target katt: set
# here, CMake 3.25 would ask it of nvcc too, of which it does not know that it compiles C++20.
set(CMAKE_CXX_EXTENSIONS OFF)
# OpenBLAS lies outside the loader's default folders: installed programs must still find it.
set(CMAKE_INSTALL_RPATH_USE_LINK_PATH ON)

find_program(KATT_CCACHE ccache)
mark_as_advanced(KATT_CCACHE)
if(KATT_CCACHE)
  # Paths below the tree count as relative: clones share what they compile.
  set(katt_launcher ${CMAKE_COMMAND} -E env CCACHE_BASEDIR=${PROJECT_SOURCE_DIR} CCACHE_NOHASHDIR=1
                    CCACHE_SLOPPINESS=pch_defines,time_macros
                    ${KATT_CCACHE})
  foreach(language C CXX CUDA)
    set(CMAKE_${language}_COMPILER_LAUNCHER ${katt_launcher})
  endforeach()
endif()

if(KATT_FEW_TILES)
  add_compile_definitions(KATT_FEW_TILES)
endif()

if(KATT_SANITIZE)
  set(katt_sanitize_flags -fsanitize=${KATT_SANITIZE} -fno-omit-frame-pointer
                          -fno-sanitize-recover=all)
  add_compile_options(${katt_sanitize_flags})
  add_link_options(${katt_sanitize_flags})
  if(KATT_SANITIZE MATCHES "address")
    add_compile_definitions(KATT_ADDRESS_SANITIZER) # compilers do not agree on a macro
  endif()
endif()

if(KATT_CUDA)
  # The toolkit's usual place, where it is not on PATH.
  find_program(CMAKE_CUDA_COMPILER nvcc PATHS /usr/local/cuda/bin REQUIRED)
  execute_process(
    COMMAND ${CMAKE_CUDA_COMPILER} --list-gpu-code
    OUTPUT_VARIABLE katt_gpu_codes
    OUTPUT_STRIP_TRAILING_WHITESPACE)
  string(REPLACE "\n" ";" katt_gpu_codes "${katt_gpu_codes}")
  set(katt_cuda_numbers "")
  foreach(architecture IN LISTS KATT_CUDA_ARCH)
    string(REGEX REPLACE "[af]$" "" number "${architecture}")
    if(NOT "sm_${number}" IN_LIST katt_gpu_codes)
      list(JOIN katt_gpu_codes ", " katt_gpu_codes)
      message(
        FATAL_ERROR
          "KATT_CUDA_ARCH is ${KATT_CUDA_ARCH}; ${CMAKE_CUDA_COMPILER} compiles for ${katt_gpu_codes}")
    endif()
    list(APPEND katt_cuda_numbers ${number})
  endforeach()
  list(SORT katt_cuda_numbers COMPARE NATURAL)
  list(GET katt_cuda_numbers 0 katt_cuda_number) # the least of them
  set(CMAKE_CUDA_ARCHITECTURES ${KATT_CUDA_ARCH})
  enable_language(CUDA)
  set(CMAKE_CUDA_EXTENSIONS OFF)
endif()
