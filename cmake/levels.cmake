# Levels of a CPU, the best first. A package holds a program for each, and starts the first one that a CPU can run
# (docs/packages.md). KATT_CPU may name one. Each level has: Kokkos' name, the words of /proc/cpuinfo (vendor_id and
# flags) that its programs need, and the compiler's options where Kokkos' own are not meant.
set(katt_levels zen5 zen4 sapphirerapids skylake-avx512 haswell)

set(needs_haswell avx2 fma f16c bmi1 bmi2 abm movbe)
set(needs_avx512 ${needs_haswell} avx512f avx512cd avx512bw avx512dq avx512vl)
set(needs_bf16
    ${needs_avx512} avx512ifma avx512vbmi avx512_vbmi2 avx512_vnni avx512_bitalg avx512_vpopcntdq avx512_bf16 gfni)

set(katt_kokkos_cpu_haswell HSW)
set(katt_needs_haswell ${needs_haswell})
set(katt_kokkos_cpu_skylake-avx512 SKX)
set(katt_needs_skylake-avx512 ${needs_avx512})
# AMX is asked for at run time, as the kernel may refuse it.
set(katt_kokkos_cpu_sapphirerapids SPR)
set(katt_needs_sapphirerapids ${needs_bf16} avx512_fp16 avx_vnni)
# GCC 12.2 has no name for Zen 4 and 5: what -march=native stands for there. is_zen5 of tile/vec/vec.hpp tells them apart.
set(katt_kokkos_cpu_zen4 SKX)
set(katt_needs_zen4 AuthenticAMD ${needs_bf16})
set(katt_options_zen4
    -march=znver3 -mtune=znver3 -mavx512f -mavx512cd -mavx512bw -mavx512dq -mavx512vl -mavx512ifma -mavx512vbmi
    -mavx512vbmi2 -mavx512vnni -mavx512bitalg -mavx512vpopcntdq -mavx512bf16 -mgfni)
set(katt_kokkos_cpu_zen5 SKX)
set(katt_needs_zen5 ${katt_needs_zen4} avx_vnni)
set(katt_options_zen5 ${katt_options_zen4} -mavxvnni)

set(katt_kokkos_cpu ${KATT_CPU})
if(KATT_CPU IN_LIST katt_levels)
  set(katt_kokkos_cpu ${katt_kokkos_cpu_${KATT_CPU}})
endif()

# Kokkos gives its options to all that link it; those of a level take their place.
function(katt_take_level_options)
  if(NOT DEFINED katt_options_${KATT_CPU})
    return()
  endif()
  foreach(property COMPILE_OPTIONS LINK_OPTIONS)
    get_target_property(options Kokkos::kokkoscore INTERFACE_${property})
    string(REGEX REPLACE "-march=[^;>]*;-mtune=[^;>]*" "${katt_options_${KATT_CPU}}" options "${options}")
    set_target_properties(Kokkos::kokkoscore PROPERTIES INTERFACE_${property} "${options}")
  endforeach()
endfunction()
