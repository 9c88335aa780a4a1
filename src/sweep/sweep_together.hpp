#pragma once

#include <span>

#include "ranks/communicator.hpp"
#include "sweep/sweep.hpp"

namespace katt::bench {

/// run_sweep() of collective operators (op/collective.hpp): the first `ranks` ranks of a point
/// measure it in step, the others sleep until it is done, and rank 0 writes the file. There are no
/// measured ceilings: with all ranks at work none of them has the machine.
///
/// All ranks call it with the same sweep. Rank 0 gets the summary, the others an empty one. Throws
/// InputError on all ranks with the same message when one of them throws it, or plans another sweep
/// than rank 0.
[[nodiscard]] SweepSummary run_sweep_together(const ranks::Communicator& ranks,
                                              const Registry& registry, const SweepRequest& request,
                                              std::span<const PlannedCase> plan,
                                              const SweepOptions& options, Progress& progress,
                                              const StopFlag& stop);

/// True when the ranks measure the operators of a sweep together. Throws InputError when the sweep
/// has both kinds.
[[nodiscard]] bool is_collective(std::span<const SweepEntry> entries);

/// Default number of threads of a rank: the ranks of a host share its cores, bound to some of them
/// or not.
[[nodiscard]] int share_of_cores(const ranks::Communicator& ranks);

/// Gives entries that name no threads this rank's share of the cores of its host.
void share_cores(const ranks::Communicator& ranks, std::span<SweepEntry> entries);

}  // namespace katt::bench
