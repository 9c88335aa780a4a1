#include "sweep/sweep_together.hpp"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/error.hpp"
#include "io/message.hpp"
#include "machine/machine.hpp"
#include "op/collective.hpp"
#include "record/provenance.hpp"
#include "sweep/runner.hpp"
#include "sweep/sweep_ranks.hpp"
#include "sweep/sweep_record.hpp"

namespace katt::bench {
namespace {

using io::impl::MessageReader;
using io::impl::MessageWriter;

/// The remaining work: numbers of cases of the plan, each with the numbers of its configurations.
struct Left {
  std::size_t number = 0;
  std::vector<std::uint64_t> configs;
};

bool same(const Config& a, const Config& b) {
  return a.variant == b.variant && a.setting == b.setting;
}

std::string message_of(std::span<const PlannedCase> plan, std::span<const Task> tasks) {
  std::map<std::string, std::size_t> numbers;
  for (std::size_t i = 0; i < plan.size(); ++i) numbers.emplace(case_key(plan[i]), i);
  MessageWriter message;
  message.add(std::uint64_t{tasks.size()});
  for (const Task& task : tasks) {
    const std::size_t number = numbers.at(case_key(task.planned));
    message.add(std::uint64_t{number}).add(std::uint64_t{task.planned.configs.size()});
    for (const Config& config : task.planned.configs) {
      const auto& all = plan[number].configs;
      const auto place = std::find_if(all.begin(), all.end(),
                                      [&](const Config& one) { return same(one, config); });
      message.add(static_cast<std::uint64_t>(place - all.begin()));
    }
  }
  return std::string(message.bytes());
}

std::vector<Left> left_of(const std::string& text) {
  MessageReader message(text);
  std::vector<Left> all;
  for (auto tasks = message.take<std::uint64_t>(); tasks > 0; --tasks) {
    Left& one = all.emplace_back();
    one.number = message.take<std::uint64_t>();
    for (auto configs = message.take<std::uint64_t>(); configs > 0; --configs) {
      one.configs.push_back(message.take<std::uint64_t>());
    }
  }
  return all;
}

/// Waits until rank 0 has come here. The wait sleeps: MPI's own wait would take processors from the
/// ranks that measure.
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
  const auto start = std::chrono::steady_clock::now();
  check_plan(ranks, plan, request);
  std::optional<SweepRecord> record;
  std::string run;
  std::string text;
  together(ranks, [&] {
    if (ranks.rank() != 0) return;
    record.emplace(registry, request, plan, options, progress);
    text = message_of(plan, record->tasks());
    if (record->tasks().empty()) return;
    const auto cases = cases_of(record->tasks());
    run = record->begin_run(provenance(request, options.command, backends_of(cases)), {});
  });
  Settings settings = request.settings;
  settings.bind = false;     // mpirun has placed the ranks
  settings.profile = false;  // further runs of one rank would leave the others behind
  const StopFlag never(false);
  bool interrupted = false;
  std::size_t done = 0;
  for (const Left& left : left_of(ranks.broadcast_text(text, 0))) {
    // A signal may reach only some of the ranks.
    interrupted = ranks.sum(stop ? 1 : 0) > 0;
    if (interrupted) break;
    PlannedCase planned = plan[left.number];
    const auto all = std::exchange(planned.configs, {});
    for (const std::uint64_t index : left.configs) planned.configs.push_back(all[index]);
    const auto wanted = static_cast<int>(planned.point.integer("ranks"));
    const ranks::Communicator group = ranks.split(ranks.rank() < wanted ? 0 : 1, ranks.rank());
    if (ranks.rank() < wanted) {
      Runner runner(settings, {}, never, group);
      const std::vector<RowResult> rows = runner.run(planned);
      if (record) record->add(record->tasks()[done], rows, run);
    }
    ++done;
    wait_for_first(ranks, wanted);
  }
  if (!record) return {};
  if (!run.empty()) record->end_run(run, interrupted, "{}");
  SweepSummary& summary = record->summary();
  summary.elapsed_s =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return summary;
}

}  // namespace katt::bench
