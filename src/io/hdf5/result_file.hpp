#pragma once

#include <cstdint>
#include <deque>
#include <filesystem>
#include <functional>
#include <limits>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace katt::io {

enum class ColumnKind { text, integer, real };

/// One column of /points. Text columns are fixed-length strings of `width` bytes; longer text is
/// cut at a character boundary.
struct Column {
  std::string name;
  ColumnKind kind = ColumnKind::real;
  std::size_t width = 0;
  bool later = false;  ///< files of earlier versions lack it; their rows then hold NaN, or no text
  friend bool operator==(const Column&, const Column&) = default;
};

using Cell = std::variant<std::string, std::int64_t, double>;

/// A region or kernel of a profile. One of depth 1 is part of the nearest one of depth 0 before it.
struct ProfileRow {
  std::string name;  ///< e.g. "katt::rope"
  std::int64_t depth = 0;
  double calls = 0;       ///< in one run
  double time_s = 0;      ///< of all of them
  double flops = 0;       ///< of all of them, by the mathematics; 0: nobody counted
  double bytes = 0;       ///< least traffic of all of them; 0: nobody counted
  std::string ceiling{};  ///< the measured limit that is nearest; "" where none is known
  double ceiling_fraction = std::numeric_limits<double>::quiet_NaN();  ///< used of it
};

/// Where the time of a run goes.
struct Profile {
  std::int64_t runs = 0;  ///< that were averaged; 0: no profile was taken
  double time_s = 0;      ///< of one run, profiled
  std::vector<ProfileRow> rows{};
};

/// One finished (point, variant): cells in column order, its samples in seconds (empty where it
/// did not run), stored as /samples/RUN/POINT, and its profile, if any, as /profile/RUN/POINT.
struct Row {
  std::vector<Cell> cells;
  std::vector<double> samples_s;
  Profile profile{};
};

/// A measured limit of the machine, a row of /ceilings/RUN.
struct CeilingRow {
  std::string name;  ///< e.g. "fma_f32", "copy_dram"
  double value = 0;
  std::string unit;  ///< "FLOP/s" or "B/s"
  std::int64_t threads = 0;
  std::int64_t bytes = 0;  ///< working set; 0 for arithmetic
};

using Attribute = std::variant<std::string, std::int64_t, double>;
using Attributes = std::vector<std::pair<std::string, Attribute>>;

/// "run-0012"; the runs of a file are numbered from 1 without gaps.
[[nodiscard]] std::string run_name(int number);

/// A result file of schema 1. The file on disk is complete at every instant: each change is made to
/// a hidden copy beside it, synced, and renamed over it. A killed program loses at most the change
/// it was making. One program at a time writes a file. The commit functions throw
/// std::runtime_error when the change cannot be written, a full disk for example, and
/// std::invalid_argument when it makes no sense; the file is then as it was.
class ResultFile {
 public:
  /// Starts a new file in memory; nothing is on disk before the first commit, which replaces a file
  /// that is there, or ever where `path` is empty. `columns` hold at least the texts "point" and
  /// "run". Throws InputError when the folder cannot be made or written.
  static ResultFile create(const std::filesystem::path& path, std::vector<Column> columns);
  /// Continues a file, or starts it where it is missing. A file without the later columns, or with
  /// int64 where `columns` say real, is read as if it had them; the first commit rewrites its
  /// table. Throws InputError when it is not a result file of this schema or its columns differ
  /// otherwise.
  static ResultFile resume(const std::filesystem::path& path, std::vector<Column> columns);

  /// Name of the run that this program adds ("run-0001", one more than the last in the file).
  [[nodiscard]] const std::string& run() const { return runs_.front(); }
  /// One more run of this program, measured on another machine; its name, the next number.
  const std::string& add_run();
  /// Rows that the file holds, without their samples.
  [[nodiscard]] const std::vector<std::vector<Cell>>& rows() const { return rows_; }

  /// Writes a run's group and attributes (a second call replaces values). `run` is one of this
  /// program's, run() where it is empty.
  void commit_run(const Attributes& attributes, const std::string& run = {});
  /// Writes /ceilings/RUN.
  void commit_ceilings(const std::vector<CeilingRow>& ceilings, const std::string& run = {});
  /// Appends finished rows, all or none. The column "point" names each row's dataset below
  /// /samples/RUN and /profile/RUN, so it is unique in the run; the column "run" is one of this
  /// program's.
  void commit_rows(const std::vector<Row>& rows);
  /// Puts the rows into another order: row i becomes the one that was order[i].
  void commit_order(const std::vector<std::size_t>& order);

 private:
  ResultFile() = default;
  void check(const Row& row) const;
  /// The run of this program with that name, run() where it is empty.
  [[nodiscard]] const std::string& own_run(const std::string& name) const;
  /// Makes a change (given the identifier of the open HDF5 file) to the file on disk, all or
  /// nothing.
  void commit(const std::function<void(std::int64_t)>& change);
  /// The same to a copy. A file that this process has not started is edited in a child process, as
  /// it is read (io/hdf5/hdf5_input.hpp).
  void edit(const std::filesystem::path& temporary,
            const std::function<void(std::int64_t)>& change) const;
  /// Throws InputError where the file cannot be continued: better now than after hours of
  /// measuring.
  void rehearse() const;

  std::filesystem::path path_;
  std::vector<Column> columns_;
  std::vector<std::vector<Cell>> rows_;
  int first_run_ = 1;
  std::deque<std::string> runs_;  ///< of this program; references to them stay valid
  bool exists_ = false;
  bool is_foreign_ = false;  ///< started by another process
  bool outdated_ = false;    ///< the table on disk lacks later columns
};

}  // namespace katt::io
