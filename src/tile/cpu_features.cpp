#include "tile/cpu_features.hpp"

#if defined(__x86_64__) && defined(__linux__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace katt {

namespace {

CpuFeatures detect() {
  CpuFeatures features;
#if defined(__x86_64__) && defined(__linux__)
  constexpr unsigned bit_avx512_bf16 = 1U << 5U;
  constexpr unsigned bit_amx_bf16 = 1U << 22U;
  constexpr unsigned bit_avx512_fp16 = 1U << 23U;
  constexpr unsigned bit_amx_tile = 1U << 24U;
  constexpr unsigned bit_amx_int8 = 1U << 25U;
  unsigned eax = 0;
  unsigned ebx = 0;
  unsigned ecx = 0;
  unsigned edx = 0;
  if (__get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) != 0) {
    features.avx512_bf16 = (eax & bit_avx512_bf16) != 0;
  }
  const bool is_intel = __get_cpuid(0, &eax, &ebx, &ecx, &edx) != 0 && ebx == signature_INTEL_ebx;
  features.fast_avx512_bf16 = features.avx512_bf16 && !is_intel;
  if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) == 0) edx = 0;
  features.avx512_fp16 = (edx & bit_avx512_fp16) != 0;
  if ((edx & bit_amx_tile) == 0 || (edx & bit_amx_bf16) == 0) {
    features.amx_refusal = "this CPU has no AMX bf16 tiles";
    return features;
  }
  // Documentation/arch/x86/xstate.rst: ARCH_REQ_XCOMP_PERM for XFEATURE_XTILEDATA.
  constexpr long arch_req_xcomp_perm = 0x1023;
  constexpr long xfeature_xtiledata = 18;
  if (syscall(SYS_arch_prctl, arch_req_xcomp_perm, xfeature_xtiledata) != 0) {
    features.amx_refusal = "the kernel refuses this process the AMX tiles";
    return features;
  }
  features.amx_bf16 = true;
  features.amx_int8 = (edx & bit_amx_int8) != 0;
#else
  features.amx_refusal = "AMX is a unit of x86-64 under Linux";
#endif
  return features;
}

}  // namespace

const CpuFeatures& cpu_features() {
  static const CpuFeatures features = detect();
  return features;
}

}  // namespace katt
