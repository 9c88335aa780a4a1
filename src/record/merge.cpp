#include "record/merge.hpp"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "core/text.hpp"
#include "plan/axes.hpp"
#include "plan/shard.hpp"
#include "record/results.hpp"
#include "record/row_cells.hpp"

namespace katt::bench {
namespace {

std::string commit_of(const io::RunRecord& run) {
  const std::string commit = run.text("commit");
  return (commit.empty() ? "unknown" : commit) +
         (run.integer("dirty", 0) != 0 ? " (modified)" : "");
}

std::string machine_of(const io::RunRecord& run) {
  const std::string device = run.text("device");
  return (device.empty() ? "unknown" : device) + " (" + std::to_string(run.integer("cores", 0)) +
         " cores)";
}

/// True when two reals are the same number, or both NaN.
bool equal_cells(const io::Cell& a, const io::Cell& b) {
  const auto* x = std::get_if<double>(&a);
  const auto* y = std::get_if<double>(&b);
  return a == b || (x != nullptr && y != nullptr && *x != *x && *y != *y);
}

/// The places of a run's rows in the merged file; rows of equal order stand by the name of their
/// point.
struct Order {
  std::size_t group = 0;
  bool by_point = false;
};

class Merger {
 public:
  Merger(const Registry& registry, std::vector<io::Column> columns)
      : registry_(registry),
        columns_(std::move(columns)),
        run_at_(column_index(columns_, "run")),
        point_at_(column_index(columns_, "point")) {}

  void add(const std::filesystem::path& file) {
    io::ResultContents contents = io::read_result(file, columns_);
    ++merged_.files;
    merged_.contents.code.merge(contents.code);
    std::map<std::string, std::vector<io::Row>> rows;
    for (io::Row& row : contents.rows) {
      rows[std::get<std::string>(row.cells[run_at_])].push_back(std::move(row));
    }
    for (io::RunRecord& run : contents.runs) {
      std::vector<io::Row> of_run = std::move(rows[run.name]);
      if (is_there(run, of_run)) {
        ++merged_.copies;
        continue;
      }
      add_once(merged_.commits, commit_of(run));
      add_once(merged_.machines, machine_of(run));
      add_run(std::move(run), std::move(of_run), file);
    }
  }

  Merged take() {
    std::stable_sort(rows_.begin(), rows_.end(), [&](const Placed& a, const Placed& b) {
      if (a.order.group != b.order.group) return a.order.group < b.order.group;
      return a.order.by_point && point_before(std::get<std::string>(a.row.cells[point_at_]),
                                              std::get<std::string>(b.row.cells[point_at_]));
    });
    for (Placed& placed : rows_) merged_.contents.rows.push_back(std::move(placed.row));
    count_parts();
    return std::move(merged_);
  }

 private:
  struct Placed {
    Order order;
    std::size_t run = 0;
    io::Row row;
  };
  /// The parts of a split found so far: the rows that each has, and the rows that it should have.
  struct Parts {
    std::map<int, std::set<std::string>> points;
    std::map<int, std::size_t> rows;
    std::set<int> done;  ///< parts whose last run found all rows in its file, or measured them
    int count = 1;

    [[nodiscard]] bool is_finished(int part) const {
      return done.contains(part) || points.at(part).size() >= rows.at(part);
    }
  };

  /// True when a run with the same attributes and the same rows was added before.
  [[nodiscard]] bool is_there(const io::RunRecord& run, const std::vector<io::Row>& rows) const {
    for (std::size_t i = 0; i < merged_.contents.runs.size(); ++i) {
      if (merged_.contents.runs[i].attributes != run.attributes) continue;
      std::vector<const io::Row*> known;
      for (const Placed& placed : rows_) {
        if (placed.run == i) known.push_back(&placed.row);
      }
      if (std::equal(known.begin(), known.end(), rows.begin(), rows.end(),
                     [&](const io::Row* a, const io::Row& b) { return same_row(*a, b); })) {
        return true;
      }
    }
    return false;
  }

  [[nodiscard]] bool same_row(const io::Row& a, const io::Row& b) const {
    for (std::size_t i = 0; i < columns_.size(); ++i) {
      if (i != run_at_ && !equal_cells(a.cells[i], b.cells[i])) return false;
    }
    return a.samples_s == b.samples_s;
  }

  void add_run(io::RunRecord run, std::vector<io::Row> rows, const std::filesystem::path& file) {
    const std::size_t number = merged_.contents.runs.size();
    run.name = io::run_name(static_cast<int>(number) + 1);
    const Order order = order_of(run, file);
    Parts* parts = parts_of(run);
    const int part = parts == nullptr ? 0 : parse_shard(run.text(shard_attribute)).index;
    for (io::Row& row : rows) {
      note_duplicate(row, number, file);
      if (parts != nullptr) {
        parts->points[part].insert(std::get<std::string>(row.cells[point_at_]));
      }
      row.cells[run_at_] = run.name;
      rows_.push_back({.order = order, .run = number, .row = std::move(row)});
    }
    merged_.contents.runs.push_back(std::move(run));
  }

  /// Sorts the rows of one split together; rows of a run without a split keep the order of their
  /// file.
  Order order_of(const io::RunRecord& run, const std::filesystem::path& file) {
    const std::string split = run.text(split_attribute);
    const std::string key = split.empty() ? "file\n" + file.string() : "split\n" + split;
    return {.group = groups_.try_emplace(key, groups_.size()).first->second,
            .by_point = !split.empty()};
  }

  /// The parts of a run's split; nothing when its attributes do not say, or say nonsense.
  Parts* parts_of(const io::RunRecord& run) {
    const std::string split = run.text(split_attribute);
    if (split.empty()) return nullptr;
    try {
      const Shard shard = parse_shard(run.text(shard_attribute));
      Parts& parts = parts_[split];
      parts.count = shard.count;
      parts.rows[shard.index] = static_cast<std::size_t>(run.integer(rows_attribute, 0));
      parts.points[shard.index];
      if (run.text("status") == "done") parts.done.insert(shard.index);
      return &parts;
    } catch (const InputError&) {
      return nullptr;
    }
  }

  void note_duplicate(const io::Row& row, std::size_t run, const std::filesystem::path& file) {
    const auto [known, is_new] =
        keys_.try_emplace(row_key(registry_, columns_, row.cells), run, file.filename().string());
    if (is_new || known->second.first == run) return;
    if (merged_.duplicates++ > 0) return;
    std::vector<std::string> words;
    for (const char* name : {"op", "pass", "variant", "dtype"}) {
      words.push_back(std::get<std::string>(row.cells[column_index(columns_, name)]));
    }
    merged_.first_duplicate =
        join(words, " ") + " in " + known->second.second + " and " + file.filename().string();
  }

  /// True when a sweep in one part has measured just what the parts of a split lack: it was resumed
  /// in a file of theirs. Points are named by their places in the sweep, the same for any split.
  [[nodiscard]] bool has_rest(const Parts& parts) const {
    if (parts.count == 1) return false;
    std::set<std::string> held;
    for (const auto& [part, points] : parts.points) held.insert(points.begin(), points.end());
    return std::ranges::any_of(parts_, [&](const auto& entry) {
      const Parts& whole = entry.second;
      if (whole.count > 1 || !whole.done.contains(1)) return false;
      const std::set<std::string>& rest = whole.points.at(1);
      std::set<std::string> both = held;
      both.insert(rest.begin(), rest.end());
      return rest.size() < whole.rows.at(1) && both.size() == whole.rows.at(1);
    });
  }

  void count_parts() {
    for (const auto& [split, parts] : parts_) {
      if (has_rest(parts)) continue;
      for (int part = 1; part <= parts.count; ++part) {
        const std::string name = to_text(Shard{.index = part, .count = parts.count});
        if (!parts.rows.contains(part)) merged_.missing.push_back(name);
        else if (!parts.is_finished(part)) merged_.unfinished.push_back(name);
      }
    }
  }

  const Registry& registry_;
  std::vector<io::Column> columns_;
  std::size_t run_at_, point_at_;
  Merged merged_;
  std::vector<Placed> rows_;
  std::map<std::string, std::size_t> groups_;
  std::map<std::string, Parts> parts_;
  std::map<std::string, std::pair<std::size_t, std::string>> keys_;  ///< first run and file
};

/// "1/4, 3/4, …": the first of a long list.
std::string some_of(const std::vector<std::string>& names) {
  constexpr std::size_t most = 20;
  const std::vector<std::string> first(
      names.begin(), names.begin() + static_cast<std::ptrdiff_t>(std::min(most, names.size())));
  return join(first, ", ") +
         (names.size() > most ? " and " + std::to_string(names.size() - most) + " more" : "");
}

}  // namespace

Merged merge_results(const Registry& registry, std::span<const std::filesystem::path> files) {
  Merger merger(registry, result_columns(registry));
  for (const std::filesystem::path& file : files) merger.add(file);
  return merger.take();
}

std::vector<std::string> notes(const Merged& merged) {
  std::vector<std::string> lines;
  if (!merged.missing.empty()) {
    lines.push_back("missing: shard " + some_of(merged.missing) +
                    "; none of its own rows is in the file");
  }
  if (!merged.unfinished.empty()) {
    lines.push_back("unfinished: shard " + some_of(merged.unfinished) +
                    "; katt sweep --shard … --resume goes on with it");
  }
  if (merged.copies > 0) {
    lines.push_back("given twice: " + std::to_string(merged.copies) +
                    " runs, equal to the last bit; kept once");
  }
  if (merged.duplicates > 0) {
    lines.push_back("duplicates: " + std::to_string(merged.duplicates) +
                    " rows measure what another run has measured (" + merged.first_duplicate +
                    "); all are kept");
  }
  if (merged.machines.size() > 1) {
    lines.push_back("machines: " + std::to_string(merged.machines.size()) + " different ones, " +
                    some_of(merged.machines));
  }
  if (merged.commits.size() > 1) {
    lines.push_back("commits: " + std::to_string(merged.commits.size()) +
                    " different ones of katt, " + some_of(merged.commits));
  }
  return lines;
}

}  // namespace katt::bench
