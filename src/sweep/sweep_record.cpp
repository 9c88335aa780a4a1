#include "sweep/sweep_record.hpp"

#include <algorithm>
#include <iterator>
#include <map>
#include <numeric>
#include <utility>

#include <nlohmann/json.hpp>

#include "core/build_info.hpp"
#include "io/hdf5/result_contents.hpp"
#include "plan/axes.hpp"
#include "plan/forecast.hpp"
#include "record/provenance.hpp"
#include "record/results.hpp"
#include "record/row_cells.hpp"

namespace katt::bench {
namespace {

bool resumes(const SweepOptions& options) {
  std::error_code error;
  return options.resume && std::filesystem::exists(options.output, error);
}

/// "rows paired with softcap=0", or "rows of no pair".
std::string rows_paired(const std::string& to) {
  return to.empty() ? "rows of no pair" : "rows paired with " + to;
}

/// The tasks without the rows that are already in the file, which it adds to the summary. A group of
/// paired points that lacks a row is measured again as a whole: a later row replaces an earlier one.
/// Throws InputError when a row is paired in another way.
std::vector<Task> remaining(const Registry& registry, const std::vector<Task>& tasks,
                            const std::vector<io::Column>& columns, const io::ResultFile& file,
                            const std::filesystem::path& output, bool cold, SweepSummary& summary) {
  const std::size_t status = column_index(columns, "status");
  const std::size_t paired_to = column_index(columns, "paired_to");
  std::map<std::string, std::pair<std::string, std::string>> known;  // status and pair by key
  for (const auto& cells : file.rows()) {
    known[row_key(registry, columns, cells)] = {std::get<std::string>(cells[status]),
                                                std::get<std::string>(cells[paired_to])};
  }
  std::vector<Task> left;
  for (const auto& group : groups_of(std::span(tasks))) {
    std::vector<Task> rest;
    int held = 0, failed = 0, suspect = 0;
    for (const Task& task : group) {
      Task& one = rest.emplace_back(task);
      one.planned.configs.clear();
      one.wanted.clear();
      for (std::size_t i = 0; i < task.wanted.size(); ++i) {
        const Config& config = task.planned.configs[i];
        const io::Row row =
            make_row(columns, task.planned, not_run(config, Status::ok()), {.cold = cold});
        const auto found = known.find(row_key(registry, columns, row.cells));
        if (found != known.end()) {
          const auto& [known_status, known_pair] = found->second;
          const auto& pair = std::get<std::string>(row.cells[paired_to]);
          if (known_pair != pair) {
            throw InputError("--paired: " + output.string() + " holds " + rows_paired(known_pair) +
                             ", expected " + rows_paired(pair) + ", or a new output");
          }
          ++held;
          failed += known_status == "failed" ? 1 : 0;
          suspect += known_status == "suspect" ? 1 : 0;
          continue;
        }
        one.planned.configs.push_back(config);
        one.wanted.push_back(task.wanted[i]);
      }
    }
    const bool whole =
        std::ranges::all_of(rest, [](const Task& one) { return one.wanted.empty(); });
    if (whole || group.size() == 1) {
      summary.present += held;
      summary.failed += failed;
      summary.suspect += suspect;
    }
    if (whole) continue;
    if (group.size() > 1) rest.assign(group.begin(), group.end());
    std::ranges::move(rest, std::back_inserter(left));
  }
  return left;
}

/// The files of a code, for the result file.
io::CodeFiles::value_type files_of(const Code& code) {
  const CodeTable table = impl::code_table();
  io::CodeFiles::value_type named{std::string(code.name), {}};
  for (const std::uint16_t file : code.files) {
    named.second.push_back(
        {std::string(table.files[file].file), std::string(table.files[file].tokens)});
  }
  return named;
}

/// Throws InputError when one part of a sweep would continue in the file of another: both may run
/// at this moment.
void check_part(const std::filesystem::path& output, const Part& part) {
  if (part.shard.count == 1) return;
  for (const io::RunRecord& run : io::read_runs(output)) {
    const std::string held = run.text(shard_attribute);
    if (held.empty() || held == to_text(part.shard)) continue;
    throw InputError("--shard " + to_text(part.shard) + ": " + output.string() + " holds part " +
                     held + " of a sweep, expected another file for every part");
  }
}

/// A text in a JSON object; empty where there is none.
std::string member(const nlohmann::json& object, const std::string& name) {
  const auto found = object.find(name);
  return found == object.end() || !found->is_string() ? "" : found->get<std::string>();
}

/// Throws InputError when the file holds rows of a candidate, or of a score rule, that was another
/// file then.
void check_held(const std::filesystem::path& output, const Settings& settings) {
  const auto refuse = [&](const std::string& option, const std::string& held) {
    throw InputError(option + ": " + output.string() + " holds rows of another file (" + held +
                     "), expected that one, or a new output");
  };
  for (const io::RunRecord& run : io::read_runs(output)) {
    const auto told = nlohmann::json::parse(run.text("peers"), nullptr, false);
    for (const auto& [name, file] : settings.candidates) {
      const std::string about = member(told, name);
      if (about.find("SHA-256 ") == std::string::npos ||
          about.find(file.sha256) != std::string::npos)
        continue;
      refuse("--candidate " + name + "=" + file.path.string(), about);
    }
    const auto held = nlohmann::json::parse(run.text("settings"), nullptr, false);
    for (const auto& [name, sha256] : settings.score_rules) {
      const auto rules = held.find("score_rules");
      const std::string before = rules == held.end() ? "" : member(*rules, name);
      if (before.empty() || before == sha256) continue;
      refuse("--score-rule-file of " + name, "SHA-256 " + before);
    }
  }
}

}  // namespace

std::vector<Backend> backends_of(std::span<const PlannedCase> plan) {
  std::vector<Backend> backends;
  for (const PlannedCase& planned : plan) add_once(backends, planned.point.backend);
  return backends;
}

SweepRecord::SweepRecord(const Registry& registry, const SweepRequest& request,
                         std::span<const PlannedCase> plan, const SweepOptions& options,
                         Progress& progress)
    : request_(request),
      options_(options),
      progress_(progress),
      columns_(result_columns(registry)),
      file_(resumes(options) ? io::ResultFile::resume(options.output, columns_)
                             : io::ResultFile::create(options.output, columns_)),
      held_(file_.rows().size()),
      part_(part_of(plan, options.shard, request.settings)) {
  if (resumes(options)) {
    check_part(options.output, part_);
    check_held(options.output, request.settings);
  }
  tasks_ = remaining(registry, part_.tasks, columns_, file_, options.output, request.settings.cold,
                     summary_);
}

std::string SweepRecord::begin_run(io::Attributes provenance,
                                   const std::vector<io::CeilingRow>& ceilings) {
  const bool first = summary_.run.empty();
  std::string run = first ? file_.run() : file_.add_run();
  for (auto& attribute : place_in_split(part_)) provenance.push_back(std::move(attribute));
  file_.commit_run(provenance, run);
  if (!ceilings.empty()) file_.commit_ceilings(ceilings, run);
  if (first) {
    summary_.run = run;
    const auto cases = cases_of(tasks_);
    progress_.begin(cases, expected_s(cases, request_.settings, ceilings));
  }
  return run;
}

void SweepRecord::add(std::span<const Task> group, std::span<const std::vector<RowResult>> results,
                      const std::string& run) {
  std::vector<io::Row> rows;
  io::CodeFiles code;
  for (std::size_t k = 0; k < group.size(); ++k) {
    for (std::size_t i = 0; i < results[k].size(); ++i) {
      rows.push_back(make_row(columns_, group[k].planned, results[k][i],
                              {.run = run,
                               .point = point_name(group[k].place(i)),
                               .commit = build_info().commit,
                               .cold = request_.settings.cold}));
      if (const Code* known = code_of(group[k].planned, results[k][i])) {
        code.insert(files_of(*known));
      }
      count(results[k][i]);
    }
  }
  file_.commit_rows(rows, code);
  for (std::size_t k = 0; k < group.size(); ++k) {
    progress_.finished(group[k].planned, results[k]);
    if (options_.finished) options_.finished(group[k].planned, results[k]);
  }
}

void SweepRecord::count(const RowResult& result) {
  if (!result.suspicion.empty()) ++summary_.suspect;
  else if (result.status.is_ok()) ++summary_.ok;
  else if (result.status.code() == Status::Code::skipped) ++summary_.skipped;
  else ++summary_.failed;
}

void SweepRecord::end_run(const std::string& run, bool interrupted, const std::string& peers) {
  summary_.interrupted = summary_.interrupted || interrupted;
  summary_.elapsed_s = watch_.seconds();
  file_.commit_run(closing(interrupted ? "interrupted" : "done", peers), run);
}

void SweepRecord::sort_rows() {
  const std::size_t point = column_index(columns_, "point");
  std::vector<std::size_t> order(file_.rows().size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  const auto by_point = [&](std::size_t a, std::size_t b) {
    return point_before(std::get<std::string>(file_.rows()[a][point]),
                        std::get<std::string>(file_.rows()[b][point]));
  };
  const auto ours = order.begin() + static_cast<std::ptrdiff_t>(held_);
  if (std::is_sorted(ours, order.end(), by_point)) return;
  std::stable_sort(ours, order.end(), by_point);
  file_.commit_order(order);
}

}  // namespace katt::bench
