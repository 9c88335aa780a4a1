#pragma once

#include <cstddef>
#include <functional>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "io/hdf5/result_file.hpp"
#include "op/registry.hpp"
#include "process/stop_flag.hpp"

namespace katt::bench {

/// Measures the best performance of the machine in one to five seconds, by its last cache: each
/// number is the best of repeated rounds, since disturbances only make a round slower.
///   fma_f32             FLOP/s of independent f32 fused multiply-adds on registers, 2 FLOPs a lane
///   amx_bf16            FLOP/s of bf16 tile products on registers, where this process may use AMX
///   avx512_bf16         FLOP/s of bf16 dot products (VDPBF16PS) on registers, where the CPU has
///                       them and no AMX
///   read_l1 … read_dram B/s of summing a working set that stays in that level: half of each cache,
///                       four times the last one for dram
///   copy_l1 … copy_dram the same for copying one half of the set to the other with ordinary
///                       stores: bytes read + written
///   stream_copy_dram    the same with streaming stores, where the vectors have them
/// Threads that share a cache get a part of it each; levels that the machine lacks are left out. A
/// GPU has fma_f32, mma_bf16 (a large product of bf16 matrices by cuBLASLt), read_dram and
/// copy_dram; all are NaN for a device that is_emulated(). While some are contradicted_ceilings()
/// all are measured again, up to twice, and the best of each counts; what is still contradicted
/// then is NaN. Empty when `stop` was set meanwhile.
[[nodiscard]] std::vector<io::CeilingRow> measure_ceilings(Backend backend, int threads,
                                                           const StopFlag& stop = never);

/// The rows that another one of the same number of threads shows to be disturbed: a cache slower
/// than what lies behind it, for reads or for copies, or a matrix unit slower than the vectors, by
/// more than a tenth. katt_report/limits.py judges files by the same rule.
[[nodiscard]] std::vector<std::size_t> contradicted_ceilings(
    std::span<const io::CeilingRow> ceilings);

/// The measured limit that is nearest to a measured time.
struct NearestCeiling {
  std::string name{};                                          ///< empty when none applies
  double fraction = std::numeric_limits<double>::quiet_NaN();  ///< fraction of that limit
  bool bandwidth = false;                                      ///< a limit of memory or a cache
};

/// The larger of flops / time / peak and bytes / time / bandwidth. The bandwidth is that of the
/// level that holds the least traffic of the work at once. When moves of as many bytes were
/// interleaved with the work (bandwidth_candidate()), `bandwidth_fraction` is the ratio of the
/// times.
[[nodiscard]] NearestCeiling nearest_ceiling(
    std::span<const io::CeilingRow> ceilings, Backend backend, int threads, const Work& work,
    double time_s, double bandwidth_fraction = std::numeric_limits<double>::quiet_NaN());

/// Why the time of some work cannot be: more arithmetic or traffic in it than the measured limits
/// allow; empty when it can. In 16 bits arithmetic counts against the fastest unit, or twice the
/// vectors' rate in f32. Traffic counts against the level one nearer to the cores than the one that
/// holds it, since that may hold a part; against none where there is no such level. A limit may be
/// a tenth higher than measured.
[[nodiscard]] std::string impossible_rate(std::span<const io::CeilingRow> ceilings, Backend backend,
                                          Dtype dtype, int threads, const Work& work,
                                          double time_s);

/// A function that empties the caches of a backend by writing a buffer larger than all of them. It
/// owns the buffer.
[[nodiscard]] std::function<void()> cache_flusher(Backend backend, int threads);

}  // namespace katt::bench
