#pragma once

#include <cstdint>
#include <deque>
#include <filesystem>
#include <functional>
#include <limits>
#include <map>
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
  bool later = false;  ///< files of earlier versions lack this column; their rows then hold NaN, or
                       ///< empty text
  friend bool operator==(const Column&, const Column&) = default;
};

using Cell = std::variant<std::string, std::int64_t, double>;

/// A region or kernel of a profile. One of depth 1 is part of the nearest one of depth 0 before it.
struct ProfileRow {
  std::string name;  ///< e.g. "katt::rope"
  std::int64_t depth = 0;
  double calls = 0;       ///< calls in one run
  double time_s = 0;      ///< time of all its calls
  double flops = 0;       ///< operations of all its calls, by the mathematics; 0: nobody counted
  double bytes = 0;       ///< least traffic of all its calls; 0: nobody counted
  std::string ceiling{};  ///< the nearest measured limit; "" when none is known
  double ceiling_fraction = std::numeric_limits<double>::quiet_NaN();  ///< share of it that was
                                                                       ///< used
};

/// The time of a run by regions and kernels.
struct Profile {
  std::int64_t runs = 0;  ///< runs that were averaged; 0: there is no profile
  double time_s = 0;      ///< time of one run, profiled
  std::vector<ProfileRow> rows{};
};

/// One finished (point, variant): cells in column order, its samples in seconds (empty where it
/// did not run), stored as /samples/RUN/POINT, and its profile, if any, as /profile/RUN/POINT. The
/// cycles of each sample, where they were counted, are /cycles/RUN/POINT.
struct Row {
  std::vector<Cell> cells;
  std::vector<double> samples_s;
  Profile profile{};
  std::vector<double> cycles{};
};

/// A file of the project, by its path, and the hash of its tokens: a row of /code/CODE.
struct CodeFile {
  std::string file;
  std::string tokens;
};
/// Files of code by the value of the column "code" that stands for them.
using CodeFiles = std::map<std::string, std::vector<CodeFile>, std::less<>>;

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
/// that it was making. One program at a time writes a file. The commit functions throw
/// std::runtime_error when they cannot write the change (a full disk, for example) and
/// std::invalid_argument when the change makes no sense; the file then stays as it was.
class ResultFile {
 public:
  /// Starts a new file in memory. The first commit writes it to disk and replaces an existing file;
  /// with an empty `path` nothing reaches the disk. `columns` hold at least the texts "point" and
  /// "run". Throws InputError when the folder cannot be made or written.
  static ResultFile create(const std::filesystem::path& path, std::vector<Column> columns);
  /// Continues a file, or starts it when it is missing. A file without the later columns, or with
  /// int64 where `columns` say real, is read as if it had them; the first commit rewrites its
  /// table. Throws InputError when it is not a result file of this schema or its columns differ
  /// otherwise.
  static ResultFile resume(const std::filesystem::path& path, std::vector<Column> columns);

  /// Name of the run that this program adds ("run-0001", one more than the last in the file).
  [[nodiscard]] const std::string& run() const { return runs_.front(); }
  /// Adds another run of this program, measured on another machine. Returns its name, the next
  /// number.
  const std::string& add_run();
  /// The rows of the file, without their samples.
  [[nodiscard]] const std::vector<std::vector<Cell>>& rows() const { return rows_; }

  /// Writes a run's group and attributes (a second call replaces values). `run` is one of this
  /// program's runs; empty means run().
  void commit_run(const Attributes& attributes, const std::string& run = {});
  /// Writes /ceilings/RUN.
  void commit_ceilings(const std::vector<CeilingRow>& ceilings, const std::string& run = {});
  /// Appends finished rows, all or none. The column "point" names each row's dataset below
  /// /samples/RUN and /profile/RUN, so it is unique in the run; the column "run" is one of this
  /// program's. Adds to /code what is not there yet.
  void commit_rows(const std::vector<Row>& rows, const CodeFiles& code = {});
  /// Puts the rows into another order: row i becomes the one that was order[i].
  void commit_order(const std::vector<std::size_t>& order);

 private:
  ResultFile() = default;
  void check(const Row& row) const;
  /// The run of this program with that name; an empty name means run().
  [[nodiscard]] const std::string& own_run(const std::string& name) const;
  /// Makes a change to the file on disk, all or nothing. The change gets the identifier of the open
  /// HDF5 file.
  void commit(const std::function<void(std::int64_t)>& change);
  /// Makes the same change to a copy. A child process edits, and reads, a file that this process
  /// has not started (io/hdf5/hdf5_input.hpp).
  void edit(const std::filesystem::path& temporary,
            const std::function<void(std::int64_t)>& change) const;
  /// Throws InputError when the file cannot be continued, so that the user learns it before hours
  /// of measuring.
  void rehearse() const;

  std::filesystem::path path_;
  std::vector<Column> columns_;
  std::vector<std::vector<Cell>> rows_;
  int first_run_ = 1;
  std::deque<std::string> runs_;  ///< runs of this program; references to them stay valid
  bool exists_ = false;
  bool is_foreign_ = false;  ///< started by another process
  bool outdated_ = false;    ///< the table on disk lacks later columns
};

}  // namespace katt::io
