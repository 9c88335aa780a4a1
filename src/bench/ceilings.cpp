#include "bench/ceilings.hpp"

#include <algorithm>
#include <chrono>
#include <limits>
#include <memory>

#include "bench/machine.hpp"
#include "tile/bf16_units.hpp"
#include "tile/vec.hpp"

namespace katt::bench {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int accumulators =
    12;  ///< latency 4 × two FMA ports = 8 at least, and 16 registers at most

/// Keeps the compiler from merging repeated passes over the same memory.
KOKKOS_FORCEINLINE_FUNCTION void forget_memory() {
  KOKKOS_IF_ON_HOST((asm volatile("" ::: "memory");))
}

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

#if defined(KATT_BF16_TILES)
/// Tile products on four independent accumulators, all operands in registers.
struct AmxKernel {
  static constexpr int products = 4;
  std::int64_t passes;

  void operator()(std::int64_t /*worker*/) const {
    namespace amx = tile::amx;
    alignas(64) std::uint16_t ones[amx::tile_bytes / 2];
    std::fill(std::begin(ones), std::end(ones), std::uint16_t{0x3F80});
    alignas(64) float sums[amx::tile_bytes / 4];
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

/// One worker's part of a buffer: contiguous on the host, interleaved with its neighbours' on a
/// device, where neighbouring workers are lanes of one warp.
struct Part {
  std::int64_t begin, end, step;
};
template <class Exec>
KOKKOS_FORCEINLINE_FUNCTION Part part_of(std::int64_t worker, std::int64_t workers,
                                         std::int64_t floats) {
  if constexpr (is_host_v<Exec>) {
    const std::int64_t each = floats / workers;
    return {worker * each, (worker + 1) * each, tile::lanes_v<Exec>};
  } else {
    return {worker, floats, workers};
  }
}

constexpr int reads_in_flight = 8;

template <class Exec>
struct ReadKernel {
  using Vec = tile::VecOf<Exec>;
  Kokkos::View<float*, typename Exec::memory_space> data, sink;
  std::int64_t workers, passes;

  KOKKOS_FUNCTION void operator()(std::int64_t worker) const {
    const Part part = part_of<Exec>(worker, workers, static_cast<std::int64_t>(data.extent(0)));
    Vec sums[reads_in_flight];
    for (int k = 0; k < reads_in_flight; ++k) sums[k] = Vec(0.0F);
    for (std::int64_t pass = 0; pass < passes; ++pass) {
      const float* source = data.data();
      std::int64_t i = part.begin;
      for (; i + (reads_in_flight - 1) * part.step < part.end; i += reads_in_flight * part.step) {
        for (int k = 0; k < reads_in_flight; ++k) {
          sums[k] = sums[k] + tile::load<Vec>(source + i + k * part.step);
        }
      }
      forget_memory();
    }
    Vec total = sums[0];
    for (int k = 1; k < reads_in_flight; ++k) total = total + sums[k];
    tile::store(&sink(worker * tile::lanes_v<Exec>), total);
  }
};

template <class Exec>
struct CopyKernel {
  using Vec = tile::VecOf<Exec>;
  Kokkos::View<float*, typename Exec::memory_space> source, target;
  std::int64_t workers, passes;

  KOKKOS_FUNCTION void operator()(std::int64_t worker) const {
    const Part part = part_of<Exec>(worker, workers, static_cast<std::int64_t>(source.extent(0)));
    for (std::int64_t pass = 0; pass < passes; ++pass) {
      const float* from = source.data();
      float* to = target.data();
      std::int64_t i = part.begin;
      for (; i + (reads_in_flight - 1) * part.step < part.end; i += reads_in_flight * part.step) {
        for (int k = 0; k < reads_in_flight; ++k) {
          tile::store(to + i + k * part.step, tile::load<Vec>(from + i + k * part.step));
        }
      }
      forget_memory();
    }
  }
};

/// Fewest seconds of a launch, over at least five launches and 20 ms.
template <class Exec, class Kernel>
double best_launch(const Exec& exec, std::int64_t workers, const Kernel& kernel,
                   const std::string& label) {
  Kokkos::RangePolicy<Exec, Kokkos::IndexType<std::int64_t>> policy(exec, 0, workers);
  if constexpr (is_host_v<Exec>) policy.set_chunk_size(1);
  double best = std::numeric_limits<double>::infinity();
  const auto begin = Clock::now();
  for (int launch = 0; launch < 6 || Clock::now() - begin < std::chrono::milliseconds(20);
       ++launch) {
    const auto start = Clock::now();
    Kokkos::parallel_for(label, policy, kernel);
    exec.fence("katt::ceilings::launch");
    const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
    if (launch > 0) best = std::min(best, seconds);  // the first one warms up
  }
  return best;
}

/// Passes that make a launch last about a quarter of a millisecond at `bytes_per_s`: short enough
/// that some launches go undisturbed on a busy machine.
std::int64_t passes_for(double bytes, double bytes_per_s) {
  return std::max<std::int64_t>(1, static_cast<std::int64_t>(0.25e-3 * bytes_per_s / bytes));
}

template <class Exec>
class Bench {
 public:
  using Buffer = Kokkos::View<float*, typename Exec::memory_space>;

  Bench(const Exec& exec, int threads)
      : exec_(exec),
        threads_(threads),
        workers_(is_host_v<Exec> ? std::max(threads, 1) : exec.concurrency()),
        sink_("katt::ceilings::sink", static_cast<std::size_t>(workers_ * lanes)) {}

  std::vector<io::CeilingRow> all() {
    fma();
    bf16();
    if constexpr (is_host_v<Exec>) {
      std::size_t largest = 0;
      for (const CacheLevel& cache : machine().caches) {
        const auto sharing = static_cast<std::size_t>(std::clamp(threads_, 1, cache.shared_by));
        bandwidth("l" + std::to_string(cache.level),
                  cache.bytes / 2 / sharing * static_cast<std::size_t>(workers_));
        const std::size_t instances = (workers_ + cache.shared_by - 1) / cache.shared_by;
        largest = std::max(largest, cache.bytes * instances);
      }
      bandwidth("dram", std::clamp<std::size_t>(4 * largest, 64U << 20U,
                                                available_memory(Backend::openmp) / 4));
    } else {
      bandwidth("dram", std::min<std::size_t>(1U << 30U, available_memory(Backend::cuda) / 4));
    }
    return rows_;
  }

 private:
  static constexpr std::int64_t lanes = tile::lanes_v<Exec>;

  void fma() {
    constexpr std::int64_t passes = is_host_v<Exec> ? 50000 : 4000;
    const double seconds =
        best_launch(exec_, workers_, FmaKernel<Exec>{sink_, passes}, "katt::ceilings::fma");
    const auto operations = static_cast<double>(workers_ * passes * accumulators * lanes * 2);
    add("fma_f32", operations / seconds, "FLOP/s", 0);
  }

  void bf16() {
#if defined(KATT_BF16_TILES)
    if constexpr (is_host_v<Exec>) {
      const auto measure = [&](const auto& kernel, double operations_of_product) {
        const std::string name = matrix_ceiling(Backend::openmp, Dtype::bf16);
        const double seconds = best_launch(exec_, workers_, kernel, "katt::ceilings::" + name);
        const auto products = static_cast<double>(workers_ * kernel.passes * kernel.products);
        add(name, products * operations_of_product / seconds, "FLOP/s", 0);
      };
      using tile::bf16_tiles::UnitName;
      const UnitName unit = tile::bf16_tiles::unit();
      if (unit == UnitName::amx) measure(AmxKernel{10000}, 2.0 * 16 * 16 * 32);
      if (unit == UnitName::dot) measure(DotKernel{50000}, 2.0 * 16 * 2);
    }
#endif
  }

  void bandwidth(const std::string& level, std::size_t bytes) {
    // Whole unrolled steps for every worker, so that what is counted is what is moved.
    const std::int64_t grain = workers_ * lanes * reads_in_flight;
    const auto whole = [&](std::size_t n) {
      return std::max<std::int64_t>(1, static_cast<std::int64_t>(n / sizeof(float)) / grain) *
             grain;
    };
    const std::int64_t floats = whole(bytes);
    const double expected = 20e9 * static_cast<double>(std::max(threads_, 1));
    {
      const Buffer data("katt::ceilings::data", static_cast<std::size_t>(floats));
      const auto set = static_cast<double>(floats * 4);
      const std::int64_t passes = is_host_v<Exec> ? passes_for(set, expected) : 1;
      const double seconds = best_launch(
          exec_, workers_, ReadKernel<Exec>{data, sink_, workers_, passes}, "katt::ceilings::read");
      add("read_" + level, set * static_cast<double>(passes) / seconds, "B/s", floats * 4);
    }
    const std::int64_t half = whole(bytes / 2);
    const Buffer source("katt::ceilings::source", static_cast<std::size_t>(half));
    const Buffer target("katt::ceilings::target", static_cast<std::size_t>(half));
    const auto moved = static_cast<double>(half * 8);
    const std::int64_t passes = is_host_v<Exec> ? passes_for(moved, expected) : 1;
    const double seconds =
        best_launch(exec_, workers_, CopyKernel<Exec>{source, target, workers_, passes},
                    "katt::ceilings::copy");
    add("copy_" + level, moved * static_cast<double>(passes) / seconds, "B/s", half * 8);
  }

  void add(std::string name, double value, std::string unit, std::int64_t bytes) {
    rows_.push_back({std::move(name), value, std::move(unit), threads_, bytes});
  }

  Exec exec_;
  int threads_;
  std::int64_t workers_;
  Buffer sink_;
  std::vector<io::CeilingRow> rows_;
};

/// "l1" … "dram": the first level that holds `bytes`.
std::string level_of(Backend backend, int threads, double bytes) {
  if (backend != Backend::cuda) {
    for (const CacheLevel& cache : machine().caches) {
      const int instances = (std::max(threads, 1) + cache.shared_by - 1) / cache.shared_by;
      if (bytes <= static_cast<double>(cache.bytes) * instances) {
        return "l" + std::to_string(cache.level);
      }
    }
  }
  return "dram";
}

}  // namespace

std::vector<io::CeilingRow> measure_ceilings(Backend backend, int threads) {
  return visit_backend(backend, threads, [&](const auto& exec) {
    return Bench<std::decay_t<decltype(exec)>>(exec, threads).all();
  });
}

std::string matrix_ceiling(Backend backend, Dtype dtype) {
  if (backend == Backend::cuda || dtype != Dtype::bf16) return "fma_f32";
  switch (tile::bf16_tiles::unit()) {
    case tile::bf16_tiles::UnitName::amx: return "amx_bf16";
    case tile::bf16_tiles::UnitName::dot: return "avx512_bf16";
    default: return "fma_f32";
  }
}

NearestCeiling nearest_ceiling(std::span<const io::CeilingRow> ceilings, Backend backend,
                               int threads, const Work& work, double time_s) {
  NearestCeiling nearest{.name = "", .fraction = std::numeric_limits<double>::quiet_NaN()};
  const std::string memory = work.traffic + "_" + level_of(backend, threads, work.bytes);
  for (const io::CeilingRow& ceiling : ceilings) {
    if (ceiling.threads != threads || ceiling.value <= 0) continue;
    const double amount = ceiling.name == work.compute_ceiling ? work.flops
                          : ceiling.name == memory             ? work.bytes
                                                               : 0;
    const double fraction = amount / time_s / ceiling.value;
    if (amount > 0 && !(fraction <= nearest.fraction)) nearest = {ceiling.name, fraction};
  }
  return nearest;
}

std::function<void()> cache_flusher(Backend backend, int threads) {
  return visit_backend(backend, threads, [&](const auto& exec) -> std::function<void()> {
    using Exec = std::decay_t<decltype(exec)>;
    std::size_t bytes = std::size_t{256} << 20U;  // beyond the L2 of any GPU
    if constexpr (is_host_v<Exec>) {
      bytes = std::size_t{32} << 20U;
      for (const CacheLevel& cache : machine().caches) {
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
