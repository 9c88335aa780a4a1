#include "bench/sweep.hpp"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <exception>
#include <functional>
#include <map>
#include <new>
#include <set>

#include "bench/bandwidth.hpp"
#include "bench/ceilings.hpp"
#include "bench/machine.hpp"
#include "bench/peer.hpp"
#include "bench/profile.hpp"
#include "bench/provenance.hpp"
#include "bench/results.hpp"
#include "bench/text.hpp"
#include "bench/watch.hpp"
#include "core/build_info.hpp"
#include "memory/tracker.hpp"

namespace katt::bench {
namespace {

/// The configurations of a case that may be measured together: refusals that need no inputs are
/// already rows. The smallest come first, so that a large one never crowds out others.
struct Admission {
  std::vector<std::size_t> admitted;  ///< indices into planned.configs, in their order
  std::map<std::size_t, RowResult> refused;
};

/// The number of a configuration for watch.hpp, the same in every process of a sweep.
using Numbering = std::function<std::uint64_t(const PlannedCase&, const Config&)>;

Admission admit(const PlannedCase& planned, const Numbering& number_of, const Faults& faults) {
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
  const std::size_t available = available_memory(planned.point.backend);
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

class Runner {
 public:
  Runner(const Settings& settings, std::span<const io::CeilingRow> ceilings, Peers& peers,
         Numbering number_of, const StopFlag& stop)
      : settings_(settings),
        ceilings_(ceilings),
        peers_(peers),
        number_of_(std::move(number_of)),
        stop_(stop) {}

  /// The rows of a case in the order of its configurations; empty when it was interrupted.
  std::vector<RowResult> run(const PlannedCase& planned) {
    Admission admission = admit(planned, number_of_, faults_);
    auto& rows = admission.refused;
    if (!admission.admitted.empty()) {
      try {
        measure_case(planned, admission.admitted, rows);
      } catch (const std::bad_alloc&) {
        fail_rest(planned, rows, "out of memory");
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

 private:
  void measure_case(const PlannedCase& planned, const std::vector<std::size_t>& admitted,
                    std::map<std::size_t, RowResult>& rows) {
    const Point& point = planned.point;
    std::function<void()> flush;
    if (settings_.cold) flush = cache_flusher(point.backend, point.threads);
    const Bound bound(settings_.bind ? point.threads : 0);

    const memory::Bytes before = memory::live();
    const std::unique_ptr<Case> inputs = planned.op->make_case(point);
    const memory::Bytes input_bytes = memory::live() - before;
    const Work work = inputs->work();

    std::vector<std::size_t> indices;
    std::vector<std::size_t> output_bytes;
    std::vector<Contender> contenders;
    for (const std::size_t i : admitted) {
      const Config& config = planned.configs[i];
      if (stop_) return;
      if (planned.is_peer(config)) {
        PeerEntry peer = peers_.enter(config.variant, *planned.op, point, *inputs, bound);
        if (!peer.status.is_ok()) {
          rows.emplace(i, not_run(config, std::move(peer.status))).first->second.work = work;
          continue;
        }
        indices.push_back(i);
        output_bytes.push_back(peer.output_bytes);
        contenders.push_back(
            enter([&] { return std::move(peer.candidate); }, number_of_(planned, config)));
        continue;
      }
      if (Status status = inputs->supports(config); !status.is_ok()) {
        rows.emplace(i, not_run(config, std::move(status))).first->second.work = work;
        continue;
      }
      indices.push_back(i);
      output_bytes.push_back(footprint(planned, config).outputs);
      contenders.push_back(
          enter([&] { return inputs->prepare(config); }, number_of_(planned, config)));
    }
    double moved_bytes = 0;
    const auto ready = [](const Contender& one) { return one.measured.status.is_ok(); };
    if (moves_memory(point, work) && std::any_of(contenders.begin(), contenders.end(), ready)) {
      contenders.push_back(enter([&] {
        return bandwidth_candidate(point.backend, point.threads, work.traffic, work.bytes,
                                   moved_bytes);
      }));
    }
    Settings settings = settings_;
    settings.seed += case_number_++;  // another order in every case
    if (!measure(contenders, settings, flush, stop_, bound)) return;
    std::vector<double> moving_s;  // the time to move what the case has to
    if (moved_bytes > 0) {
      moving_s = contenders.back().measured.samples_s;
      for (double& seconds : moving_s) seconds *= work.bytes / moved_bytes;
    }

    for (std::size_t k = 0; k < indices.size(); ++k) {
      const Config& config = planned.configs[indices[k]];
      const bool peer = planned.is_peer(config);
      const auto peak = contenders[k].measured.peak;  // of a peer: what this process needs for it
      RowResult row = measured_row(config, peer ? config : planned.op->resolve(point, config),
                                   std::move(contenders[k].measured), work);
      if (!peer && peak) row.total = input_bytes + *peak;
      row.tensor_bytes = input_bytes.total() + output_bytes[k];
      if (row.status.is_ok()) {
        if (peer) row.total = contenders[k].candidate->peak();
        row.engine = contenders[k].candidate->engine();
        if (!peer) row.default_setting = planned.op->resolve(point, {config.variant, {}}).setting;
        row.ceiling =
            nearest_ceiling(ceilings_, point.backend, point.threads, work, row.time_s.median,
                            paired_ratio(moving_s, row.samples_s).median);
        if (settings.profile && !peer) {
          row.profile = profile(*contenders[k].candidate, row.time_s.median);
        }
      }
      rows.emplace(indices[k], std::move(row));
    }
  }

  /// Whether a case is limited by bandwidth, and its bytes may be moved once more beside it.
  [[nodiscard]] bool moves_memory(const Point& point, const Work& work) const {
    constexpr double any_time_s = 1;
    return nearest_ceiling(ceilings_, point.backend, point.threads, work, any_time_s).bandwidth &&
           work.bytes < static_cast<double>(available_memory(point.backend)) / 2;
  }

  static void fail_rest(const PlannedCase& planned, std::map<std::size_t, RowResult>& rows,
                        const std::string& reason) {
    for (std::size_t i = 0; i < planned.configs.size(); ++i) {
      if (!rows.contains(i)) rows.emplace(i, not_run(planned.configs[i], Status::failed(reason)));
    }
  }

  static void mark_baseline(const PlannedCase& planned, std::vector<RowResult>& rows) {
    for (const VariantInfo& info :
         planned.op->variants(planned.point.backend, planned.point.pass)) {
      for (RowResult& row : rows) {
        if (row.requested.variant == info.name) row.baseline = info.baseline;
      }
    }
  }

  Settings settings_;
  std::span<const io::CeilingRow> ceilings_;
  Peers& peers_;
  Numbering number_of_;
  Faults faults_ = watch::faults();
  const StopFlag& stop_;
  std::uint64_t case_number_ = 0;
};

/// The plan without the rows that the file holds already.
std::vector<PlannedCase> remaining(const Registry& registry, std::span<const PlannedCase> plan,
                                   const std::vector<io::Column>& columns,
                                   const io::ResultFile& file, bool cold, int& present) {
  std::set<std::string> known;
  for (const auto& cells : file.rows()) known.insert(row_key(registry, columns, cells));
  std::vector<PlannedCase> left;
  for (PlannedCase planned : plan) {
    const std::size_t all = planned.configs.size();
    std::erase_if(planned.configs, [&](const Config& config) {
      const io::Row row = make_row(columns, planned, not_run(config, Status::ok()), {.cold = cold});
      return known.contains(row_key(registry, columns, row.cells));
    });
    present += static_cast<int>(all - planned.configs.size());
    if (!planned.configs.empty()) left.push_back(std::move(planned));
  }
  return left;
}

std::vector<io::CeilingRow> ceilings_for(std::span<const PlannedCase> plan, bool bind) {
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

std::vector<Backend> backends_of(std::span<const PlannedCase> plan) {
  std::vector<Backend> backends;
  for (const PlannedCase& planned : plan) {
    if (std::find(backends.begin(), backends.end(), planned.point.backend) == backends.end()) {
      backends.push_back(planned.point.backend);
    }
  }
  return backends;
}

std::string point_name(std::size_t number) {
  char text[16];
  std::snprintf(text, sizeof(text), "%06zu", number);
  return text;
}

}  // namespace

std::string summary_line(const SweepSummary& summary, const std::filesystem::path& output) {
  if (summary.run.empty()) {
    return "nothing left to do: " + output.string() + " holds all " +
           std::to_string(summary.present) + " rows";
  }
  return std::string(summary.interrupted ? "interrupted" : "done") + " after " +
         human_duration(summary.elapsed_s) + ": " + std::to_string(summary.ok) + " ok, " +
         std::to_string(summary.skipped) + " skipped, " + std::to_string(summary.failed) +
         " failed; " + output.string() +
         (summary.interrupted ? " keeps what is done, --resume goes on" : "");
}

std::string ceiling_warning(const SweepSummary& summary) {
  constexpr double disturbed = 1.1;
  if (!(summary.nearest.fraction > disturbed)) return "";
  char share[32];
  std::snprintf(share, sizeof(share), "%.1f", summary.nearest.fraction);
  return "warning: a row reached " + std::string(share) + " of " + summary.nearest.name +
         ": the ceilings were disturbed when they were measured; measure again for shares";
}

void check_output(const SweepOptions& options) {
  if (options.output.empty()) {
    throw InputError("-o is missing: expected the result file to write, e.g. -o results/NAME.h5");
  }
  if (options.resume && options.overwrite) {
    throw InputError("--resume and --overwrite exclude each other");
  }
  std::error_code error;
  if (!options.resume && !options.overwrite && std::filesystem::exists(options.output, error)) {
    throw InputError("-o " + options.output.string() +
                     ": exists; expected a new file, --resume or --overwrite");
  }
}

SweepSummary run_sweep(const Registry& registry, const SweepRequest& request,
                       std::span<const PlannedCase> plan, const SweepOptions& options,
                       Progress& progress, const StopFlag& stop) {
  const auto start = std::chrono::steady_clock::now();
  const auto columns = result_columns(registry);
  std::error_code error;
  const bool resuming = options.resume && std::filesystem::exists(options.output, error);
  io::ResultFile file = resuming ? io::ResultFile::resume(options.output, columns)
                                 : io::ResultFile::create(options.output, columns);
  SweepSummary summary;
  const auto left =
      remaining(registry, plan, columns, file, request.settings.cold, summary.present);
  if (left.empty()) return summary;
  std::vector<io::CeilingRow> ceilings;
  if (options.measure_ceilings) ceilings = ceilings_for(left, request.settings.bind);
  file.commit_run(provenance(request, options.command, backends_of(left)));
  if (!ceilings.empty()) file.commit_ceilings(ceilings);
  summary.run = file.run();
  progress.begin(left);

  Peers peers(request.settings.peer_program.empty()
                  ? usual_peer_program()
                  : std::filesystem::path(request.settings.peer_program),
              request.settings.peer_timeout_s, stop);
  const Numbering number_of = [&](const PlannedCase& planned, const Config& config) {
    const RowOrigin origin{.cold = request.settings.cold};
    const io::Row row = make_row(columns, planned, not_run(config, Status::ok()), origin);
    return std::max<std::uint64_t>(1,
                                   std::hash<std::string>()(row_key(registry, columns, row.cells)));
  };
  Runner runner(request.settings, ceilings, peers, number_of, stop);
  std::size_t number = 0;
  for (const PlannedCase& planned : left) {
    const std::vector<RowResult> results = stop ? std::vector<RowResult>{} : runner.run(planned);
    if (results.empty()) {
      summary.interrupted = true;
      break;
    }
    std::vector<io::Row> rows;
    for (const RowResult& result : results) {
      rows.push_back(make_row(columns, planned, result,
                              {.run = file.run(),
                               .point = point_name(++number),
                               .commit = build_info().commit,
                               .cold = request.settings.cold}));
      if (result.status.is_ok()) ++summary.ok;
      else if (result.status.code() == Status::Code::skipped) ++summary.skipped;
      else ++summary.failed;
    }
    for (const RowResult& result : results) {
      const bool nearer = !(result.ceiling.fraction <= summary.nearest.fraction);
      if (nearer && !result.ceiling.bandwidth && !result.ceiling.name.empty()) {
        summary.nearest = result.ceiling;
      }
    }
    file.commit_rows(rows);
    progress.finished(planned, results);
    if (options.finished) options.finished(planned, results);
  }
  file.commit_run(closing(summary.interrupted ? "interrupted" : "done", peers.about()));
  summary.elapsed_s =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return summary;
}

}  // namespace katt::bench
