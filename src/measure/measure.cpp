#include "measure/measure.hpp"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <exception>
#include <limits>
#include <map>
#include <new>
#include <numeric>
#include <optional>
#include <random>
#include <stdexcept>

#include "core/stopwatch.hpp"
#include "measure/device_clock.hpp"
#include "measure/fresh_inputs.hpp"
#include "measure/statistics.hpp"
#include "op/reference/sample.hpp"
#include "process/watch.hpp"
#include "ranks/communicator.hpp"

namespace katt::bench {
namespace {

double agreed(double own, const Largest& largest) { return largest ? largest(own) : own; }

/// First line of an exception's message.
std::string reason_of(const std::exception& error) {
  const std::string text = error.what();
  return text.substr(0, text.find('\n'));
}

/// Runs f; an exception becomes the contender's failure, and frees its memory.
template <class F>
void guarded(Contender& contender, F&& f) {
  const watch::Work work(contender.number);
  std::string reason;
  try {
    f();
    return;
  } catch (const std::bad_alloc&) {
    reason = "out of memory";
  } catch (const ranks::Error&) {
    throw;
  } catch (const std::exception& error) {
    reason = reason_of(error);
  } catch (...) {
    reason = "an exception of unknown type";
  }
  contender.measured.status = Status::failed(reason);
  contender.candidate.reset();
}

/// Compares the outputs once more, where `again` of a run into poisoned memory.
Errors verified(Contender& contender, bool again) {
  Candidate& candidate = *contender.candidate;
  if (again) {
    candidate.poison();
    candidate.restore();
    candidate.take_inputs();
    candidate.run();
    candidate.fence();
  }
  Errors errors = candidate.verify();
  double& worst = contender.measured.worst_abs_err;
  if (!(errors.max_abs <= worst)) worst = errors.max_abs;
  return errors;
}

struct Sample {
  double seconds = 0;    ///< of a run
  double host_s = 0;     ///< those of them until its launches returned to the host
  double request_s = 0;  ///< of another process: of the whole request
  double claimed_s = 0;  ///< of another process: of a run, as it says
};

/// One sample of another process: the time of the request without its transport, and no less than
/// the runs took as that process says. A device's clock is read by that process alone, and held
/// against this one (disagreement()).
Sample sample_of_process(const Contender& contender, int inner) {
  Candidate& candidate = *contender.candidate;
  const Stopwatch watch;
  const double claimed_s = candidate.timed(inner).value_or(0);
  const double request_s = candidate.request_s(watch.seconds());
  // A busy machine, or a peer with more to do for it, may have slowed the transport when it was
  // measured. Nobody claims more than he took.
  const double least_s = std::max(0.1 * request_s, std::min(claimed_s * inner, request_s));
  const double own_s = std::max(request_s - candidate.transport_s(), least_s) / inner;
  return {.seconds = contender.on_device ? claimed_s : own_s,
          .request_s = request_s,
          .claimed_s = claimed_s};
}

/// Why the clock of another process cannot be believed; empty when it agrees with ours. The runs
/// lie within the request, so an honest time is no longer; and in the least disturbed round the
/// rest of the request is its transport. A busy machine may delay it, hence the wide margin: it is
/// our clock that counts.
std::string disagreement(const Contender& contender) {
  const Measured& measured = contender.measured;
  constexpr double nothing = std::numeric_limits<double>::infinity();
  double rest_s = nothing, excess_s = nothing, shortest_s = nothing;
  for (std::size_t i = 0; i < measured.claimed_s.size(); ++i) {
    const double request_s = measured.request_s[i];
    const double claimed_s = measured.claimed_s[i] * measured.inner;
    rest_s = std::min(rest_s, request_s - claimed_s);
    excess_s = std::min(excess_s, claimed_s - request_s);
    shortest_s = std::min(shortest_s, request_s);
  }
  // On a device the claim is the time of the row; else ours is, and delays of a busy machine that
  // happen in every one of a few rounds are no lie.
  const double share = contender.on_device ? 0.25 : 0.5;
  const double start_s = contender.on_device ? 3e-4 : 5e-3;  // launches, waking threads
  const double margin_s = share * shortest_s + 2 * contender.candidate->transport_s() + start_s;
  if (measured.claimed_s.empty() || (rest_s <= margin_s && excess_s <= 0)) return {};
  char text[128];
  std::snprintf(text, sizeof text, "its clock says %.3g s a run, the sweep's %.3g s",
                median_interval(measured.claimed_s).median,
                median_interval(measured.request_s).median / measured.inner);
  return text;
}

/// One sample: the mean of `inner` runs between two fences, on a device between two of the device's
/// events.
Sample sample(const Contender& contender, int inner) {
  Candidate& candidate = *contender.candidate;
  if (candidate.process() != 0) return sample_of_process(contender, inner);
  if (const auto seconds = candidate.timed(inner)) return {*seconds, 0};
  std::optional<DeviceClock> clock;
  if (contender.on_device) clock.emplace();
  candidate.fence();
  if (clock) clock->start();
  const Stopwatch watch;
  for (int i = 0; i < inner; ++i) candidate.run();
  const double host_s = watch.seconds() / inner;
  if (clock) return {clock->seconds() / inner, host_s};
  candidate.fence();
  return {watch.seconds() / inner, host_s};
}

/// Runs until the time of a run has settled (three runs, or a tenth of the budget spent) and
/// chooses how many runs make a sample.
void warm_up(Contender& contender, const Settings& settings, bool batches, const Largest& largest) {
  const Stopwatch watch;
  bool restored = contender.candidate->restore();
  double fastest = sample(contender, 1).seconds;
  for (int run = 1; run < 3 && agreed(watch.seconds(), largest) < settings.budget_s / 10; ++run) {
    restored = contender.candidate->restore();
    fastest = std::min(fastest, sample(contender, 1).seconds);
  }
  // The noise of a transport, and of a device's launches, is that of many short runs.
  const bool is_far = contender.on_device || contender.candidate->process() != 0;
  const double shortest_s = is_far ? settings.device_batch_s : settings.shortest_s;
  const double batch_s = is_far ? settings.device_batch_s : settings.batch_s;
  if (batches && !settings.cold && !restored && fastest < shortest_s) {
    constexpr double most = 10000;
    contender.measured.inner =
        static_cast<int>(std::clamp(std::ceil(batch_s / std::max(fastest, 1e-9)), 1.0, most));
    (void)sample(contender, contender.measured.inner);
  }
}

/// Keeps interleaved processes from disturbing each other.
class Turns {
 public:
  /// `point`: the one that ran last.
  Turns(bool cold, const Bound& bound, std::size_t point)
      : cold_(cold), bound_(bound), last_point_(point) {}

  /// Prepares a sample: waits until the threads of the process that ran last sleep, then a run
  /// fills the caches with the data of this process and point; two after another process, since
  /// large last caches keep only what they have met twice. Throws std::runtime_error when the
  /// threads do not fall asleep.
  void give_to(const Contender& contender) {
    Candidate& candidate = *contender.candidate;
    const int process = candidate.process();
    const bool is_other = process != last_;
    if (is_other) rest();
    if (process == 0) bound_.renew();
    const auto& samples = contender.measured.samples_s;
    const bool is_short = samples.empty() || samples.back() < long_s;
    if ((is_other || contender.point != last_point_ || (disturbed_ && is_short)) && !cold_) {
      for (int run = is_other && is_short ? 2 : 1; run > 0; --run) {
        candidate.restore();
        (void)sample(contender, 1);
      }
    }
    last_ = process;
    last_point_ = contender.point;
    disturbed_ = false;
  }
  /// Flushes the caches, with threads of this process.
  void flush(const std::function<void()>& caches) {
    if (last_ != 0) rest();
    caches();
    last_ = 0;
  }
  /// Notes that something else than a candidate has used the caches.
  void disturbed() { disturbed_ = true; }

 private:
  void rest() const {
    constexpr double patience_s = 2;
    if (wait_for_rest(last_ == 0 ? getpid() : last_, patience_s)) return;
    throw std::runtime_error(
        "idle threads of what ran before it do not fall asleep "
        "(is OMP_WAIT_POLICY=active set?)");
  }

  static constexpr double long_s =
      10e-3;  ///< a run that fills the caches in a fraction of its time
  bool cold_;
  const Bound& bound_;
  int last_ = 0;
  std::size_t last_point_;
  bool disturbed_ = false;
};

bool precise(const Contender& contender, double target) {
  return median_interval(contender.measured.samples_s).relative_half_width() <= target;
}

/// A random order of n indices. Our own code, because std::shuffle differs between libraries.
void shuffle(std::vector<std::size_t>& order, std::mt19937_64& random) {
  for (std::size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random() % i]);
}

/// The order of a round: random, but the contenders of a point follow each other.
std::vector<std::size_t> order_of(std::span<Contender* const> active, std::mt19937_64& random) {
  std::vector<std::size_t> order(active.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  shuffle(order, random);
  std::map<std::size_t, std::size_t> first;  // of each point
  for (std::size_t i = 0; i < order.size(); ++i) first.try_emplace(active[order[i]]->point, i);
  std::ranges::stable_sort(order, {}, [&](std::size_t i) { return first[active[i]->point]; });
  return order;
}

/// Compares the outputs of a round. In place a further run computes them.
void compare_outputs(std::span<Contender* const> contenders, FreshInputs& fresh, int round) {
  const Stopwatch watch;
  const testing::SampleSeed seed(fresh.seed());
  for (Contender* const contender : contenders) {
    if (contender->inputs == nullptr || !contender->measured.status.is_ok()) continue;
    guarded(*contender, [&] {
      const Errors errors = verified(*contender, contender->inputs->runs_in_place());
      if (!errors.status.is_ok()) {
        contender->measured.status = Status::failed("round " + std::to_string(round) +
                                                    ", other inputs: " + errors.status.reason());
      }
    });
  }
  fresh.compared(watch.seconds());
}

std::vector<Contender*> running(std::span<Contender> contenders) {
  std::vector<Contender*> list;
  for (Contender& contender : contenders) {
    if (contender.candidate && contender.measured.status.is_ok()) list.push_back(&contender);
  }
  return list;
}

/// The contenders of the next round: those that did not leave a race.
std::vector<Contender*> racing(std::span<Contender> contenders) {
  std::vector<Contender*> list = running(contenders);
  std::erase_if(list, [](const Contender* contender) { return !contender->left.empty(); });
  return list;
}

}  // namespace

Contender enter(const std::function<std::unique_ptr<Candidate>()>& prepare, std::uint64_t number,
                bool on_device) {
  Contender contender;
  contender.on_device = on_device;
  contender.number = number;
  guarded(contender, [&] {
    {
      const memory::Scope scope;
      contender.candidate = prepare();
      contender.candidate->poison();
      contender.candidate->restore();
      contender.candidate->run();
      contender.candidate->fence();
      contender.measured.peak = scope.peak();
    }
    const Errors errors = contender.candidate->verify();
    contender.measured.max_abs_err = errors.max_abs;
    contender.measured.mean_abs_err = errors.mean_abs;
    contender.measured.worst_abs_err = errors.max_abs;
    contender.measured.status = errors.status;
  });
  if (!contender.measured.status.is_ok()) contender.candidate.reset();
  return contender;
}

bool measure(std::span<Contender> contenders, const Settings& settings,
             const std::function<void()>& flush, const StopFlag& stop, const Bound& bound,
             const Largest& largest, const AfterRound& after_round) {
  const auto ready = running(contenders);
  const bool batches =
      std::ranges::none_of(ready, [](const Contender* one) { return one->candidate->runs_once(); });
  for (Contender* contender : ready) {
    if (stop) return false;
    guarded(*contender, [&] { warm_up(*contender, settings, batches, largest); });
  }

  std::mt19937_64 random(settings.seed);
  Meter meter(settings.threads);
  Turns turns(settings.cold, bound, contenders.empty() ? 0 : contenders.back().point);
  const int most_rounds =
      settings.rounds > 0 ? settings.rounds : std::max(settings.max_rounds, settings.min_rounds);
  FreshInputs fresh(std::min(settings.min_rounds, most_rounds), largest);
  const Stopwatch watch;
  int round = 0;
  for (; round < most_rounds; ++round) {
    const auto active = racing(contenders);
    if (active.empty()) break;
    const double budget = settings.budget_s * static_cast<double>(running(contenders).size());
    if (settings.rounds == 0 && round >= settings.min_rounds &&
        (agreed(watch.seconds() - fresh.seconds(), largest) >= budget ||
         (!after_round && std::all_of(active.begin(), active.end(), [&](const Contender* one) {
           return precise(*one, settings.precision);
         })))) {
      break;
    }
    if (fresh.change(active, round)) turns.disturbed();
    const Stopwatch round_watch;
    for (const std::size_t i : order_of(active, random)) {
      if (stop) return false;
      Contender& contender = *active[i];
      guarded(contender, [&] {
        const auto prepare = [&] {
          contender.candidate->restore();
          const Stopwatch taking;
          contender.candidate->take_inputs();
          fresh.taken(taking.seconds());
        };
        if (settings.cold) {
          prepare();  // this fills the caches
          turns.flush(flush);
        }
        turns.give_to(contender);
        if (!settings.cold) prepare();
        const bool counted = !contender.on_device && contender.candidate->process() == 0;
        if (counted) meter.start();
        const Sample taken = sample(contender, contender.measured.inner);
        if (counted) {
          meter.stop(contender.measured.effort, taken.seconds, contender.measured.inner);
        }
        contender.measured.samples_s.push_back(taken.seconds);
        if (contender.candidate->process() != 0) {
          contender.measured.request_s.push_back(taken.request_s);
          contender.measured.claimed_s.push_back(taken.claimed_s);
        } else if (contender.on_device) {
          contender.measured.host_s.push_back(taken.host_s);
        }
        const double hz = contender.on_device ? multiprocessor_clock_hz() : 0;
        if (hz > 0) contender.measured.sm_clock_hz.push_back(hz);
      });
    }
    if (fresh.compares(round, round_watch.seconds())) {
      compare_outputs(active, fresh, round);
      turns.disturbed();
    }
    if (after_round && after_round(contenders)) {
      ++round;
      break;
    }
  }

  if (fresh.owes_comparison()) compare_outputs(racing(contenders), fresh, round - 1);
  fresh.change_all(racing(contenders));
  const testing::SampleSeed seed(fresh.seed());
  const double throttled = meter.throttled();
  for (Contender* contender : running(contenders)) {
    if (!contender->on_device) contender->measured.effort.throttled = throttled;
  }
  for (Contender* contender : racing(contenders)) {
    if (stop) return false;
    guarded(*contender, [&] {
      if (const std::string reason = disagreement(*contender); !reason.empty()) {
        contender->measured.status = Status::failed(reason);
        return;
      }
      const Errors errors = verified(*contender, true);
      if (!errors.status.is_ok()) {
        contender->measured.status = Status::failed("after timing: " + errors.status.reason());
      }
    });
  }
  return !stop;
}

}  // namespace katt::bench
