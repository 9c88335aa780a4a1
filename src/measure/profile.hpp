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

/// Where the time goes between start() and stop(): Kokkos Tools callbacks gather the regions
/// (Kokkos::Profiling::pushRegion) and the kernels inside and outside of them, by their labels.
/// Kokkos waits for all launches before it calls a tool, so that the time of a region or kernel is
/// its own on every backend, and small ones take longer than without. Otherwise nothing is called
/// and nothing costs. Tools that were there before are still called. What other threads launch is
/// not seen. The operators of a model say what each of their calls computes and moves.
class Profiler final : public nn::CallObserver {
 public:
  Profiler();
  ~Profiler() override;
  Profiler(const Profiler&) = delete;
  Profiler& operator=(const Profiler&) = delete;

  /// Throws std::logic_error while a Profiler gathers.
  void start();
  /// Regions that are still open are not counted.
  void stop();

  /// All calls so far and their seconds: parents before their children, siblings in the order of
  /// their first calls.
  [[nodiscard]] std::vector<io::ProfileRow> rows() const;
  /// The same as the mean of so many runs that took `time_s` together.
  [[nodiscard]] io::Profile mean(std::int64_t runs, double time_s) const;

  /// To the region or kernel of that name inside the innermost open one.
  void call(std::string_view name, const nn::CallWork& work) override;

  struct State;

 private:
  std::unique_ptr<State> state_;
};

/// Profiles some runs of a candidate of this process, each after restore(): times and calls are
/// those of one run. `time_s` is about how long a run takes; more short runs are made than long
/// ones.
[[nodiscard]] io::Profile profile(Candidate& candidate, double time_s);

/// Says of everything in a profile that has counted work which of the measured limits it is nearest
/// to, and how near. Matrix products, attention among them, are held against the fastest units for
/// the dtype.
void hold_against(io::Profile& profile, std::span<const io::CeilingRow> ceilings, Backend backend,
                  int threads, Dtype dtype);

/// A profile whose outermost regions are phases, as lines of a table: each phase with the operators
/// and kernels in it, the largest first, and what none of them holds.
[[nodiscard]] std::vector<std::string> table_lines(const io::Profile& profile);

/// "katt::linear 61.2 %, katt::attention 30.1 %, …": the outermost regions and kernels with the
/// largest shares first, and what none of them holds.
[[nodiscard]] std::string shares_text(const io::Profile& profile);

}  // namespace katt::bench
