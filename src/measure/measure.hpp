#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "machine/affinity.hpp"
#include "measure/counters/meter.hpp"
#include "memory/tracker.hpp"
#include "op/registry.hpp"
#include "process/candidate_file.hpp"
#include "process/stop_flag.hpp"

/// The measuring contract (docs/measuring.md). For the candidates of one case, or of the points of
/// a group:
///
///   for each candidate: prepare; poison, run, verify      memory is measured here, one at a time
///   for each candidate: warm up; choose how many runs make a sample
///   repeat
///     change inputs                                        fresh_inputs.hpp
///     for each candidate, in random order: (flush) fence, start, run…, fence, stop
///                                          counters are read before and after that (meter.hpp);
///                                          on a device start and stop are events of its own,
///                                          behind a kernel that hides the latency of the launch
///     in rounds that nobody knows before: verify the outputs
///   until every median is known to the target, or the time budget is spent
///   change all inputs; for each candidate: poison, run, verify again     not of those that left a race
///
/// When the next candidate runs in another process than the last one, the loop waits until the idle
/// threads of the last process sleep. A candidate in another process, or at another point, first
/// makes a run that does not count. A round takes the points of a group one after the other, in
/// random order.
namespace katt::bench {

/// Settings of the measurement of a case.
struct Settings {
  int min_rounds = 7;
  int max_rounds = 1000;
  int rounds = 0;             ///< exactly this many; 0: until the target or the budget is reached
  double budget_s = 1;        ///< time of the rounds, for each candidate
  double precision = 0.02;    ///< target: half of the 95 % interval of the median, relative to it
  double shortest_s = 50e-6;  ///< runs shorter than this are timed in batches …
  double batch_s = 200e-6;    ///< … of about this length
  double device_batch_s = 2e-3;  ///< both of these for runs on a device
  bool cold = false;             ///< flush the caches before every sample
  bool bind = true;              ///< bind threads to processors, one each
  int threads = 1;               ///< of this process' candidates, whose work the counters count
  bool profile = false;          ///< some further runs take a profile
  std::string peer_program{};    ///< program that runs the peers; empty: usual_peer_program()
  double peer_timeout_s = 300;   ///< a peer that is silent for longer has failed
  std::map<std::string, CandidateFile> candidates{};  ///< kernels of the user, by name
  std::map<std::string, std::string> score_rules{};   ///< SHA-256 of the user's files, by name
  std::string
      candidate_program{};  ///< program that runs candidates in Python; empty: the usual one
  bool untrusted = false;   ///< candidates and peers run in the cage of process/sandbox.hpp
  std::uint64_t seed = 1;   ///< seed of the inputs and of the order within the rounds
  double paired_goal = 0;   ///< of paired points: expected rate relative to the reference; 0: none
  bool race = false;        ///< the settings of a variant race, where `rounds` is 0 (race.hpp)
};

/// The largest value among all ranks that measure the same case in step (op/collective.hpp), so
/// that they decide alike; empty when a process measures alone.
using Largest = std::function<double(double)>;

/// The measurements of one candidate.
struct Measured {
  Status status;
  std::vector<double> samples_s;      ///< one sample a round; a sample is the mean of `inner` runs
  std::vector<double> host_s{};       ///< on a device: host seconds of a run, one a round
  std::vector<double> sm_clock_hz{};  ///< on a device, if known: behind the run, one a round
  std::vector<double> claimed_s{};    ///< of another process: seconds of a run by its own clock …
  std::vector<double> request_s{};    ///< … and by that of this process, of all runs of a sample
  EffortLog effort{};                 ///< counts of the processor; empty on a device and of a peer
  int inner = 1;
  /// Over the rows that were checked, before timing; NaN where it did not come so far.
  double max_abs_err = std::numeric_limits<double>::quiet_NaN();
  double mean_abs_err = std::numeric_limits<double>::quiet_NaN();
  double worst_abs_err = 0;  ///< the largest of all checks, with other inputs, too
  /// Memory of prepare and one run in this process, beyond the bytes that were live before; empty
  /// when it threw.
  std::optional<memory::Bytes> peak{};
};

/// A candidate of a case with its measurements. Owns the outputs and workspace.
struct Contender {
  std::unique_ptr<Candidate> candidate;  ///< empty when preparing failed
  Measured measured;
  bool on_device = false;    ///< timed by the device's clock
  std::uint64_t number = 0;  ///< number for the watching process (watch.hpp); 0: nobody's fault
  std::size_t point = 0;     ///< which point of the group
  Case* inputs = nullptr;    ///< whose inputs change between rounds; nothing: they stay
  std::string left{};  ///< why it left a race: it takes no part in later rounds; empty: it did not
};

/// Called after every round with all contenders; may set `left` of some. True ends the rounds.
using AfterRound = std::function<bool(std::span<Contender>)>;

/// Prepares a candidate, runs it once on poisoned outputs, measures its memory, and verifies it.
/// Every failure becomes the status; the function does not throw. `on_device`: the candidate runs
/// on a device, and the device's clock times it.
[[nodiscard]] Contender enter(const std::function<std::unique_ptr<Candidate>()>& prepare,
                              std::uint64_t number = 0, bool on_device = false);

/// Warms up, times the contenders whose status is ok in interleaved rounds, and verifies them
/// again. `flush` empties the caches (called before every sample when settings.cold); `bound` holds
/// the binding of this process' threads. Returns false when `stop` was set; the caller must not use
/// the measurements then. With an `after_round` the rounds end when it says so, or when the budget of
/// all contenders is spent. Rethrows a candidate's ranks::Error.
[[nodiscard]] bool measure(std::span<Contender> contenders, const Settings& settings,
                           const std::function<void()>& flush, const StopFlag& stop,
                           const Bound& bound = Bound(), const Largest& largest = {},
                           const AfterRound& after_round = {});

}  // namespace katt::bench
