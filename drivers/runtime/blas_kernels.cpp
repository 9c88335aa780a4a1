#include "drivers/runtime/blas_kernels.hpp"

#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <system_error>

#include "machine/affinity.hpp"

namespace katt::impl {

namespace {

constexpr const char* variable = "OPENBLAS_CORETYPE";

/// The kinds without AVX2 that OpenBLAS names so (its driver/others/dynamic.c).
constexpr std::array<std::string_view, 19> without_avx2{
    "Katmai", "Coppermine", "Northwood", "Prescott",   "Banias",     "Atom", "Core2",
    "Penryn", "Dunnington", "Nehalem",   "Athlon",     "Opteron",    "Nano", "Opteron_SSE3",
    "Bobcat", "Barcelona",  "Bulldozer", "Piledriver", "Sandybridge"};

/// The kinds with AVX2 and without AVX-512.
constexpr std::array<std::string_view, 3> with_avx2{"Haswell", "Zen", "Excavator"};

/// True when a core multiplies vectors of AVX-512 as often as vectors of AVX2. Zen 4 halves them;
/// AMD's later cores have AVX512-VP2INTERSECT.
bool has_full_avx512() {
#if defined(__x86_64__)
  return __builtin_cpu_supports("avx512f") &&
         (__builtin_cpu_is("intel") || __builtin_cpu_supports("avx512vp2intersect"));
#else
  return false;
#endif
}

/// The kind of kernels that this CPU should use; null when AVX2 is not known to be present.
const char* wanted_kernels() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
      __builtin_cpu_supports("avx512cd")) {
    return "SkylakeX";
  }
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return "Haswell";
#endif
  return nullptr;
}

}  // namespace

std::string_view blas_kernels() {
  using Name = char* (*)();
  const auto name = reinterpret_cast<Name>(dlsym(RTLD_DEFAULT, "openblas_get_corename"));
  return name == nullptr ? std::string_view() : std::string_view(name());
}

std::string blas_remark() {
  const char* wanted = wanted_kernels();
  if (wanted == nullptr || std::getenv(variable) == nullptr || !has_full_avx512() ||
      std::ranges::count(with_avx2, blas_kernels()) == 0) {
    return "";
  }
  return std::string(variable) + " is " + std::getenv(variable) +
         ": naive in f32 may take twice as long as with kernels of " + wanted +
         ", which this CPU can run";
}

void insist_on_blas_kernels(char** argv) {
  const char* wanted = wanted_kernels();
  if (wanted == nullptr || std::getenv(variable) != nullptr ||
      std::ranges::count(without_avx2, blas_kernels()) == 0) {
    return;
  }
  const char* self = "/proc/self/exe";
  std::error_code error;
  const std::string file = std::filesystem::read_symlink(self, error).filename();
  if (error || file.starts_with("ld-")) return;  // the user started the program through the loader
  bench::unbind_this_thread();
  if (setenv(variable, wanted, 0) == 0) execv(self, argv);
}

}  // namespace katt::impl
