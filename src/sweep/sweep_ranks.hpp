#pragma once

#include <functional>
#include <span>
#include <string>

#include "ranks/communicator.hpp"
#include "sweep/sweep.hpp"

namespace katt::bench {

/// run_sweep() on the ranks of a group. Rank 0 only hands out the cases and writes the file. The
/// other ranks measure, at most one of a node at a time; a free node takes the next case. With
/// several nodes, the cases with the longest forecast come first. A node makes one run of the file,
/// with its own provenance and ceilings; at the end the rows stand in the order of the plan.
/// Waiting ranks sleep.
///
/// All ranks call it with the same sweep. Rank 0 gets the summary, the others an empty one. Throws
/// InputError on all ranks with the same message when one of them throws it, or plans another sweep
/// than rank 0; std::runtime_error on all ranks when rank 0 cannot write the file.
[[nodiscard]] SweepSummary run_sweep_on_ranks(const ranks::Communicator& ranks,
                                              const Registry& registry, const SweepRequest& request,
                                              std::span<const PlannedCase> plan,
                                              const SweepOptions& options, Progress& progress,
                                              const StopFlag& stop);

/// Throws InputError on every rank when a rank has another text than rank 0; `differs` says how:
/// "plans another sweep". All ranks call it.
void check_alike(const ranks::Communicator& ranks, const std::string& differs,
                 const std::string& mine);

/// Throws InputError, on all ranks, when this one has planned other points than rank 0, or is
/// another program.
void check_plan(const ranks::Communicator& ranks, std::span<const PlannedCase> plan,
                const SweepRequest& request);

/// Calls f on every rank. When f throws on some ranks, all ranks throw the message of the first of
/// them, as InputError or as std::runtime_error. So no rank waits for one that has given up.
void together(const ranks::Communicator& ranks, const std::function<void()>& f);

}  // namespace katt::bench
