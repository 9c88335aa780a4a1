#include "sweep/runner.hpp"

#include <algorithm>
#include <cmath>
#include <exception>
#include <functional>
#include <limits>
#include <memory>
#include <new>
#include <set>
#include <utility>

#include "core/text.hpp"
#include "machine/affinity.hpp"
#include "machine/machine.hpp"
#include "measure/bandwidth.hpp"
#include "measure/ceilings.hpp"
#include "measure/profile.hpp"
#include "memory/tracker.hpp"
#include "op/collective.hpp"
#include "plan/forecast.hpp"
#include "sweep/race/setting_races.hpp"

namespace katt::bench {
namespace {

constexpr double nan = std::numeric_limits<double>::quiet_NaN();

/// The number of a configuration for watch.hpp, the same in every process of a sweep.
std::uint64_t number_of(const PlannedCase& planned, const Config& config) {
  const std::string key =
      case_key(planned) + '\n' + config.variant + '\n' + to_text(config.setting);
  return std::max<std::uint64_t>(1, std::hash<std::string>()(key));
}

/// Memory of a backend for each of this many processes of this host.
std::size_t share_of_memory(Backend backend, int processes) {
  return available_memory(backend) / static_cast<std::size_t>(processes);
}

Admission admit(const PlannedCase& planned, const Faults& faults, std::size_t available) {
  Admission result;
  std::vector<std::pair<std::size_t, std::size_t>> by_size;  // own bytes, index
  std::size_t used = 0;
  for (std::size_t i = 0; i < planned.configs.size(); ++i) {
    const Config& config = planned.configs[i];
    if (std::string reason = unlisted_reason(planned, config); !reason.empty()) {
      result.refused.emplace(i, not_run(config, Status::skipped(std::move(reason))));
      continue;
    }
    if (const auto fault = faults.find(number_of(planned, config)); fault != faults.end()) {
      result.refused.emplace(i, not_run(config, Status::failed(fault->second)));
      continue;
    }
    const Footprint forecast = footprint(planned, config);
    used = std::max(used, forecast.tensors);
    by_size.emplace_back(own_bytes(forecast), i);
  }
  std::stable_sort(by_size.begin(), by_size.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  for (const auto& [bytes, i] : by_size) {
    if (used + bytes > available) {
      RowResult& row =
          result.refused
              .emplace(i, not_run(planned.configs[i],
                                  Status::skipped(memory_reason(used + bytes, available))))
              .first->second;
      row.lacked_memory = true;
    } else {
      used += bytes;
      result.admitted.push_back(i);
    }
  }
  std::sort(result.admitted.begin(), result.admitted.end());
  result.bytes = used;
  return result;
}

void fail_rest(const PlannedCase& planned, std::map<std::size_t, RowResult>& rows,
               const std::string& reason) {
  for (std::size_t i = 0; i < planned.configs.size(); ++i) {
    if (!rows.contains(i)) rows.emplace(i, not_run(planned.configs[i], Status::failed(reason)));
  }
}

/// Calls f. Its exception becomes a reason, but that of ranks that cannot reach each other: they
/// cannot continue.
template <class F>
std::string failure_of(F&& f) {
  try {
    f();
  } catch (const std::bad_alloc&) {
    return "out of memory";
  } catch (const ranks::Error&) {
    throw;
  } catch (const std::exception& error) {
    const std::string text = error.what();
    return text.substr(0, text.find('\n'));
  }
  return {};
}

void mark_baseline(const PlannedCase& planned, std::vector<RowResult>& rows) {
  for (const VariantInfo& info : planned.op->variants(planned.point.backend, planned.point.pass)) {
    for (RowResult& row : rows) {
      if (row.requested.variant == info.name) row.baseline = info.baseline;
    }
  }
}

}  // namespace

std::vector<io::CeilingRow> measure_ceilings(std::span<const PlannedCase> plan, bool bind,
                                             const StopFlag& stop) {
  std::vector<io::CeilingRow> rows;
  std::set<int> measured;  // by threads: a GPU has 0, and serial is one thread
  for (const PlannedCase& planned : plan) {
    if (!measured.insert(planned.point.threads).second) continue;
    const Bound bound(bind ? planned.point.threads : 0);
    const auto found = measure_ceilings(planned.point.backend, planned.point.threads, stop);
    rows.insert(rows.end(), found.begin(), found.end());
  }
  return rows;
}

CaseRunner::CaseRunner(const Settings& settings, std::vector<io::CeilingRow> ceilings,
                       const StopFlag& stop, ranks::Communicator group, Doing doing)
    : settings_(settings),
      ceilings_(std::move(ceilings)),
      stop_(stop),
      group_(std::move(group)),
      peers_(settings, stop),
      doing_(std::move(doing)) {}

void CaseRunner::tell(const PlannedCase& planned, const std::string& what) const {
  if (doing_) doing_(planned, what);
}

std::vector<CaseRunner::Rows> CaseRunner::run(std::span<const PlannedCase> group) {
  // The least value of all ranks, so that all admit the same configurations.
  const auto available = static_cast<std::size_t>(-largest(
      -static_cast<double>(share_of_memory(group.front().point.backend, group_.ranks_on_host()))));
  std::vector<Admission> admissions;
  std::size_t needed = 0;
  for (const PlannedCase& planned : group) {
    admissions.push_back(admit(planned, faults_, available));
    needed += admissions.back().bytes;
  }
  if (group.size() == 1 || needed <= available) return measure_together(group, admissions);
  std::vector<Rows> results;
  for (std::size_t i = 0; i < group.size(); ++i) {
    auto alone = measure_together(group.subspan(i, 1), std::span(admissions).subspan(i, 1));
    if (alone.empty()) return {};
    for (RowResult& row : alone.front()) {
      row.paired = {.median = nan, .lo = nan, .hi = nan};
      row.note = "not paired: the group " + memory_reason(needed, available);
    }
    results.push_back(std::move(alone.front()));
  }
  return results;
}

double CaseRunner::largest(double value) const {
  return group_.size() == 1 ? value : bench::largest(group_, value);
}

std::unique_ptr<Case> CaseRunner::make_case(const PlannedCase& planned) const {
  const auto* const collective = dynamic_cast<const CollectiveOperator*>(planned.op);
  return collective != nullptr ? collective->make_case_on(group_, planned.point)
                               : planned.op->make_case(planned.point);
}

/// A case of a group while it is measured.
struct CaseRunner::Entered {
  std::unique_ptr<Case> inputs;
  memory::Bytes input_bytes{};
  Work work;
  std::vector<std::size_t> indices;  ///< configurations, in the order of their contenders
  std::vector<std::size_t> output_bytes;
  std::size_t first = 0;   ///< the case's first contender
  double moved_bytes = 0;  ///< by a contender behind those of the configurations; 0: there is none
  std::map<std::size_t, RowResult> rows;
};

std::vector<CaseRunner::Rows> CaseRunner::measure_together(std::span<const PlannedCase> group,
                                                           std::span<const Admission> admissions) {
  const Point& point = group.front().point;
  std::vector<Entered> entered(group.size());
  std::vector<Contender> contenders;  // end before the inputs
  for (std::size_t i = 0; i < group.size(); ++i) entered[i].rows = admissions[i].refused;
  const auto fail_all = [&](const std::string& reason) {
    if (reason.empty()) return;
    for (std::size_t i = 0; i < group.size(); ++i) fail_rest(group[i], entered[i].rows, reason);
  };
  const bool any = std::ranges::any_of(
      admissions, [](const Admission& admission) { return !admission.admitted.empty(); });
  if (any) {
    fail_all(failure_of([&] {
      std::function<void()> flush;
      if (settings_.cold) flush = cache_flusher(point.backend, point.threads);
      const Bound bound(settings_.bind ? point.threads : 0);
      std::size_t configs = 0;
      for (std::size_t i = 0; i < group.size(); ++i) {
        Entered& one = entered[i];
        if (admissions[i].admitted.empty()) continue;
        one.first = contenders.size();
        const std::string failure = failure_of(
            [&] { enter_case(group[i], admissions[i].admitted, i, bound, one, contenders); });
        if (!failure.empty()) {
          contenders.erase(contenders.begin() + static_cast<std::ptrdiff_t>(one.first),
                           contenders.end());
          one.indices.clear();
          one.moved_bytes = 0;
          fail_rest(group[i], one.rows, failure);
        }
        if (stop_) return;
        configs += one.indices.size();
      }
      tell(group.front(), "measuring " + counted_text(configs, "variant") +
                              (group.size() == 1 ? "" : " at all paired points"));
      Settings settings = settings_;
      settings.seed += case_number_++;  // another order in every case
      settings.threads = point.threads;
      Largest agreed;
      if (group_.size() > 1) agreed = [&](double value) { return largest(value); };
      SettingRaces races({.min_rounds = settings.min_rounds});
      for (std::size_t i = 0; settings.race && settings.rounds == 0 && i < group.size(); ++i) {
        races.add(group[i], entered[i].indices, entered[i].first);
      }
      AfterRound after_round;
      if (!races.empty()) {
        after_round = [&](std::span<Contender> all) { return races.after_round(all); };
      }
      if (!measure(contenders, settings, flush, stop_, bound, agreed, after_round)) return;
      for (std::size_t i = 0; i < group.size(); ++i) {
        finish_case(group[i], std::span(contenders).subspan(entered[i].first), entered[i]);
      }
    }));
  }
  if (stop_) return {};
  std::vector<Rows> results;
  for (std::size_t i = 0; i < group.size(); ++i) {
    Rows& rows = results.emplace_back();
    for (auto& [index, row] : entered[i].rows) rows.push_back(std::move(row));
    mark_baseline(group[i], rows);
    add_speedups(rows);
  }
  add_paired_ratios(group, results);
  return results;
}

void CaseRunner::enter_case(const PlannedCase& planned, std::span<const std::size_t> admitted,
                            std::size_t slot, const Bound& bound, Entered& entered,
                            std::vector<Contender>& contenders) {
  const Point& point = planned.point;
  const bool on_device = point.backend == Backend::cuda;
  tell(planned, "making the inputs");
  const memory::Bytes before = memory::live();
  entered.inputs = make_case(planned);
  entered.input_bytes = memory::live() - before;
  Case& inputs = *entered.inputs;
  const Work& work = entered.work = inputs.work();
  auto& rows = entered.rows;
  for (const std::size_t i : admitted) {
    const Config& config = planned.configs[i];
    if (stop_) return;
    tell(planned, "running and verifying " + config.variant);
    if (planned.is_peer(config)) {
      PeerEntry peer = peers_.enter(config.variant, *planned.op, point, inputs, bound, slot);
      if (!peer.status.is_ok()) {
        rows.emplace(i, not_run(config, std::move(peer.status))).first->second.work = work;
        continue;
      }
      entered.indices.push_back(i);
      entered.output_bytes.push_back(peer.output_bytes);
      // A peer is a process of its own, with a time limit of its own: --peer-timeout-s.
      contenders.push_back(enter([&] { return std::move(peer.candidate); }));
      continue;
    }
    if (Status status = inputs.supports(config); !status.is_ok()) {
      rows.emplace(i, not_run(config, std::move(status))).first->second.work = work;
      continue;
    }
    entered.indices.push_back(i);
    entered.output_bytes.push_back(footprint(planned, config).outputs);
    contenders.push_back(
        enter([&] { return inputs.prepare(config); }, number_of(planned, config), on_device));
  }
  const auto own = std::span(contenders).subspan(entered.first);
  const auto ready = [](const Contender& one) { return one.measured.status.is_ok(); };
  if (moves_memory(point, work) && std::ranges::any_of(own, ready)) {
    contenders.push_back(enter(
        [&] {
          return bandwidth_candidate(point.backend, point.threads, work.traffic, work.bytes,
                                     entered.moved_bytes);
        },
        0, on_device));
  }
  for (Contender& contender : std::span(contenders).subspan(entered.first)) contender.point = slot;
  for (std::size_t k = 0; k < entered.indices.size(); ++k) {
    contenders[entered.first + k].inputs = &inputs;
  }
}

void CaseRunner::hold_against_ceilings(const Point& point, RowResult& row) {
  const auto reason = [&] {
    return impossible_rate(ceilings_, point.backend, point.dtype, point.threads, row.work,
                           row.time_s.hi);
  };
  if (row.exchange || reason().empty()) return;
  const Bound bound(settings_.bind ? point.threads : 0);
  for (const io::CeilingRow& again : bench::measure_ceilings(point.backend, point.threads, stop_)) {
    for (io::CeilingRow& ceiling : ceilings_) {
      if (ceiling.name == again.name && ceiling.threads == again.threads) {
        ceiling.value = std::fmax(ceiling.value, again.value);
      }
    }
  }
  row.suspicion = reason();
}

void CaseRunner::finish_case(const PlannedCase& planned, std::span<Contender> contenders,
                             Entered& entered) {
  const Point& point = planned.point;
  const Work& work = entered.work;
  std::vector<double> moving_s;  // the time to move the case's bytes
  if (entered.moved_bytes > 0) {
    moving_s = contenders[entered.indices.size()].measured.samples_s;
    for (double& seconds : moving_s) seconds *= work.bytes / entered.moved_bytes;
  }

  for (std::size_t k = 0; k < entered.indices.size(); ++k) {
    const Config& config = planned.configs[entered.indices[k]];
    const bool peer = planned.is_peer(config);
    const auto peak = contenders[k].measured.peak;  // of a peer: memory of this process for it
    RowResult row = measured_row(config, peer ? config : planned.op->resolve(point, config),
                                 std::move(contenders[k].measured), work);
    if (!peer && peak) {
      const memory::Bytes own = entered.input_bytes + *peak;
      row.total = {.host = static_cast<std::size_t>(largest(static_cast<double>(own.host))),
                   .device = static_cast<std::size_t>(largest(static_cast<double>(own.device)))};
    }
    row.tensor_bytes = entered.input_bytes.total() + entered.output_bytes[k];
    row.left_race = !contenders[k].left.empty();
    if (row.left_race) row.note = contenders[k].left;
    if (row.status.is_ok()) {
      if (peer) row.total = contenders[k].candidate->peak();
      row.engine = contenders[k].candidate->engine();
      if (const auto* const ranks =
              dynamic_cast<const CollectiveCandidate*>(contenders[k].candidate.get())) {
        row.exchange = ranks->exchange();
        row.note = note_of_times(group_, point.threads);
      }
      if (!peer) row.default_setting = planned.op->resolve(point, {config.variant, {}}).setting;
      hold_against_ceilings(point, row);
      row.ceiling =
          nearest_ceiling(ceilings_, point.backend, point.threads, work, row.time_s.median,
                          paired_ratio(moving_s, row.samples_s).median);
      if (settings_.profile && !peer) {
        row.profile = profile(*contenders[k].candidate, row.time_s.median);
        hold_against(row.profile, ceilings_, point.backend, point.threads, point.dtype);
      }
    }
    entered.rows.emplace(entered.indices[k], std::move(row));
  }
}

bool CaseRunner::moves_memory(const Point& point, const Work& work) const {
  constexpr double any_time_s = 1;
  return nearest_ceiling(ceilings_, point.backend, point.threads, work, any_time_s).bandwidth &&
         work.bytes < static_cast<double>(available_memory(point.backend)) / 2;
}

}  // namespace katt::bench
