#include "sweep/runner.hpp"

#include <algorithm>
#include <exception>
#include <functional>
#include <memory>
#include <new>
#include <set>
#include <utility>

#include "machine/affinity.hpp"
#include "machine/machine.hpp"
#include "measure/bandwidth.hpp"
#include "measure/ceilings.hpp"
#include "measure/profile.hpp"
#include "memory/tracker.hpp"
#include "op/collective.hpp"
#include "plan/forecast.hpp"

namespace katt::bench {
namespace {

/// The configurations of a case to measure together, without those that were refused before the
/// inputs exist: these are already rows. The smallest come first, so that a large one never crowds
/// out others.
struct Admission {
  std::vector<std::size_t> admitted;  ///< indices into planned.configs, in their order
  std::map<std::size_t, RowResult> refused;
};

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
      result.refused.emplace(
          i, not_run(planned.configs[i], Status::skipped(memory_reason(used + bytes, available))));
    } else {
      used += bytes;
      result.admitted.push_back(i);
    }
  }
  std::sort(result.admitted.begin(), result.admitted.end());
  return result;
}

void fail_rest(const PlannedCase& planned, std::map<std::size_t, RowResult>& rows,
               const std::string& reason) {
  for (std::size_t i = 0; i < planned.configs.size(); ++i) {
    if (!rows.contains(i)) rows.emplace(i, not_run(planned.configs[i], Status::failed(reason)));
  }
}

void mark_baseline(const PlannedCase& planned, std::vector<RowResult>& rows) {
  for (const VariantInfo& info : planned.op->variants(planned.point.backend, planned.point.pass)) {
    for (RowResult& row : rows) {
      if (row.requested.variant == info.name) row.baseline = info.baseline;
    }
  }
}

}  // namespace

std::vector<io::CeilingRow> measure_ceilings(std::span<const PlannedCase> plan, bool bind) {
  std::vector<io::CeilingRow> rows;
  std::set<int> measured;  // by threads: a GPU has 0, and serial is one thread
  for (const PlannedCase& planned : plan) {
    if (!measured.insert(planned.point.threads).second) continue;
    const Bound bound(bind ? planned.point.threads : 0);
    const auto found = measure_ceilings(planned.point.backend, planned.point.threads);
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
      peers_(settings.peer_program.empty() ? usual_peer_program()
                                           : std::filesystem::path(settings.peer_program),
             settings.peer_timeout_s, stop),
      doing_(std::move(doing)) {}

void CaseRunner::tell(const PlannedCase& planned, const std::string& what) const {
  if (doing_) doing_(planned, what);
}

std::vector<RowResult> CaseRunner::run(const PlannedCase& planned) {
  // The least value of all ranks, so that all admit the same configurations.
  const auto available = static_cast<std::size_t>(-largest(
      -static_cast<double>(share_of_memory(planned.point.backend, group_.ranks_on_host()))));
  Admission admission = admit(planned, faults_, available);
  auto& rows = admission.refused;
  if (!admission.admitted.empty()) {
    try {
      measure_case(planned, admission.admitted, rows);
    } catch (const std::bad_alloc&) {
      fail_rest(planned, rows, "out of memory");
    } catch (const ranks::Error&) {
      throw;  // ranks that cannot reach each other cannot continue
    } catch (const std::exception& error) {
      const std::string text = error.what();
      fail_rest(planned, rows, text.substr(0, text.find('\n')));
    }
  }
  if (stop_) return {};
  std::vector<RowResult> ordered;
  for (auto& [index, row] : rows) ordered.push_back(std::move(row));
  mark_baseline(planned, ordered);
  add_speedups(ordered);
  return ordered;
}

double CaseRunner::largest(double value) const {
  return group_.size() == 1 ? value : bench::largest(group_, value);
}

std::unique_ptr<Case> CaseRunner::make_case(const PlannedCase& planned) const {
  const auto* const collective = dynamic_cast<const CollectiveOperator*>(planned.op);
  return collective != nullptr ? collective->make_case_on(group_, planned.point)
                               : planned.op->make_case(planned.point);
}

void CaseRunner::measure_case(const PlannedCase& planned, const std::vector<std::size_t>& admitted,
                              std::map<std::size_t, RowResult>& rows) {
  const Point& point = planned.point;
  const bool on_device = point.backend == Backend::cuda;
  std::function<void()> flush;
  if (settings_.cold) flush = cache_flusher(point.backend, point.threads);
  const Bound bound(settings_.bind ? point.threads : 0);

  tell(planned, "making the inputs");
  const memory::Bytes before = memory::live();
  const std::unique_ptr<Case> inputs = make_case(planned);
  const memory::Bytes input_bytes = memory::live() - before;
  const Work work = inputs->work();

  std::vector<std::size_t> indices;
  std::vector<std::size_t> output_bytes;
  std::vector<Contender> contenders;
  for (const std::size_t i : admitted) {
    const Config& config = planned.configs[i];
    if (stop_) return;
    tell(planned, "running and verifying " + config.variant);
    if (planned.is_peer(config)) {
      PeerEntry peer = peers_.enter(config.variant, *planned.op, point, *inputs, bound);
      if (!peer.status.is_ok()) {
        rows.emplace(i, not_run(config, std::move(peer.status))).first->second.work = work;
        continue;
      }
      indices.push_back(i);
      output_bytes.push_back(peer.output_bytes);
      contenders.push_back(
          enter([&] { return std::move(peer.candidate); }, number_of(planned, config)));
      continue;
    }
    if (Status status = inputs->supports(config); !status.is_ok()) {
      rows.emplace(i, not_run(config, std::move(status))).first->second.work = work;
      continue;
    }
    indices.push_back(i);
    output_bytes.push_back(footprint(planned, config).outputs);
    contenders.push_back(
        enter([&] { return inputs->prepare(config); }, number_of(planned, config), on_device));
  }
  double moved_bytes = 0;
  const auto ready = [](const Contender& one) { return one.measured.status.is_ok(); };
  if (moves_memory(point, work) && std::any_of(contenders.begin(), contenders.end(), ready)) {
    contenders.push_back(enter(
        [&] {
          return bandwidth_candidate(point.backend, point.threads, work.traffic, work.bytes,
                                     moved_bytes);
        },
        0, on_device));
  }
  tell(planned, "measuring " + std::to_string(indices.size()) +
                    (indices.size() == 1 ? " variant" : " variants"));
  Settings settings = settings_;
  settings.seed += case_number_++;  // another order in every case
  Largest agreed;
  if (group_.size() > 1) agreed = [&](double value) { return largest(value); };
  if (!measure(contenders, settings, flush, stop_, bound, agreed)) return;
  std::vector<double> moving_s;  // the time to move the case's bytes
  if (moved_bytes > 0) {
    moving_s = contenders.back().measured.samples_s;
    for (double& seconds : moving_s) seconds *= work.bytes / moved_bytes;
  }

  for (std::size_t k = 0; k < indices.size(); ++k) {
    const Config& config = planned.configs[indices[k]];
    const bool peer = planned.is_peer(config);
    const auto peak = contenders[k].measured.peak;  // of a peer: memory of this process for it
    RowResult row = measured_row(config, peer ? config : planned.op->resolve(point, config),
                                 std::move(contenders[k].measured), work);
    if (!peer && peak) {
      const memory::Bytes own = input_bytes + *peak;
      row.total = {.host = static_cast<std::size_t>(largest(static_cast<double>(own.host))),
                   .device = static_cast<std::size_t>(largest(static_cast<double>(own.device)))};
    }
    row.tensor_bytes = input_bytes.total() + output_bytes[k];
    if (row.status.is_ok()) {
      if (peer) row.total = contenders[k].candidate->peak();
      row.engine = contenders[k].candidate->engine();
      if (const auto* const ranks =
              dynamic_cast<const CollectiveCandidate*>(contenders[k].candidate.get())) {
        row.exchange = ranks->exchange();
        row.note = note_of_times(group_, point.threads);
      }
      if (!peer) row.default_setting = planned.op->resolve(point, {config.variant, {}}).setting;
      row.ceiling =
          nearest_ceiling(ceilings_, point.backend, point.threads, work, row.time_s.median,
                          paired_ratio(moving_s, row.samples_s).median);
      if (settings.profile && !peer) {
        row.profile = profile(*contenders[k].candidate, row.time_s.median);
        hold_against(row.profile, ceilings_, point.backend, point.threads, point.dtype);
      }
    }
    rows.emplace(indices[k], std::move(row));
  }
}

bool CaseRunner::moves_memory(const Point& point, const Work& work) const {
  constexpr double any_time_s = 1;
  return nearest_ceiling(ceilings_, point.backend, point.threads, work, any_time_s).bandwidth &&
         work.bytes < static_cast<double>(available_memory(point.backend)) / 2;
}

}  // namespace katt::bench
