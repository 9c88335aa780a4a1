#include "sweep/sweep_together.hpp"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "core/error.hpp"
#include "io/message.hpp"
#include "machine/machine.hpp"
#include "op/collective.hpp"
#include "record/provenance.hpp"
#include "record/row_message.hpp"
#include "sweep/runner.hpp"
#include "sweep/sweep_ranks.hpp"
#include "sweep/sweep_record.hpp"

namespace katt::bench {
namespace {

using io::impl::MessageReader;
using io::impl::MessageWriter;

/// Rank 0 has come here when this returns. The others sleep: what MPI does instead would take the
/// processors from those that measure.
void wait_for_first(const ranks::Communicator& ranks, int idle_from) {
  if (ranks.rank() == 0) {
    for (int rank = idle_from; rank < ranks.size(); ++rank) ranks.send_message({}, rank);
  } else if (ranks.rank() >= idle_from) {
    while (!ranks.has_message()) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    (void)ranks.receive_message();
  }
}

}  // namespace

bool is_collective(std::span<const SweepEntry> entries) {
  const auto by_ranks = [](const SweepEntry& entry) { return is_collective(*entry.op); };
  const auto first = std::find_if(entries.begin(), entries.end(), by_ranks);
  if (first == entries.end()) return false;
  const auto other = std::find_if_not(entries.begin(), entries.end(), by_ranks);
  if (other != entries.end()) {
    throw InputError(first->op->name() + " is measured by all ranks together, " +
                     other->op->name() + " by one at a time: expected a sweep for each");
  }
  return true;
}

int share_of_cores(const ranks::Communicator& ranks) {
  const auto share = static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN)) / ranks.ranks_on_host();
  return std::max(1, std::min(machine().cores, share));
}

void share_cores(const ranks::Communicator& ranks, std::span<SweepEntry> entries) {
  const int share = share_of_cores(ranks);
  for (SweepEntry& entry : entries) {
    const bool has_threads =
        std::ranges::any_of(entry.axes, [](const AxisText& axis) { return axis.key == "threads"; });
    if (has_threads) continue;
    entry.axes.push_back({.key = "threads", .text = std::to_string(share), .where = "threads"});
  }
}

SweepSummary run_sweep_together(const ranks::Communicator& ranks, const Registry& registry,
                                const SweepRequest& request, std::span<const PlannedCase> plan,
                                const SweepOptions& options, Progress& progress,
                                const StopFlag& stop) {
  check_plan(ranks, plan, request);
  std::optional<SweepRecord> record;
  std::string run;
  MessageWriter left;
  together(ranks, [&] {
    if (ranks.rank() != 0) return;
    record.emplace(registry, request, plan, options, progress);
    const auto groups = groups_of(std::span(record->tasks()));
    left.add(std::uint64_t{groups.size()});
    for (const auto& group : groups) {
      left.add(std::uint64_t{group.size()});
      for (const Task& task : group) add(left.add(task.number), task.wanted);
    }
    if (record->tasks().empty()) return;
    const auto cases = cases_of(record->tasks());
    run = record->begin_run(provenance(request, options.command, backends_of(cases)), {});
  });
  Settings settings = request.settings;
  settings.bind = false;     // mpirun has placed the ranks
  settings.profile = false;  // further runs of one rank would leave the others behind
  bool interrupted = false;
  const std::string text = ranks.broadcast_text(std::string(left.bytes()), 0);
  MessageReader message(text);
  const auto groups = message.take<std::uint64_t>();
  for (std::uint64_t done = 0; done < groups; ++done) {
    std::vector<PlannedCase> group_cases(message.take<std::uint64_t>());
    for (PlannedCase& planned : group_cases) {
      const auto number = message.take<std::uint64_t>();
      auto indices = take<Indices>(message);
      planned = wanted_of(plan, number, indices);
    }
    // A signal may come to some of the ranks alone.
    interrupted = ranks.sum(stop ? 1 : 0) > 0;
    if (interrupted) break;
    const auto wanted = static_cast<int>(group_cases.front().point.integer("ranks"));
    const ranks::Communicator group = ranks.split(ranks.rank() < wanted ? 0 : 1, ranks.rank());
    std::vector<CaseRunner::Rows> rows;
    if (ranks.rank() < wanted) rows = CaseRunner(settings, {}, never, group).run(group_cases);
    wait_for_first(ranks, wanted);
    together(ranks, [&] {
      if (record) record->add(groups_of(std::span(record->tasks()))[done], rows, run);
    });
  }
  together(ranks, [&] {
    if (record && !run.empty()) record->end_run(run, interrupted, "{}");
  });
  return record ? record->summary() : SweepSummary{};
}

}  // namespace katt::bench
