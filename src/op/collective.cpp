#include "op/collective.hpp"

#include <algorithm>
#include <exception>
#include <limits>
#include <new>
#include <vector>

#include "core/error.hpp"
#include "core/stopwatch.hpp"
#include "machine/machine.hpp"
#include "op/adapter.hpp"

namespace katt::bench {

void CollectiveCandidate::run() {
  try {
    compute();
  } catch (const ranks::Error&) {
    throw;
  } catch (const std::exception& error) {
    throw ranks::Error(group_.where() + ": " + error.what());
  }
}

std::optional<double> CollectiveCandidate::timed(int runs) {
  fence();
  group_.barrier();
  const ranks::Traffic before = ranks::traffic();
  const Stopwatch watch;
  for (int i = 0; i < runs; ++i) run();
  fence();
  const double own_s = watch.seconds();
  const ranks::Traffic sent = ranks::traffic() - before;
  total_.sent_bytes += sent.sent_bytes;
  total_.messages += sent.messages;
  total_.inside_s += sent.inside_s;
  total_.under_way_s += sent.under_way_s;
  time_s_ += own_s;
  runs_ += runs;
  return largest(group_, own_s) / runs;
}

Errors CollectiveCandidate::verify() {
  Errors errors;
  std::string trouble;
  try {
    errors = compare();
    if (!errors.status.is_ok()) trouble = errors.status.reason();
  } catch (const std::exception& error) {
    trouble = error.what();
  }
  errors.max_abs = largest(group_, errors.max_abs);
  errors.mean_abs = group_.sum(errors.mean_abs) / group_.size();
  const std::vector<double> failed = group_.gather(trouble.empty() ? 0 : 1);
  const auto first = std::find(failed.begin(), failed.end(), 1.0);
  if (first == failed.end()) return errors;
  const auto rank = static_cast<int>(first - failed.begin());
  errors.status =
      Status::failed("rank " + std::to_string(rank) + ": " + group_.broadcast_text(trouble, rank));
  return errors;
}

Exchange CollectiveCandidate::exchange() const {
  const double runs = std::max(1, runs_);
  const auto share = [](double part, double whole) {
    return whole > 0 ? std::clamp(part / whole, 0.0, 1.0) : 0;
  };
  constexpr double nan = std::numeric_limits<double>::quiet_NaN();
  Exchange all;
  all.bus_bytes = bus_bytes();
  all.idle_fraction = group_.sum(idle_fraction()) / group_.size();
  if (!sends_through_ranks()) {
    all.sent_bytes = all.messages = all.communication_fraction = all.overlap_fraction = nan;
    return all;
  }
  all.sent_bytes = largest(group_, total_.sent_bytes / runs);
  all.messages = largest(group_, total_.messages / runs);
  all.communication_fraction = group_.sum(share(total_.inside_s, time_s_)) / group_.size();
  const double hidden = total_.under_way_s - total_.inside_s;
  all.overlap_fraction = group_.sum(share(hidden, total_.under_way_s)) / group_.size();
  return all;
}

std::unique_ptr<Case> CollectiveOperator::make_case(const Point& point) const {
  return make_case_on(ranks::Communicator(), point);
}

void CollectiveOperator::run_file(const io::CaseFile& /*in*/, const RunOptions& /*options*/,
                                  io::TensorFile& /*out*/) const {
  throw InputError(name() + ": is made for sweeps, expected an operator that reads case files");
}

AxisSpec ranks_axis() {
  const int started = ranks::world().size();
  return integer_axis("ranks", started, 1, "ranks that take part, of those that mpirun started",
                      started);
}

double largest(const ranks::Communicator& group, double value) {
  return std::ranges::max(group.gather(value));
}

void on_all_ranks(const ranks::Communicator& group, const std::function<void()>& f) {
  std::string trouble;
  try {
    f();
  } catch (const std::bad_alloc&) {
    trouble = "out of memory";
  } catch (const ranks::Error&) {
    throw;
  } catch (const std::exception& error) {
    trouble = error.what();
    if (trouble.empty()) trouble = "an exception without a text";
  }
  const std::vector<double> failed = group.gather(trouble.empty() ? 0 : 1);
  const auto first = std::find(failed.begin(), failed.end(), 1.0);
  if (first == failed.end()) return;
  const auto rank = static_cast<int>(first - failed.begin());
  throw InputError("rank " + std::to_string(rank) + ": " + group.broadcast_text(trouble, rank));
}

std::string note_of_times(const ranks::Communicator& group, int threads) {
  const int wanted = group.ranks_on_host() * std::max(1, threads);
  const int cores = machine().cores;
  if (group.size() == 1 || wanted <= cores) return "";
  return "times mean nothing: " + std::to_string(wanted) + " threads of " +
         std::to_string(group.ranks_on_host()) + " ranks share " + std::to_string(cores) + " cores";
}

}  // namespace katt::bench
