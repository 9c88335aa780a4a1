#include "io/hdf5/result_contents.hpp"

#include <algorithm>
#include <map>
#include <set>
#include <span>

#include "io/atomic_file.hpp"
#include "io/hdf5/hdf5_input.hpp"
#include "io/hdf5/hdf5_output.hpp"
#include "io/hdf5/result_table.hpp"
#include "io/printable.hpp"

namespace katt::io {

namespace {

using impl::Hdf5Input;

template <class T>
const T* find_attribute(const Attributes& attributes, std::string_view name) {
  const auto found = std::ranges::find(attributes, name, &Attributes::value_type::first);
  return found == attributes.end() ? nullptr : std::get_if<T>(&found->second);
}

Attributes attributes_of(const Hdf5Input& input, const std::string& run) {
  Attributes attributes;
  for (auto& [name, value] : input.attributes_of("runs/" + run, "the attributes of a run")) {
    std::visit([&, key = name](const auto& held) { attributes.emplace_back(key, held); }, value);
  }
  return attributes;
}

std::vector<RunRecord> runs_of(const Hdf5Input& input) {
  impl::check_is_result_file(input);
  std::vector<RunRecord> runs;
  if (!input.has("runs")) return runs;
  for (int number = 1; input.has("runs/" + run_name(number)); ++number) {
    const std::string name = run_name(number);
    runs.push_back({.name = name, .attributes = attributes_of(input, name)});
  }
  return runs;
}

/// The datasets that rows of a run may have below a group.
class Datasets {
 public:
  Datasets(const Hdf5Input& input, std::string group)
      : input_(input), group_(std::move(group)), there_(input.has(group_)) {}

  /// Path of the dataset of a point; "" when there is none.
  [[nodiscard]] std::string find(const std::string& run, const std::string& point) {
    const std::string folder = group_ + "/" + run;
    const auto [known, is_new] = folders_.try_emplace(folder, false);
    if (is_new && there_ && input_.has(folder)) {
      (void)input_.attributes_of(folder, "a group");  // refuses one in another file
      known->second = true;
    }
    const std::string path = folder + "/" + point;
    return known->second && input_.has(path) ? path : std::string();
  }

 private:
  const Hdf5Input& input_;
  std::string group_;
  bool there_;
  std::map<std::string, bool> folders_;
};

std::vector<double> read_list(const Hdf5Input& input, const std::string& path,
                              const std::string& expected) {
  const impl::DatasetInfo info = input.describe(path, expected);
  if (info.kind != impl::ElementKind::real || info.shape.size() != 1) {
    input.reject_dataset(path, "holds " + info.type + " of shape " + impl::shape_text(info.shape) +
                                   ", expected " + expected);
  }
  std::vector<double> samples(input.readable_count(path, info, sizeof(double)));
  if (!samples.empty()) {
    input.read(path, H5T_NATIVE_DOUBLE, std::as_writable_bytes(std::span(samples)));
  }
  return samples;
}

Profile read_profile(const Hdf5Input& input, const std::string& path) {
  const auto attributes = input.attributes_of(path, "a profile");
  const auto runs = attributes.find("runs");
  const auto time_s = attributes.find("time_s");
  if (runs == attributes.end() || !std::holds_alternative<std::int64_t>(runs->second) ||
      time_s == attributes.end() || !std::holds_alternative<double>(time_s->second)) {
    input.reject_dataset(path,
                         "has no attributes runs (int64) and time_s (float64), expected both");
  }
  return {.runs = std::get<std::int64_t>(runs->second),
          .time_s = std::get<double>(time_s->second),
          .rows = impl::read_profile_rows(input, path)};
}

/// Files that the values of a column "code" stand for, where the result file lists them.
CodeFiles read_code(const Hdf5Input& input, const std::vector<Column>& columns,
                    const std::vector<Row>& rows) {
  CodeFiles code;
  const auto column = std::ranges::find(columns, "code", &Column::name);
  if (column == columns.end() || !input.has("code")) return code;
  (void)input.attributes_of("code", "a group");  // refuses one in another file
  for (const Row& row : rows) {
    const auto& name =
        std::get<std::string>(row.cells[static_cast<std::size_t>(column - columns.begin())]);
    const bool is_name =
        !name.empty() && name.find_first_not_of("0123456789abcdef") == std::string::npos;
    if (!is_name || code.contains(name) || !input.has("code/" + name)) continue;
    code[name] = impl::read_code_files(input, "code/" + name);
  }
  return code;
}

/// Throws InputError when a row names no run, or a point that cannot be the name of a dataset of
/// its own.
void check_names(const Hdf5Input& input, const std::vector<RunRecord>& runs, const std::string& run,
                 const std::string& point) {
  if (std::ranges::find(runs, run, &RunRecord::name) == runs.end()) {
    input.reject_dataset("points", "holds a row of run \"" + impl::printable(run) +
                                       "\", expected one of the " + std::to_string(runs.size()) +
                                       " of /runs");
  }
  if (point.empty() || point == "." || point.find('/') != std::string::npos) {
    input.reject_dataset("points", "holds a row of point \"" + impl::printable(point) +
                                       "\", expected the name of a dataset");
  }
}

}  // namespace

std::string RunRecord::text(std::string_view attribute) const {
  const auto* held = find_attribute<std::string>(attributes, attribute);
  return held == nullptr ? std::string() : *held;
}

std::int64_t RunRecord::integer(std::string_view attribute, std::int64_t fallback) const {
  const auto* held = find_attribute<std::int64_t>(attributes, attribute);
  return held == nullptr ? fallback : *held;
}

std::vector<RunRecord> read_runs(const std::filesystem::path& path) {
  return runs_of(Hdf5Input(path));
}

ResultContents read_result(const std::filesystem::path& path, const std::vector<Column>& columns) {
  impl::check_columns(columns);
  const std::size_t run_at = impl::index_of(columns, "run");
  const std::size_t point_at = impl::index_of(columns, "point");
  const Hdf5Input input(path);
  ResultContents contents{.runs = runs_of(input), .rows = {}};
  const bool has_ceilings = input.has("ceilings");
  for (RunRecord& run : contents.runs) {
    if (has_ceilings && input.has("ceilings/" + run.name)) {
      run.ceilings = impl::read_ceilings(input, run.name);
    }
  }
  Datasets samples(input, "samples");
  Datasets cycles(input, "cycles");
  Datasets profiles(input, "profile");
  std::set<std::string> taken;
  for (auto& cells :
       impl::read_table(input, "points", "a table of one row per point and variant", columns)
           .first) {
    Row row{.cells = std::move(cells), .samples_s = {}};
    const auto& run = std::get<std::string>(row.cells[run_at]);
    const auto& point = std::get<std::string>(row.cells[point_at]);
    check_names(input, contents.runs, run, point);
    if (!taken.insert(run + '/' + point).second) {
      input.reject_dataset("points", "holds point " + impl::printable(point) + " of " + run +
                                         " twice, expected each once");
    }
    if (const auto at = samples.find(run, point); !at.empty()) {
      row.samples_s = read_list(input, at, "a list of seconds");
    }
    if (const auto at = cycles.find(run, point); !at.empty()) {
      row.cycles = read_list(input, at, "a list of cycles");
    }
    if (const auto at = profiles.find(run, point); !at.empty()) {
      row.profile = read_profile(input, at);
    }
    contents.rows.push_back(std::move(row));
  }
  contents.code = read_code(input, columns, contents.rows);
  return contents;
}

void write_result(const std::filesystem::path& path, const std::vector<Column>& columns,
                  const ResultContents& contents) {
  impl::check_columns(columns);
  impl::silence_errors();
  AtomicFile target(path);
  impl::MemoryFile file = impl::start_file(columns);
  for (const RunRecord& run : contents.runs) {
    impl::write_run(file.get(), run.name, run.attributes);
    if (!run.ceilings.empty()) impl::write_ceilings(file.get(), run.name, run.ceilings);
  }
  impl::write_code(file.get(), contents.code);
  impl::write_rows(file.get(), columns, contents.rows);
  target.write(file.close());
  target.commit();
}

}  // namespace katt::io
