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

/// The limits of this machine for every number of threads of a plan.
[[nodiscard]] std::vector<io::CeilingRow> measure_ceilings(std::span<const PlannedCase> plan,
                                                           bool bind);

/// Measures cases one after the other on this machine.
class CaseRunner {
 public:
  /// `group`: the ranks that measure the cases of collective operators in step, all with the same
  /// settings; all of them call run() with the same cases. `doing` gets the current activity of a
  /// case.
  using Doing = std::function<void(const PlannedCase&, const std::string&)>;
  CaseRunner(const Settings& settings, std::vector<io::CeilingRow> ceilings, const StopFlag& stop,
             ranks::Communicator group = {}, Doing doing = {});

  /// The rows of a case in the order of its configurations; empty when it was interrupted. A failed
  /// or refused configuration is a row with its reason.
  [[nodiscard]] std::vector<RowResult> run(const PlannedCase& planned);

  /// The description of the peers that ran, by themselves, as JSON.
  [[nodiscard]] std::string about_peers() const { return peers_.about(); }

 private:
  void measure_case(const PlannedCase& planned, const std::vector<std::size_t>& admitted,
                    std::map<std::size_t, RowResult>& rows);
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
