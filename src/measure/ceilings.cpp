#include "measure/ceilings.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <utility>

#include "machine/machine.hpp"
#include "machine/topology.hpp"
#include "measure/bandwidth.hpp"
#include "measure/device_product.hpp"
#include "op/matrix_ceiling.hpp"
#include "tile/bf16/bf16_units.hpp"
#include "tile/vec/vec.hpp"

namespace katt::bench {
namespace {

constexpr int accumulators =
    12;  ///< latency 4 × two FMA ports = 8 at least, and 16 registers at most

/// acc ← acc · a + b on independent accumulators that stay in registers.
template <class Exec>
struct FmaKernel {
  using Vec = tile::VecOf<Exec>;
  Kokkos::View<float*, typename Exec::memory_space> sink;
  std::int64_t passes;

  KOKKOS_FUNCTION void operator()(std::int64_t worker) const {
    Vec sums[accumulators];
    for (int k = 0; k < accumulators; ++k) sums[k] = Vec(static_cast<float>(k + 1));
    const Vec factor(0.999F);
    const Vec step(0.001F);
    for (std::int64_t pass = 0; pass < passes; ++pass) {
      for (int k = 0; k < accumulators; ++k) sums[k] = tile::fma(sums[k], factor, step);
    }
    Vec total = sums[0];
    for (int k = 1; k < accumulators; ++k) total = total + sums[k];
    tile::store(&sink(worker * tile::lanes_v<Exec>), total);
  }
};

#if defined(KATT_BF16_PANELS)
/// Tile products on four independent accumulators, all operands in registers.
struct AmxKernel {
  static constexpr int products = 4;
  std::int64_t passes;

  void operator()(std::int64_t /*worker*/) const {
    namespace amx = tile::amx;
    alignas(64) std::uint16_t ones[amx::panel_bytes / 2];
    std::fill(std::begin(ones), std::end(ones), std::uint16_t{0x3F80});
    alignas(64) float sums[amx::panel_bytes / 4];
    const amx::Session session;
    amx::load<4>(ones);
    amx::load<5>(ones);
    amx::load<6>(ones);
    amx::load<7>(ones);
    for (std::int64_t pass = 0; pass < passes; ++pass) {
      amx::product_bf16<0, 4, 6>();
      amx::product_bf16<1, 4, 7>();
      amx::product_bf16<2, 5, 6>();
      amx::product_bf16<3, 5, 7>();
    }
    amx::store<0>(sums);
  }
};

/// Dot products of pairs on twelve independent accumulators, all operands in registers.
struct DotKernel {
  static constexpr int products = 12;
  std::int64_t passes;

  void operator()(std::int64_t /*worker*/) const {
    const __m512i ones = _mm512_set1_epi16(0x3F80);
    __m512 sums[products];
    for (auto& sum : sums) sum = _mm512_setzero_ps();
    for (std::int64_t pass = 0; pass < passes; ++pass) {
#pragma GCC unroll 12
      for (auto& sum : sums) asm volatile("vdpbf16ps %1, %1, %0" : "+v"(sum) : "v"(ones));
    }
  }
};
#endif

/// Launches of a measurement: this many, and 20 ms.
constexpr int fewest_launches = 5;
constexpr double least_s = 0.02;

/// Passes that make a launch last about a quarter of a millisecond at `bytes_per_s`: short enough
/// that some launches go undisturbed on a busy machine.
std::int64_t passes_for(double bytes, double bytes_per_s) {
  return std::max<std::int64_t>(1, static_cast<std::int64_t>(0.25e-3 * bytes_per_s / bytes));
}

template <class Exec>
class Bench {
 public:
  Bench(const Exec& exec, int threads, const StopFlag& stop)
      : threads_(threads), stop_(stop), workers_(exec, threads) {}

  std::vector<io::CeilingRow> all() {
    fma();
    bf16();
    if constexpr (is_host_v<Exec>) {
      std::size_t largest = 0;
      for (const CacheLevel& cache : topology().caches) {
        const auto sharing = static_cast<std::size_t>(std::clamp(threads_, 1, cache.shared_by));
        bandwidth("l" + std::to_string(cache.level),
                  cache.bytes / 2 / sharing * static_cast<std::size_t>(workers_.count()));
        const std::size_t instances = (workers_.count() + cache.shared_by - 1) / cache.shared_by;
        largest = std::max(largest, cache.bytes * instances);
      }
      const std::size_t wanted = std::max<std::size_t>(4 * largest, 64U << 20U);
      bandwidth("dram", std::min(wanted, available_memory(Backend::openmp) / 4), 2 * largest);
    } else {
      constexpr std::int64_t extent = 8192;  // three matrices of 128 MiB
      add("mma_bf16", product_flops_s(extent, 5 * least_s), "FLOP/s", 0);
      bandwidth("dram", std::min<std::size_t>(1U << 30U, available_memory(Backend::cuda) / 4));
    }
    return rows_;
  }

 private:
  static constexpr std::int64_t lanes = tile::lanes_v<Exec>;

  template <class Kernel>
  double best_launch(const Kernel& kernel, const std::string& name) const {
    if (stop_) return std::numeric_limits<double>::quiet_NaN();
    return workers_.best_launch(kernel, "katt::ceilings::" + name, fewest_launches, least_s);
  }

  void fma() {
    constexpr std::int64_t passes = is_host_v<Exec> ? 50000 : 4000;
    const double seconds = best_launch(FmaKernel<Exec>{workers_.sink(), passes}, "fma");
    const auto operations =
        static_cast<double>(workers_.count() * passes * accumulators * lanes * 2);
    add("fma_f32", operations / seconds, "FLOP/s", 0);
  }

  void bf16() {
#if defined(KATT_BF16_PANELS)
    if constexpr (is_host_v<Exec>) {
      const auto measure = [&](const auto& kernel, double operations_of_product) {
        const std::string name = matrix_ceiling(Backend::openmp, Dtype::bf16);
        const double seconds = best_launch(kernel, name);
        const auto products =
            static_cast<double>(workers_.count() * kernel.passes * kernel.products);
        add(name, products * operations_of_product / seconds, "FLOP/s", 0);
      };
      using tile::bf16_panels::UnitName;
      const UnitName unit = tile::bf16_panels::unit();
      if (unit == UnitName::amx) measure(AmxKernel{10000}, 2.0 * 16 * 16 * 32);
      if (unit == UnitName::dot) measure(DotKernel{50000}, 2.0 * 16 * 2);
    }
#endif
  }

  /// `least`: with fewer bytes the result would be the bandwidth of another level; the rows are
  /// then NaN.
  void bandwidth(const std::string& level, std::size_t bytes, std::size_t least = 0) {
    using Buffer = impl::Floats<Exec>;
    constexpr Backend where = is_host_v<Exec> ? Backend::openmp : Backend::cuda;
    if (stop_) return;
    if (bytes < least || bytes == 0 || bytes > available_memory(where)) {
      for (const char* name : {"read_", "copy_"}) {
        add(name + level, std::numeric_limits<double>::quiet_NaN(), "B/s", 0);
      }
      return;
    }
    const double expected = 20e9 * static_cast<double>(std::max(threads_, 1));
    const std::int64_t half = workers_.whole_floats(bytes / 2);
    const std::int64_t floats = std::max(workers_.whole_floats(bytes), 2 * half);
    // One buffer for both: to touch memory for the first time takes longest.
    const Buffer data("katt::ceilings::data", static_cast<std::size_t>(floats));
    {
      const auto set = static_cast<double>(floats * 4);
      const std::int64_t passes = is_host_v<Exec> ? passes_for(set, expected) : 1;
      const double seconds = best_launch(
          impl::ReadKernel<Exec>{data, workers_.sink(), workers_.count_for(data.size()), passes},
          "read");
      add("read_" + level, set * static_cast<double>(passes) / seconds, "B/s", floats * 4);
    }
    const Buffer source = Kokkos::subview(data, std::pair(std::int64_t{0}, half));
    const Buffer target = Kokkos::subview(data, std::pair(half, 2 * half));
    const auto moved = static_cast<double>(half * 8);
    const std::int64_t passes = is_host_v<Exec> ? passes_for(moved, expected) : 1;
    const auto copy = [&]<bool Stream>(const std::string& name) {
      const impl::CopyKernel<Exec, Stream> kernel{source, target, workers_.count_for(source.size()),
                                                  passes};
      add(name + level, moved * static_cast<double>(passes) / best_launch(kernel, "copy"), "B/s",
          half * 8);
    };
    copy.template operator()<false>("copy_");
    if constexpr (tile::can_stream_v<Exec>) {
      if (level == "dram") copy.template operator()<true>("stream_copy_");
    }
  }

  void add(std::string name, double value, std::string unit, std::int64_t bytes) {
    rows_.push_back({std::move(name), value, std::move(unit), threads_, bytes});
  }

  int threads_;
  const StopFlag& stop_;
  impl::Workers<Exec> workers_;
  std::vector<io::CeilingRow> rows_;
};

constexpr double noise = 0.9;  ///< between two measurements of one limit

/// "l1" … "dram": the first level that holds `bytes`.
std::string level_of(Backend backend, int threads, double bytes) {
  if (backend != Backend::cuda) {
    for (const CacheLevel& cache : topology().caches) {
      const int instances = (std::max(threads, 1) + cache.shared_by - 1) / cache.shared_by;
      if (bytes <= static_cast<double>(cache.bytes) * instances) {
        return "l" + std::to_string(cache.level);
      }
    }
  }
  return "dram";
}

}  // namespace

std::vector<io::CeilingRow> measure_ceilings(Backend backend, int threads, const StopFlag& stop) {
  if (is_emulated(backend)) {
    constexpr double nan = std::numeric_limits<double>::quiet_NaN();
    return {{"fma_f32", nan, "FLOP/s", threads, 0},
            {"mma_bf16", nan, "FLOP/s", threads, 0},
            {"read_dram", nan, "B/s", threads, 0},
            {"copy_dram", nan, "B/s", threads, 0}};
  }
  return visit_backend(backend, threads, [&](const auto& exec) {
    const auto measure = [&] {
      return Bench<std::decay_t<decltype(exec)>>(exec, threads, stop).all();
    };
    std::vector<io::CeilingRow> rows = measure();
    for (int again = 0; again < 2 && !stop && !contradicted_ceilings(rows).empty(); ++again) {
      const std::vector<io::CeilingRow> others = measure();
      for (std::size_t i = 0; i < std::min(rows.size(), others.size()); ++i) {
        rows[i].value = std::fmax(rows[i].value, others[i].value);
      }
    }
    if (stop) rows.clear();
    for (const std::size_t i : contradicted_ceilings(rows)) {
      rows[i].value = std::numeric_limits<double>::quiet_NaN();
    }
    return rows;
  });
}

std::vector<std::size_t> contradicted_ceilings(std::span<const io::CeilingRow> ceilings) {
  // Kind, and place from the cores outwards: a row is at least as fast as every one of its kind
  // that lies further out. An empty kind is compared with nothing.
  const auto place = [](const std::string& name) -> std::pair<std::string, int> {
    const std::string kind = name.substr(0, name.find('_'));
    if (name == "fma_f32") return {"arithmetic", 1};
    if (name.ends_with("_bf16")) return {"arithmetic", 0};
    if (kind != "read" && kind != "copy") return {};
    const std::string level = name.substr(kind.size() + 1);
    return {kind, level == "dram" ? std::numeric_limits<int>::max() : level.back() - '0'};
  };
  std::vector<std::size_t> found;
  for (std::size_t i = 0; i < ceilings.size(); ++i) {
    const auto here = place(ceilings[i].name);
    const bool slower = std::ranges::any_of(ceilings, [&](const io::CeilingRow& other) {
      const auto there = place(other.name);
      return !here.first.empty() && there.first == here.first && there.second > here.second &&
             other.threads == ceilings[i].threads && ceilings[i].value < noise * other.value;
    });
    if (slower) found.push_back(i);
  }
  return found;
}

NearestCeiling nearest_ceiling(std::span<const io::CeilingRow> ceilings, Backend backend,
                               int threads, const Work& work, double time_s,
                               double bandwidth_fraction) {
  NearestCeiling nearest;
  const std::string memory = work.traffic + "_" + level_of(backend, threads, work.bytes);
  for (const io::CeilingRow& ceiling : ceilings) {
    if (ceiling.threads != threads || !(ceiling.value > 0)) continue;
    const bool bandwidth = ceiling.name == memory;
    const double amount = ceiling.name == work.compute_ceiling ? work.flops
                          : bandwidth                          ? work.bytes
                                                               : 0;
    const double fraction = bandwidth && std::isfinite(bandwidth_fraction)
                                ? bandwidth_fraction
                                : amount / time_s / ceiling.value;
    if (amount > 0 && !(fraction <= nearest.fraction)) {
      nearest = {.name = ceiling.name, .fraction = fraction, .bandwidth = bandwidth};
    }
  }
  return nearest;
}

std::string impossible_rate(std::span<const io::CeilingRow> ceilings, Backend backend, Dtype dtype,
                            int threads, const Work& work, double time_s) {
  const std::string memory = work.traffic + "_";
  const std::string level = memory + level_of(backend, threads, work.bytes);
  const io::CeilingRow* nearer = nullptr;
  const io::CeilingRow* unit = nullptr;
  double peak = 0;
  const bool is_narrow = dtype != Dtype::f32;
  bool reached = false;  // the level: the rows go from the cores outwards
  for (const io::CeilingRow& ceiling : ceilings) {
    if (ceiling.threads != threads) continue;
    reached = reached || ceiling.name == level;  // also where it could not be measured
    if (!(ceiling.value > 0)) continue;
    if (!reached && ceiling.name.starts_with(memory)) nearer = &ceiling;
    if (ceiling.unit != "FLOP/s" || work.compute_ceiling.empty()) continue;
    if (!is_narrow && ceiling.name != work.compute_ceiling) continue;
    const double value = ceiling.value * (is_narrow && ceiling.name == "fma_f32" ? 2 : 1);
    if (value <= peak) continue;
    peak = value;
    unit = &ceiling;
  }
  char text[160] = "";
  if (unit != nullptr && noise * work.flops / time_s > peak) {
    std::snprintf(text, sizeof text, "%.4g TFLOP/s, expected at most the %.4g TFLOP/s of %s",
                  work.flops / time_s * 1e-12, peak * 1e-12, unit->name.c_str());
  } else if (reached && nearer != nullptr && noise * work.bytes / time_s > nearer->value) {
    std::snprintf(text, sizeof text, "%.4g GB/s, expected at most the %.4g GB/s of %s",
                  work.bytes / time_s * 1e-9, nearer->value * 1e-9, nearer->name.c_str());
  }
  return text;
}

std::function<void()> cache_flusher(Backend backend, int threads) {
  return visit_backend(backend, threads, [&](const auto& exec) -> std::function<void()> {
    using Exec = std::decay_t<decltype(exec)>;
    std::size_t bytes = std::size_t{256} << 20U;  // beyond the L2 of any GPU
    if constexpr (is_host_v<Exec>) {
      bytes = std::size_t{32} << 20U;
      for (const CacheLevel& cache : topology().caches) {
        const auto instances =
            static_cast<std::size_t>((threads + cache.shared_by - 1) / cache.shared_by);
        bytes = std::max(bytes, 2 * cache.bytes * std::max<std::size_t>(instances, 1));
      }
    }
    const Kokkos::View<char*, typename Exec::memory_space> buffer("katt::bench::flush", bytes);
    return [exec, buffer, value = char{0}]() mutable {
      Kokkos::deep_copy(exec, buffer, ++value);
      exec.fence("katt::bench::flush");
    };
  });
}

}  // namespace katt::bench
