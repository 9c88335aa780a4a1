#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "io/hdf5/result_file.hpp"
#include "measure/measure.hpp"
#include "plan/plan.hpp"
#include "process/watch.hpp"
#include "ranks/communicator.hpp"
#include "record/results.hpp"
#include "sweep/peer.hpp"

namespace katt::bench {

/// The limits of this machine for every number of threads of a plan, those alone that were measured
/// before `stop` was set.
[[nodiscard]] std::vector<io::CeilingRow> measure_ceilings(std::span<const PlannedCase> plan,
                                                           bool bind, const StopFlag& stop);

/// The configurations of a case to measure together, without those that were refused before the
/// inputs exist: these are already rows. The smallest come first, so that a large one never crowds
/// out others.
struct Admission {
  std::vector<std::size_t> admitted;  ///< indices into planned.configs, in their order
  std::map<std::size_t, RowResult> refused;
  std::size_t bytes = 0;  ///< forecast of what is admitted, with the inputs
};

/// Measures cases, or groups of them, one after the other on this machine.
class CaseRunner {
 public:
  /// `group`: the ranks that measure the cases of collective operators in step, all with the same
  /// settings; all of them call run() with the same cases. `doing` gets the current activity of a
  /// case.
  using Doing = std::function<void(const PlannedCase&, const std::string&)>;
  CaseRunner(const Settings& settings, std::vector<io::CeilingRow> ceilings, const StopFlag& stop,
             ranks::Communicator group = {}, Doing doing = {});

  using Rows = std::vector<RowResult>;

  /// The rows of each case of a group (groups_of()) in the order of its configurations; empty when
  /// it was interrupted. A failed or refused configuration is a row with its reason. Cases that do
  /// not fit in memory together are measured one after the other: `note` of their rows says so.
  [[nodiscard]] std::vector<Rows> run(std::span<const PlannedCase> group);

  /// The description of the peers that ran, by themselves, as JSON.
  [[nodiscard]] std::string about_peers() const { return peers_.about(); }

 private:
  struct Entered;
  [[nodiscard]] std::vector<Rows> measure_together(std::span<const PlannedCase> group,
                                                   std::span<const Admission> admissions);
  /// Makes the inputs of a case and readies its configurations. `slot`: its number in the group.
  void enter_case(const PlannedCase& planned, std::span<const std::size_t> admitted,
                  std::size_t slot, const Bound& bound, Entered& entered,
                  std::vector<Contender>& contenders);
  /// A row above its ceilings, when these are still below it measured again, becomes suspect.
  void hold_against_ceilings(const Point& point, RowResult& row);
  /// The rows of a case that was measured.
  void finish_case(const PlannedCase& planned, std::span<Contender> contenders, Entered& entered);
  [[nodiscard]] std::unique_ptr<Case> make_case(const PlannedCase& planned) const;
  /// The group's largest value; this process' own value when it is alone.
  [[nodiscard]] double largest(double value) const;
  void tell(const PlannedCase& planned, const std::string& what) const;
  /// True when bandwidth limits a case, and its bytes may be moved once more beside it.
  [[nodiscard]] bool moves_memory(const Point& point, const Work& work) const;

  Settings settings_;
  std::vector<io::CeilingRow> ceilings_;
  const StopFlag& stop_;
  ranks::Communicator group_;
  Peers peers_;
  Doing doing_;
  Faults faults_ = watch::faults();
  std::uint64_t case_number_ = 0;
};

}  // namespace katt::bench
