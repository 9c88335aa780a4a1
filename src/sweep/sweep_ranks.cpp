#include "sweep/sweep_ranks.hpp"

#include <algorithm>
#include <chrono>
#include <deque>
#include <functional>
#include <map>
#include <numeric>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>

#include <nlohmann/json.hpp>

#include "core/build_info.hpp"
#include "core/error.hpp"
#include "core/text.hpp"
#include "io/outputs.hpp"
#include "record/provenance.hpp"
#include "record/row_message.hpp"
#include "sweep/runner.hpp"
#include "sweep/sweep_record.hpp"

/// The messages, and what each holds after its kind:
///
///   rank → 0   hello     name of the node
///              surveyed  provenance and ceilings of the node
///              measured  number of the group of tasks, number of its tasks (0: interrupted), and
///                        of each: threads of the point, indices of the configurations, their
///                        rows; peers
///   0 → rank   survey
///              measure   number of the group, number of its tasks, and of each: number of its case
///                        in the plan, indices of the configurations that are wanted; ceilings of
///                        the node
///              stop
namespace katt::bench {
namespace {

using io::impl::MessageReader;
using io::impl::MessageWriter;

enum class Kind : std::uint8_t { hello, surveyed, measured, survey, measure, stop };

MessageWriter message_of(Kind kind) {
  MessageWriter message;
  message.add(kind);
  return message;
}

void send(const ranks::Communicator& ranks, const MessageWriter& message, int to) {
  ranks.send_message(std::as_bytes(std::span(message.bytes())), to);
}

std::string_view text_of(const ranks::Message& message) {
  return {reinterpret_cast<const char*>(message.bytes.data()), message.bytes.size()};
}

/// The next message. The wait sleeps: MPI's own wait would take a processor from the rank of this
/// node that measures.
ranks::Message receive(const ranks::Communicator& ranks) {
  constexpr std::chrono::milliseconds longest(20);
  for (std::chrono::milliseconds nap(1); !ranks.has_message(); nap = std::min(2 * nap, longest)) {
    std::this_thread::sleep_for(nap);
  }
  return ranks.receive_message();
}

/// Rank 0.
class Coordinator {
 public:
  Coordinator(const ranks::Communicator& ranks, SweepRecord& record, const StopFlag& stop)
      : ranks_(ranks),
        record_(record),
        stop_(stop),
        groups_(groups_of(std::span(record.tasks()))),
        queue_(groups_.size()) {
    std::iota(queue_.begin(), queue_.end(), std::size_t{0});
  }

  /// Waits until all ranks have named their nodes.
  void meet(const Settings& settings, Progress& progress) {
    for (int rank = 1; rank < ranks_.size(); ++rank) {
      const ranks::Message received = receive(ranks_);
      MessageReader message(text_of(received));
      (void)message.take<Kind>();
      Node& node = nodes_[message.text()];
      node.idle.push_back(received.source);
      node_of_[received.source] = &node;
    }
    if (!nodes_.contains(io::host_name())) {
      progress.note("the node of rank 0 measures nothing: one rank more than nodes would use it");
    }
    if (nodes_.size() == 1) return;
    std::ranges::stable_sort(queue_, std::greater<>(), [&](std::size_t i) {
      double seconds = 0;
      for (const Task& task : groups_[i]) seconds += forecast_s(task.planned, settings);
      return seconds;
    });
  }

  /// Works until all is measured or, after `stop` was set, until the running cases are measured.
  void run() {
    while (true) {
      for (auto& [host, node] : nodes_) hand_out(node);
      if (busy_ == 0) break;
      answer(receive(ranks_));
    }
    for (auto& [host, node] : nodes_) {
      if (!node.run.empty()) record_.end_run(node.run, interrupted_, node.peers.dump());
    }
    record_.sort_rows();
  }

  /// Lets the other ranks end, behind an error when they have answered.
  void end() {
    for (; busy_ > 0; --busy_) (void)receive(ranks_);
    for (int rank = 1; rank < ranks_.size(); ++rank) send(ranks_, message_of(Kind::stop), rank);
  }

 private:
  struct Node {
    std::deque<int> idle;  ///< its ranks, in the order of their turns
    bool is_busy = false;
    std::string run;  ///< in the file; empty until the node is surveyed
    std::vector<io::CeilingRow> ceilings;
    nlohmann::json peers = nlohmann::json::object();
  };

  void hand_out(Node& node) {
    if (stop_ && !queue_.empty()) interrupted_ = true;
    if (node.is_busy || queue_.empty() || interrupted_) return;
    const int rank = node.idle.front();
    node.idle.pop_front();
    node.is_busy = true;
    ++busy_;
    if (node.run.empty()) return send(ranks_, message_of(Kind::survey), rank);
    const std::size_t next = queue_.front();
    queue_.pop_front();
    MessageWriter message = message_of(Kind::measure);
    message.add(std::uint64_t{next}).add(std::uint64_t{groups_[next].size()});
    for (const Task& task : groups_[next]) add(message.add(task.number), task.wanted);
    add(message, node.ceilings);
    send(ranks_, message, rank);
  }

  void answer(const ranks::Message& received) {
    Node& node = *node_of_.at(received.source);
    node.is_busy = false;
    --busy_;
    node.idle.push_back(received.source);
    MessageReader message(text_of(received));
    if (message.take<Kind>() == Kind::surveyed) {
      io::Attributes origin = take<io::Attributes>(message);
      node.ceilings = take<std::vector<io::CeilingRow>>(message);
      node.run = record_.begin_run(std::move(origin), node.ceilings);
      return;
    }
    const auto planned = groups_.at(message.take<std::uint64_t>());
    std::vector<Task> group(planned.begin(), planned.end());
    std::vector<CaseRunner::Rows> rows;
    const auto measured = message.take<std::uint64_t>();
    for (std::uint64_t i = 0; i < measured; ++i) {
      group.at(i).planned.point.threads = message.take<int>();  // of that machine
      group[i].wanted = take<Indices>(message);
      rows.push_back(take<CaseRunner::Rows>(message));
    }
    node.peers.update(
        nlohmann::json::parse(message.text()));  // each rank tells of those that it ran
    if (rows.empty()) interrupted_ = true;
    else record_.add(group, rows, node.run);
  }

  const ranks::Communicator& ranks_;
  SweepRecord& record_;
  const StopFlag& stop_;
  std::vector<std::span<const Task>> groups_;
  std::deque<std::size_t> queue_;  ///< groups
  std::map<std::string, Node> nodes_;
  std::map<int, Node*> node_of_;
  int busy_ = 0;
  bool interrupted_ = false;
};

/// Any other rank: follows rank 0's messages until `stop`.
void measure_for(const ranks::Communicator& ranks, const SweepRequest& request,
                 std::span<const PlannedCase> plan, const SweepOptions& options,
                 const StopFlag& stop) {
  MessageWriter hello = message_of(Kind::hello);
  send(ranks, hello.add(io::host_name()), 0);
  std::optional<CaseRunner> runner;
  while (true) {
    const ranks::Message received = receive(ranks);
    MessageReader message(text_of(received));
    const auto kind = message.take<Kind>();
    if (kind == Kind::stop) return;
    if (kind == Kind::survey) {
      std::vector<io::CeilingRow> ceilings;
      if (options.measure_ceilings) {
        ceilings = measure_ceilings(plan, request.settings.bind, stop);
      }
      MessageWriter answer = message_of(Kind::surveyed);
      add(answer, provenance(request, options.command, backends_of(plan)));
      add(answer, ceilings);
      send(ranks, answer, 0);
      continue;
    }
    const auto number = message.take<std::uint64_t>();
    std::vector<Indices> measured(message.take<std::uint64_t>());
    std::vector<PlannedCase> group;
    for (Indices& indices : measured) {
      const auto of_plan = message.take<std::uint64_t>();
      indices = take<Indices>(message);
      group.push_back(wanted_of(plan, of_plan, indices));
    }
    if (!runner) {
      runner.emplace(request.settings, take<std::vector<io::CeilingRow>>(message), stop);
    }
    const auto rows = stop ? std::vector<CaseRunner::Rows>{} : runner->run(group);
    MessageWriter answer = message_of(Kind::measured);
    answer.add(number).add(std::uint64_t{rows.size()});
    for (std::size_t i = 0; i < rows.size(); ++i) {
      add(answer.add(group[i].point.threads), measured[i]);
      add(answer, rows[i]);
    }
    send(ranks, answer.add(runner->about_peers()), 0);
  }
}

}  // namespace

void together(const ranks::Communicator& ranks, const std::function<void()>& f) {
  constexpr double good = 0, bad_input = 1, other = 2;
  std::string message;
  double mine = good;
  try {
    f();
  } catch (const InputError& error) {
    mine = bad_input;
    message = error.what();
  } catch (const ranks::Error&) {
    throw;  // no message would come
  } catch (const std::exception& error) {
    mine = other;
    message = error.what();
  }
  const std::vector<double> all = ranks.gather(mine);
  const auto first = std::ranges::find_if(all, [](double one) { return one != good; });
  if (first == all.end()) return;
  const std::string text = ranks.broadcast_text(message, static_cast<int>(first - all.begin()));
  if (*first == bad_input) throw InputError(text);
  throw std::runtime_error(text);
}

void check_alike(const ranks::Communicator& ranks, const std::string& differs,
                 const std::string& mine) {
  const std::string first = ranks.broadcast_text(mine, 0);
  together(ranks, [&] {
    if (mine == first) return;
    throw InputError(ranks.where() + ": " + differs + " than rank 0: " + truncated(mine, 400) +
                     ", expected " + truncated(first, 400));
  });
}

void check_plan(const ranks::Communicator& ranks, std::span<const PlannedCase> plan,
                const SweepRequest& request) {
  const Part whole = part_of(plan, Shard{}, request.settings);
  const std::string mine = std::to_string(plan.size()) + " points, split " + whole.split +
                           ", commit " + build_info().commit;
  check_alike(ranks, "plans another sweep", mine);
}

SweepSummary run_sweep_on_ranks(const ranks::Communicator& ranks, const Registry& registry,
                                const SweepRequest& request, std::span<const PlannedCase> plan,
                                const SweepOptions& options, Progress& progress,
                                const StopFlag& stop) {
  check_plan(ranks, plan, request);
  std::optional<SweepRecord> record;
  together(ranks, [&] {
    if (ranks.rank() == 0) record.emplace(registry, request, plan, options, progress);
  });
  if (!record) measure_for(ranks, request, plan, options, stop);
  together(ranks, [&] {
    if (!record) return;
    Coordinator coordinator(ranks, *record, stop);
    try {
      coordinator.meet(request.settings, progress);
      coordinator.run();
    } catch (...) {
      coordinator.end();
      throw;
    }
    coordinator.end();
  });
  return record ? record->summary() : SweepSummary{};
}

}  // namespace katt::bench
