#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <type_traits>

#include <Kokkos_Core.hpp>

#include "core/stopwatch.hpp"
#include "measure/device_clock.hpp"
#include "op/registry.hpp"
#include "tile/rows/stream.hpp"
#include "tile/vec/vec.hpp"

/// Reading and copying memory as fast as the machine can.
namespace katt::bench {

/// Reads as many bytes as a case has to move, or copies one half of them to the other, to compare a
/// kernel's time with it in the same rounds and with the same caches. Rounds `bytes` down to whole
/// vectors of every thread, and sets `moved_bytes` to the result.
[[nodiscard]] std::unique_ptr<Candidate> bandwidth_candidate(Backend backend, int threads,
                                                             const std::string& traffic,
                                                             double bytes, double& moved_bytes);

namespace impl {

/// The unit that a worker moves at a time: a vector on the host; 16 bytes, the widest load, on a
/// device.
struct alignas(16) Quad {
  float x = 0, y = 0, z = 0, w = 0;
  KOKKOS_FORCEINLINE_FUNCTION friend Quad operator+(const Quad& a, const Quad& b) {
    return {a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w};
  }
};
template <class Exec>
using Word = std::conditional_t<is_host_v<Exec>, tile::VecOf<Exec>, Quad>;
template <class Exec>
inline constexpr std::int64_t word_floats = is_host_v<Exec> ? tile::lanes_v<Exec> : 4;

template <class Exec>
KOKKOS_FORCEINLINE_FUNCTION Word<Exec> load_word(const float* source) {
  if constexpr (is_host_v<Exec>) return tile::load<tile::VecOf<Exec>>(source);
  else return *reinterpret_cast<const Quad*>(source);
}
template <class Exec, bool Stream>
KOKKOS_FORCEINLINE_FUNCTION void store_word(float* target, const Word<Exec>& word) {
  if constexpr (is_host_v<Exec>) tile::store_to<Stream>(target, word);
  else *reinterpret_cast<Quad*>(target) = word;
}

/// Number of a worker's loads in flight at a time, before the first one is used: on a device 64
/// bytes a thread, 128 KiB a multiprocessor, few enough to keep all its threads resident.
template <class Exec>
inline constexpr int reads_in_flight = is_host_v<Exec> ? 8 : 4;

/// Keeps the compiler from merging repeated passes over the same memory.
KOKKOS_FORCEINLINE_FUNCTION void forget_memory() {
  KOKKOS_IF_ON_HOST((asm volatile("" ::: "memory");))
}

/// One worker's part of a buffer: contiguous on the host. On a device `neighbours` workers share a
/// contiguous tile word by word, and a worker has one tile: with new blocks coming as others end the
/// memory is busier than with resident blocks that walk over it.
struct Part {
  std::int64_t begin, end, step;
};
inline constexpr std::int64_t neighbours = 256;
template <class Exec>
KOKKOS_FORCEINLINE_FUNCTION Part part_of(std::int64_t worker, std::int64_t workers,
                                         std::int64_t floats) {
  if constexpr (is_host_v<Exec>) {
    const std::int64_t each = floats / workers;
    return {worker * each, (worker + 1) * each, word_floats<Exec>};
  } else {
    constexpr std::int64_t step = neighbours * word_floats<Exec>;
    const std::int64_t begin = worker / neighbours * step * reads_in_flight<Exec>;
    return {begin + worker % neighbours * word_floats<Exec>, begin + step * reads_in_flight<Exec>,
            step};
  }
}

template <class Exec>
using Floats = Kokkos::View<float*, typename Exec::memory_space>;

/// Sums `data` as many times as given; `sink` takes a vector of each worker.
template <class Exec>
struct ReadKernel {
  static constexpr int reads = reads_in_flight<Exec>;
  Floats<Exec> data, sink;
  std::int64_t workers, passes;

  KOKKOS_FUNCTION void operator()(std::int64_t worker) const {
    const Part part = part_of<Exec>(worker, workers, static_cast<std::int64_t>(data.extent(0)));
    Word<Exec> sums[reads] = {};
    for (std::int64_t pass = 0; pass < passes; ++pass) {
      const float* source = data.data();
      std::int64_t i = part.begin;
      for (; i + (reads - 1) * part.step < part.end; i += reads * part.step) {
        Word<Exec> words[reads];
        for (int k = 0; k < reads; ++k) words[k] = load_word<Exec>(source + i + k * part.step);
        for (int k = 0; k < reads; ++k) sums[k] = sums[k] + words[k];
      }
      forget_memory();
    }
    Word<Exec> total = sums[0];
    for (int k = 1; k < reads; ++k) total = total + sums[k];
    if constexpr (is_host_v<Exec>) {
      tile::store(&sink(worker * tile::lanes_v<Exec>), total);
    } else {  // a store of every worker would be traffic that does not count
      const float sum = total.x + total.y + total.z + total.w;
      if (sum > Kokkos::Experimental::finite_max_v<float>) sink(0) = sum;
    }
  }
};

/// Copies `source` to `target` as many times as given, with ordinary or with streaming stores. All
/// loads of a step come before its first store, because that store might write an address that a
/// later load reads.
template <class Exec, bool Stream = false>
struct CopyKernel {
  static constexpr int reads = reads_in_flight<Exec>;
  Floats<Exec> source, target;
  std::int64_t workers, passes;

  KOKKOS_FUNCTION void operator()(std::int64_t worker) const {
    const Part part = part_of<Exec>(worker, workers, static_cast<std::int64_t>(source.extent(0)));
    for (std::int64_t pass = 0; pass < passes; ++pass) {
      const float* from = source.data();
      float* to = target.data();
      std::int64_t i = part.begin;
      for (; i + (reads - 1) * part.step < part.end; i += reads * part.step) {
        Word<Exec> words[reads];
        for (int k = 0; k < reads; ++k) words[k] = load_word<Exec>(from + i + k * part.step);
        for (int k = 0; k < reads; ++k) store_word<Exec, Stream>(to + i + k * part.step, words[k]);
      }
      forget_memory();
    }
    if constexpr (Stream) tile::stream_fence();
  }
};

/// Launches kernels on all threads, one worker each; those that move memory on a device with as
/// many workers as there are parts.
template <class Exec>
class Workers {
 public:
  Workers(Exec exec, int threads)
      : exec_(std::move(exec)),
        count_(is_host_v<Exec> ? std::max(threads, 1) : exec_.concurrency()),
        sink_("katt::bench::sink", static_cast<std::size_t>(count_ * tile::lanes_v<Exec>)) {}

  [[nodiscard]] std::int64_t count() const { return count_; }
  [[nodiscard]] const Floats<Exec>& sink() const { return sink_; }

  /// Workers that move this many floats, whole_floats() of something.
  [[nodiscard]] std::int64_t count_for(std::size_t floats) const {
    return is_host_v<Exec> ? count_ : static_cast<std::int64_t>(floats) / part_floats;
  }
  /// Number of whole unrolled steps of every worker in this many bytes, at least one, so that the
  /// counted bytes equal the moved bytes.
  [[nodiscard]] std::int64_t whole_floats(std::size_t bytes) const {
    const std::int64_t grain = (is_host_v<Exec> ? count_ : neighbours) * part_floats;
    return std::max<std::int64_t>(1, static_cast<std::int64_t>(bytes / sizeof(float)) / grain) *
           grain;
  }

  template <class Kernel>
  void launch(const Kernel& kernel, const std::string& label) const {
    std::int64_t items = count_;
    if constexpr (requires { kernel.workers; }) items = kernel.workers;
    Kokkos::RangePolicy<Exec, Kokkos::IndexType<std::int64_t>> policy(exec_, 0, items);
    if constexpr (is_host_v<Exec>) policy.set_chunk_size(1);
    Kokkos::parallel_for(label, policy, kernel);
  }
  void fence() const { exec_.fence("katt::bench::bandwidth"); }

  /// Shortest time of a launch in seconds, by the clock of a device there, after one launch that
  /// warms up: over at least this many launches, and over at least `least_s`.
  template <class Kernel>
  [[nodiscard]] double best_launch(const Kernel& kernel, const std::string& label, int launches,
                                   double least_s) const {
    launch(kernel, label);
    fence();
    double best = std::numeric_limits<double>::infinity();
    const Stopwatch all;
    for (int i = 0; i < launches || all.seconds() < least_s; ++i) {
      best = std::min(best, launch_s(kernel, label));
    }
    return best;
  }

 private:
  /// Floats of a worker's step.
  static constexpr std::int64_t part_floats = word_floats<Exec> * reads_in_flight<Exec>;

  template <class Kernel>
  double launch_s(const Kernel& kernel, const std::string& label) const {
    if constexpr (is_host_v<Exec>) {
      const Stopwatch watch;
      launch(kernel, label);
      fence();
      return watch.seconds();
    } else {
      DeviceClock clock;
      clock.start();
      launch(kernel, label);
      return clock.seconds();
    }
  }

  Exec exec_;
  std::int64_t count_;
  Floats<Exec> sink_;
};

}  // namespace impl

}  // namespace katt::bench
