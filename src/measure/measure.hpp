#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "machine/affinity.hpp"
#include "memory/tracker.hpp"
#include "op/registry.hpp"
#include "process/stop_flag.hpp"

/// The measuring contract (docs/measuring.md). For the candidates of one case:
///
///   for each candidate: prepare; poison, run, verify      memory is measured here, one at a time
///   for each candidate: warm up; choose how many runs make a sample
///   repeat
///     for each candidate, in random order: (flush) fence, start, run…, fence, stop
///                                          on a device start and stop are events of its own
///   until every median is known to the target, or the time budget is spent
///   for each candidate: poison, run, verify again
///
/// Where the next candidate runs in another process than the last one, the idle threads of that one
/// are waited for until they sleep, and the next one has a run that does not count.
namespace katt::bench {

/// How a case is measured.
struct Settings {
  int min_rounds = 7;
  int max_rounds = 1000;
  int rounds = 0;               ///< exactly so many; 0: until the target or the budget is reached
  double budget_s = 1;          ///< time of the rounds, for each candidate
  double precision = 0.02;      ///< target: half of the 95 % interval of the median, relative to it
  double shortest_s = 50e-6;    ///< a run shorter than this is timed in batches …
  double batch_s = 200e-6;      ///< … of about this length
  bool cold = false;            ///< flush the caches before every sample
  bool bind = true;             ///< bind threads to processors, one each
  bool profile = false;         ///< some further runs tell where the time goes
  std::string peer_program{};   ///< what runs the peers; empty: usual_peer_program()
  double peer_timeout_s = 300;  ///< a peer that is silent for longer has failed
  std::uint64_t seed = 1;       ///< of the inputs and of the order within the rounds
};

/// The largest of the values of all ranks that measure the same case in step (op/collective.hpp),
/// so that they decide alike; empty where a process measures alone.
using Largest = std::function<double(double)>;

/// What measuring one candidate gave.
struct Measured {
  Status status;
  std::vector<double> samples_s;  ///< one a round; a sample is the mean of `inner` runs
  std::vector<double> host_s{};   ///< on a device: what a run cost the host, one a round
  int inner = 1;
  double max_abs_err = 0;  ///< over the rows that were checked, before timing
  double mean_abs_err = 0;
  /// Of prepare and one run in this process, beyond what was live before; nothing where it threw.
  std::optional<memory::Bytes> peak{};
};

/// A candidate of a case and what has been measured of it. Owns the outputs and workspace.
struct Contender {
  std::unique_ptr<Candidate> candidate;  ///< empty where preparing failed
  Measured measured;
  bool on_device = false;    ///< timed by the device's clock
  std::uint64_t number = 0;  ///< for who watches over this process (watch.hpp); 0: nobody's fault
};

/// Prepares a candidate, runs it once on poisoned outputs, measures its memory, and verifies it.
/// Whatever goes wrong becomes the status; nothing is thrown.
/// `on_device`: it runs on a device, by whose clock it is timed.
[[nodiscard]] Contender enter(const std::function<std::unique_ptr<Candidate>()>& prepare,
                              std::uint64_t number = 0, bool on_device = false);

/// Warms up, times the contenders whose status is ok in interleaved rounds, and verifies them
/// again. `flush` empties the caches (called before every sample where settings.cold); `bound` is
/// what this process' threads are bound to. Returns false when `stop` was set; what it measured
/// until then is not to be used. A ranks::Error of a candidate is thrown on.
[[nodiscard]] bool measure(std::span<Contender> contenders, const Settings& settings,
                           const std::function<void()>& flush, const StopFlag& stop,
                           const Bound& bound = Bound(), const Largest& largest = {});

}  // namespace katt::bench
