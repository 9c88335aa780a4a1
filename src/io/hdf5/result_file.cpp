#include "io/hdf5/result_file.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <set>
#include <span>
#include <stdexcept>
#include <tuple>

#include "core/error.hpp"
#include "io/atomic_file.hpp"
#include "io/hdf5/hdf5_input.hpp"
#include "io/hdf5/hdf5_output.hpp"
#include "io/hdf5/result_table.hpp"
#include "io/printable.hpp"

namespace katt::io {

namespace {

using impl::append_rows;
using impl::check_columns;
using impl::create_points;
using impl::Handle;
using impl::Hdf5Input;
using impl::index_of;
using impl::kind_text;
using impl::read_table;
using impl::require;
using impl::row_count;
using impl::start_file;

/// Number of the first run that left no trace in the file; runs are numbered without gaps.
int next_run(const Hdf5Input& input) {
  int number = 1;
  for (const char* group : {"runs", "samples", "ceilings"}) {
    while (input.has(group) && input.has(std::string(group) + "/" + run_name(number))) ++number;
  }
  return number;
}

/// Fills the scratch file of `path`.
void write_bytes(const std::filesystem::path& temporary, std::span<const std::byte> bytes,
                 const std::filesystem::path& path) {
  const int descriptor = ::open(temporary.c_str(), O_WRONLY | O_CLOEXEC);
  const int error = descriptor < 0 ? errno : impl::write_all(descriptor, bytes);
  if (descriptor >= 0) ::close(descriptor);
  if (error != 0) impl::throw_unwritable(path, error);
}

}  // namespace

std::string run_name(int number) {
  const std::string digits = std::to_string(number);
  return "run-" + std::string(digits.size() < 4 ? 4 - digits.size() : 0, '0') + digits;
}

ResultFile ResultFile::create(const std::filesystem::path& path, std::vector<Column> columns) {
  check_columns(columns);
  if (!path.empty()) const AtomicFile probe(path);
  ResultFile file;
  file.path_ = path;
  file.columns_ = std::move(columns);
  file.runs_ = {run_name(1)};
  return file;
}

ResultFile ResultFile::resume(const std::filesystem::path& path, std::vector<Column> columns) {
  ResultFile file = create(path, std::move(columns));
  if (!std::filesystem::exists(path)) return file;
  const Hdf5Input input(path);
  impl::check_is_result_file(input);
  bool same = true;
  std::tie(file.rows_, same) =
      read_table(input, "points", "a table of one row per point and variant", file.columns_);
  file.outdated_ = !same;
  file.first_run_ = next_run(input);
  file.runs_ = {run_name(file.first_run_)};
  file.exists_ = true;
  file.is_foreign_ = true;
  file.rehearse();
  return file;
}

void ResultFile::rehearse() const {
  std::vector<Cell> cells;
  for (const Column& column : columns_) {
    switch (column.kind) {
      case ColumnKind::text: cells.emplace_back("x"); break;
      case ColumnKind::integer: cells.emplace_back(std::int64_t{0}); break;
      case ColumnKind::real: cells.emplace_back(0.0); break;
    }
  }
  try {
    edit({}, [&](hid_t file) {
      for (const char* group : {"/runs/", "/samples/", "/ceilings/"}) {
        (void)impl::open_group(file, group + run());
      }
      (void)impl::open_group(file, "/code");
      append_rows(file, columns_, {cells});
    });
  } catch (const std::runtime_error& error) {
    throw InputError(path_.string() +
                     ": is a damaged result file: it can be read, but to continue it " +
                     impl::printable(error.what()));
  }
}

void ResultFile::edit(const std::filesystem::path& temporary,
                      const std::function<void(std::int64_t)>& change) const {
  const auto apply = [&] {
    impl::MemoryFile file = exists_ ? impl::MemoryFile(path_) : start_file(columns_);
    {
      const Handle points(
          require(H5Dopen2(file.get(), "points", H5P_DEFAULT), "open dataset points"));
      if (row_count(points) != rows_.size()) {
        throw std::runtime_error(path_.string() + ": holds " + std::to_string(row_count(points)) +
                                 " rows, expected " + std::to_string(rows_.size()) +
                                 ": another program has written to it");
      }
    }
    if (outdated_) {
      require(H5Ldelete(file.get(), "points", H5P_DEFAULT), "replace dataset points");
      create_points(file.get(), columns_);
      append_rows(file.get(), columns_, rows_);
    }
    change(file.get());
    const std::span<const std::byte> bytes = file.close();
    if (temporary.empty()) return;  // a rehearsal
    write_bytes(temporary, bytes, path_);
  };
  if (!is_foreign_) return apply();
  constexpr std::size_t passes = 4;  // it is read, copied and written
  impl::run_in_child(
      [&] {
        H5Lunregister(H5L_TYPE_EXTERNAL);  // a group of the file must not lie in another file
        apply();
      },
      exists_ ? passes * std::filesystem::file_size(path_) : 0);
}

void ResultFile::commit(const std::function<void(std::int64_t)>& change) {
  if (path_.empty()) return;  // the rows exist in memory only
  impl::silence_errors();
  AtomicFile target(path_);
  edit(target.temporary(), change);
  target.commit();
  exists_ = true;
  outdated_ = false;
}

void ResultFile::commit_run(const Attributes& attributes, const std::string& run) {
  commit([&](std::int64_t file) { impl::write_run(file, own_run(run), attributes); });
}

void ResultFile::commit_ceilings(const std::vector<CeilingRow>& ceilings, const std::string& run) {
  commit([&](std::int64_t file) { impl::write_ceilings(file, own_run(run), ceilings); });
}

void ResultFile::commit_order(const std::vector<std::size_t>& order) {
  std::vector<std::vector<Cell>> rows;
  std::vector<bool> taken(rows_.size());
  for (const std::size_t row : order) {
    if (row >= rows_.size() || taken[row] || order.size() != rows_.size()) {
      throw std::invalid_argument("the order of rows is no permutation of them");
    }
    taken[row] = true;
    rows.push_back(rows_[row]);
  }
  std::swap(rows_, rows);
  outdated_ = true;
  try {
    commit([](std::int64_t) {});
  } catch (...) {
    std::swap(rows_, rows);
    throw;
  }
}

const std::string& ResultFile::add_run() {
  return runs_.emplace_back(run_name(first_run_ + static_cast<int>(runs_.size())));
}

const std::string& ResultFile::own_run(const std::string& name) const {
  const auto found = std::ranges::find(runs_, name.empty() ? run() : name);
  if (found == runs_.end()) throw std::invalid_argument("run " + name + " is not of this program");
  return *found;
}

void ResultFile::check(const Row& row) const {
  if (row.cells.size() != columns_.size()) {
    throw std::invalid_argument("a row has " + std::to_string(row.cells.size()) +
                                " cells, expected " + std::to_string(columns_.size()));
  }
  for (std::size_t i = 0; i < columns_.size(); ++i) {
    // the alternatives of Cell are in the order of ColumnKind
    if (row.cells[i].index() != static_cast<std::size_t>(columns_[i].kind)) {
      throw std::invalid_argument("column " + columns_[i].name + ": expected " +
                                  kind_text(columns_[i]));
    }
  }
  const std::size_t point = index_of(columns_, "point");
  const auto& name = std::get<std::string>(row.cells[point]);
  if (name.empty() || name == "." || name.find('/') != std::string::npos ||
      name.size() > columns_[point].width) {
    throw std::invalid_argument("point \"" + name + "\" cannot name a dataset of at most " +
                                std::to_string(columns_[point].width) + " bytes");
  }
  (void)own_run(std::get<std::string>(row.cells[index_of(columns_, "run")]));
}

void ResultFile::commit_rows(const std::vector<Row>& rows, const CodeFiles& code) {
  if (rows.empty()) return;
  const std::size_t point = index_of(columns_, "point");
  const std::size_t run = index_of(columns_, "run");
  const auto place = [&](const std::vector<Cell>& cells) {
    return std::get<std::string>(cells[run]) + '/' + std::get<std::string>(cells[point]);
  };
  std::set<std::string> taken;
  for (const auto& cells : rows_) taken.insert(place(cells));
  for (const Row& row : rows) {
    check(row);
    if (!taken.insert(place(row.cells)).second) {
      throw std::invalid_argument("point " + std::get<std::string>(row.cells[point]) +
                                  " is in the run already");
    }
  }
  commit([&](std::int64_t file) {
    impl::write_code(file, code);
    impl::write_rows(file, columns_, rows);
  });
  for (const Row& row : rows) rows_.push_back(row.cells);
}

}  // namespace katt::io
