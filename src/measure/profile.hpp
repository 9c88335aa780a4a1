#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "io/hdf5/result_file.hpp"
#include "measure/measure.hpp"
#include "op/observer.hpp"

namespace katt::bench {

/// A profile of the time between start() and stop(): Kokkos Tools callbacks gather the regions
/// (Kokkos::Profiling::pushRegion) and the kernels inside and outside of them, by their labels.
/// Kokkos waits for all launches before it calls a tool, so the time of a region or kernel is its
/// own on every backend, and small ones take longer than without a profile. Outside of start() and
/// stop() there are no callbacks and no cost. Earlier tools still get their calls. Launches of
/// other threads are not seen. The operators of a model report the work of each of their calls.
class Profiler final : public nn::CallObserver {
 public:
  Profiler();
  ~Profiler() override;
  Profiler(const Profiler&) = delete;
  Profiler& operator=(const Profiler&) = delete;

  /// Throws std::logic_error while a Profiler gathers.
  void start();
  /// Regions that are still open do not count.
  void stop();

  /// All calls so far and their seconds: parents before their children, siblings in the order of
  /// their first calls.
  [[nodiscard]] std::vector<io::ProfileRow> rows() const;
  /// The same as the mean of this many runs, which took `time_s` together.
  [[nodiscard]] io::Profile mean(std::int64_t runs, double time_s) const;

  /// Adds work to the region or kernel of that name inside the innermost open one.
  void call(std::string_view name, const nn::CallWork& work) override;

  struct State;

 private:
  std::unique_ptr<State> state_;
};

/// Profiles some runs of a candidate of this process, each after restore(): times and calls are
/// those of one run. `time_s` is the approximate time of a run: short runs are repeated more often
/// than long ones.
[[nodiscard]] io::Profile profile(Candidate& candidate, double time_s);

/// Sets, for each entry of a profile with counted work, the nearest measured limit and its
/// fraction. Matrix products and attention are compared with the fastest units for the dtype.
void hold_against(io::Profile& profile, std::span<const io::CeilingRow> ceilings, Backend backend,
                  int threads, Dtype dtype);

/// A profile whose outermost regions are phases, as lines of a table: each phase with its operators
/// and kernels, the largest first, and the rest of its time.
[[nodiscard]] std::vector<std::string> table_lines(const io::Profile& profile);

/// "katt::linear 61.2 %, katt::attention 30.1 %, …": the outermost regions and kernels, the largest
/// shares first, and the rest.
[[nodiscard]] std::string shares_text(const io::Profile& profile);

}  // namespace katt::bench
