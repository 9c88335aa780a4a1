#include "drivers/blas_kernels.hpp"

#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <system_error>

#include "bench/affinity.hpp"

namespace katt::impl {

namespace {

/// The kinds without AVX2 that OpenBLAS names so (its driver/others/dynamic.c).
constexpr std::array<std::string_view, 19> without_avx2{
    "Katmai", "Coppermine", "Northwood", "Prescott",   "Banias",     "Atom", "Core2",
    "Penryn", "Dunnington", "Nehalem",   "Athlon",     "Opteron",    "Nano", "Opteron_SSE3",
    "Bobcat", "Barcelona",  "Bulldozer", "Piledriver", "Sandybridge"};

/// The kind whose kernels this CPU should have; null where it is not known to have AVX2.
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

void insist_on_blas_kernels(char** argv) {
  const char* wanted = wanted_kernels();
  constexpr const char* variable = "OPENBLAS_CORETYPE";
  if (wanted == nullptr || std::getenv(variable) != nullptr ||
      std::ranges::count(without_avx2, blas_kernels()) == 0) {
    return;
  }
  const char* self = "/proc/self/exe";
  std::error_code error;
  const std::string file = std::filesystem::read_symlink(self, error).filename();
  if (error || file.starts_with("ld-")) return;  // the loader was told to start the program
  bench::unbind_this_thread();
  if (setenv(variable, wanted, 0) == 0) execv(self, argv);
}

}  // namespace katt::impl
