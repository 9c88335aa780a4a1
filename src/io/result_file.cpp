#include "io/result_file.hpp"

#include <algorithm>
#include <cstring>
#include <limits>
#include <set>
#include <stdexcept>
#include <tuple>

#include "core/error.hpp"
#include "io/atomic_file.hpp"
#include "io/hdf5_input.hpp"
#include "io/hdf5_output.hpp"
#include "io/text.hpp"

namespace katt::io {

namespace {

using impl::Handle;
using impl::Hdf5Input;
using impl::require;

constexpr std::int64_t schema_version = 1;
constexpr hsize_t rows_per_chunk = 32;

std::size_t bytes_of(const Column& column) {
  return column.kind == ColumnKind::text ? column.width : 8;
}

std::size_t bytes_of(const std::vector<Column>& columns) {
  std::size_t bytes = 0;
  for (const Column& column : columns) bytes += bytes_of(column);
  return bytes;
}

Handle type_of(const Column& column) {
  switch (column.kind) {
    case ColumnKind::text: return impl::text_type(column.width);
    case ColumnKind::integer: return Handle(H5Tcopy(H5T_NATIVE_INT64));
    case ColumnKind::real: break;
  }
  return Handle(H5Tcopy(H5T_NATIVE_DOUBLE));
}

/// The packed compound type of a row, in memory and in the file.
Handle type_of(const std::vector<Column>& columns) {
  Handle type(require(H5Tcreate(H5T_COMPOUND, bytes_of(columns)), "make the type of a row"));
  std::size_t offset = 0;
  for (const Column& column : columns) {
    require(H5Tinsert(type.get(), column.name.c_str(), offset, type_of(column).get()),
            "make column " + column.name);
    offset += bytes_of(column);
  }
  return type;
}

void pack(const std::vector<Column>& columns, const std::vector<Cell>& cells, std::byte* out) {
  for (std::size_t i = 0; i < columns.size(); ++i) {
    if (const auto* text = std::get_if<std::string>(&cells[i])) {
      impl::copy_text(*text, reinterpret_cast<char*>(out), columns[i].width);
    } else if (const auto* integer = std::get_if<std::int64_t>(&cells[i])) {
      std::memcpy(out, integer, sizeof *integer);
    } else {
      std::memcpy(out, &std::get<double>(cells[i]), sizeof(double));
    }
    out += bytes_of(columns[i]);
  }
}

std::vector<Cell> unpack(const std::vector<Column>& columns, const std::byte* in) {
  std::vector<Cell> cells;
  cells.reserve(columns.size());
  for (const Column& column : columns) {
    if (column.kind == ColumnKind::text) {
      const auto* text = reinterpret_cast<const char*>(in);
      cells.emplace_back(std::string(text, std::find(text, text + column.width, '\0')));
    } else if (column.kind == ColumnKind::integer) {
      std::int64_t value = 0;
      std::memcpy(&value, in, sizeof value);
      cells.emplace_back(value);
    } else {
      double value = 0;
      std::memcpy(&value, in, sizeof value);
      cells.emplace_back(value);
    }
    in += bytes_of(column);
  }
  return cells;
}

std::size_t index_of(const std::vector<Column>& columns, std::string_view name) {
  const auto found = std::ranges::find(columns, name, &Column::name);
  if (found == columns.end() || found->kind != ColumnKind::text) {
    throw std::invalid_argument("columns of a result file: no text column " + std::string(name));
  }
  return static_cast<std::size_t>(found - columns.begin());
}

void check_columns(const std::vector<Column>& columns) {
  std::set<std::string_view> names;
  for (const Column& column : columns) {
    if (!names.insert(column.name).second || column.name.empty() || bytes_of(column) == 0) {
      throw std::invalid_argument("columns of a result file: \"" + column.name +
                                  "\" is repeated, or has no name or no width");
    }
  }
  (void)index_of(columns, "point");
  (void)index_of(columns, "run");
}

void create_points(hid_t file, const std::vector<Column>& columns) {
  const hsize_t none = 0;
  const hsize_t unlimited = H5S_UNLIMITED;
  const Handle space(H5Screate_simple(1, &none, &unlimited));
  const Handle creation(H5Pcreate(H5P_DATASET_CREATE));
  H5Pset_chunk(creation.get(), 1, &rows_per_chunk);
  H5Pset_obj_track_times(creation.get(), 0);
  const Handle points(require(H5Dcreate2(file, "points", type_of(columns).get(), space.get(),
                                         H5P_DEFAULT, creation.get(), H5P_DEFAULT),
                              "create dataset points"));
}

void write_profile(hid_t file, const std::string& run, const std::string& point,
                   const Profile& profile) {
  static const std::vector<Column> columns{{"name", ColumnKind::text, 96},
                                           {"depth", ColumnKind::integer},
                                           {"calls", ColumnKind::real},
                                           {"time_s", ColumnKind::real}};
  const std::size_t width = bytes_of(columns);
  std::vector<std::byte> packed(profile.rows.size() * width);
  for (std::size_t i = 0; i < profile.rows.size(); ++i) {
    const ProfileRow& row = profile.rows[i];
    pack(columns, {row.name, row.depth, row.calls, row.time_s}, packed.data() + i * width);
  }
  const Handle group = impl::open_group(file, "/profile/" + run);
  impl::write_dataset(group.get(), point, type_of(columns).get(),
                      {static_cast<std::int64_t>(profile.rows.size())}, packed.data());
  const Handle data(require(H5Dopen2(group.get(), point.c_str(), H5P_DEFAULT), "open a profile"));
  impl::write_attribute(data.get(), "runs", profile.runs);
  impl::write_attribute(data.get(), "time_s", profile.time_s);
}

Handle start_file(const std::filesystem::path& path, const std::vector<Column>& columns) {
  Handle file = impl::create_output(path);
  impl::write_attribute(file.get(), "schema", schema_version);
  impl::write_attribute(file.get(), "generator", "katt");
  for (const char* group : {"runs", "samples", "ceilings"}) {
    (void)impl::open_group(file.get(), group);
  }
  create_points(file.get(), columns);
  return file;
}

hsize_t row_count(const Handle& points) {
  const Handle space(H5Dget_space(points.get()));
  return static_cast<hsize_t>(
      require(H5Sget_simple_extent_npoints(space.get()), "read the length of /points"));
}

void append_rows(hid_t file, const std::vector<Column>& columns,
                 const std::vector<std::vector<Cell>>& rows) {
  if (rows.empty()) return;
  const std::size_t width = bytes_of(columns);
  std::vector<std::byte> packed(rows.size() * width);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    pack(columns, rows[i], packed.data() + i * width);
  }
  const Handle points(require(H5Dopen2(file, "points", H5P_DEFAULT), "open dataset points"));
  const hsize_t start = row_count(points);
  const hsize_t count = rows.size();
  const hsize_t total = start + count;
  require(H5Dset_extent(points.get(), &total), "extend dataset points");
  const Handle target(H5Dget_space(points.get()));
  require(H5Sselect_hyperslab(target.get(), H5S_SELECT_SET, &start, nullptr, &count, nullptr),
          "select the new rows");
  const Handle source(H5Screate_simple(1, &count, nullptr));
  require(H5Dwrite(points.get(), type_of(columns).get(), source.get(), target.get(), H5P_DEFAULT,
                   packed.data()),
          "write dataset points");
}

std::string kind_text(const Column& column) {
  switch (column.kind) {
    case ColumnKind::text: return "text of " + std::to_string(column.width) + " bytes";
    case ColumnKind::integer: return "int64";
    case ColumnKind::real: break;
  }
  return "float64";
}

/// Which of `columns` the table /points has, in their order: all but later ones. Refuses any other table.
struct HeldColumns {
  std::vector<bool> held;
  bool to_the_letter = true;  ///< none is missing, and no int64 stands in the place of a float64
};

HeldColumns check_columns(const Hdf5Input& input, const impl::DatasetInfo& info,
                          const std::vector<Column>& columns) {
  const auto reject = [&input](const std::string& holds, const std::string& expected) {
    input.reject_dataset("points", holds + ", expected " + expected +
                                       "; it is of another version of katt or of another program");
  };
  if (info.kind != impl::ElementKind::table) reject("holds " + info.type, "a table");
  HeldColumns answer;
  std::size_t next = 0;
  for (const Column& column : columns) {
    const std::string place = "column " + std::to_string(next + 1) + " ";
    const std::string expected = column.name + " (" + kind_text(column) + ")";
    const bool at_end = next == info.columns.size();
    if (column.later && (at_end || info.columns[next].name != column.name)) {
      answer.held.push_back(false);
      answer.to_the_letter = false;
      continue;
    }
    if (at_end) reject(place + "is missing", expected);
    const impl::ColumnInfo& held = info.columns[next++];
    const bool count = column.kind == ColumnKind::real && held.is_int64;
    if (held.name != column.name || !(held.is_expected || count)) {
      reject(place + "is " + impl::printable(held.name) + " (" + held.type + ")", expected);
    }
    answer.held.push_back(true);
    answer.to_the_letter = answer.to_the_letter && held.is_expected;
  }
  if (next < info.columns.size()) {
    reject("holds " + std::to_string(info.columns.size()) + " columns",
           std::to_string(columns.size()));
  }
  return answer;
}

/// What stands for the cell of a column that the file lacks.
Cell unknown_cell(const Column& column) {
  switch (column.kind) {
    case ColumnKind::text: return std::string();
    case ColumnKind::integer: return std::int64_t{0};
    case ColumnKind::real: break;
  }
  return std::numeric_limits<double>::quiet_NaN();
}

/// The rows, and whether their table is as this version writes it.
std::pair<std::vector<std::vector<Cell>>, bool> read_rows(const Hdf5Input& input,
                                                          const std::vector<Column>& columns) {
  const std::string expected = "a table of one row per point and variant";
  const impl::DatasetInfo info = input.describe("points", expected, type_of(columns));
  const HeldColumns held = check_columns(input, info, columns);
  if (info.shape.size() != 1) {
    input.reject_dataset("points",
                         "holds shape " + impl::shape_text(info.shape) + ", expected " + expected);
  }
  const std::size_t width = bytes_of(columns);
  const std::size_t count = input.readable_count("points", info, width);
  std::vector<std::byte> packed(count * width);
  if (count > 0) input.read("points", type_of(columns).get(), packed);
  std::vector<std::vector<Cell>> rows;
  rows.reserve(count);
  for (std::size_t i = 0; i < count; ++i) {
    rows.push_back(unpack(columns, packed.data() + i * width));
    for (std::size_t c = 0; c < columns.size(); ++c) {
      if (!held.held[c]) rows.back()[c] = unknown_cell(columns[c]);
    }
  }
  return {std::move(rows), held.to_the_letter};
}

std::string run_name(int number) {
  const std::string digits = std::to_string(number);
  return "run-" + std::string(digits.size() < 4 ? 4 - digits.size() : 0, '0') + digits;
}

/// Name of the first run that left no trace in the file; runs are numbered without gaps.
std::string next_run(const Hdf5Input& input) {
  int number = 1;
  for (const char* group : {"runs", "samples", "ceilings"}) {
    while (input.has(group) && input.has(std::string(group) + "/" + run_name(number))) ++number;
  }
  return run_name(number);
}

}  // namespace

ResultFile ResultFile::create(const std::filesystem::path& path, std::vector<Column> columns) {
  check_columns(columns);
  { const AtomicFile probe(path); }
  ResultFile file;
  file.path_ = path;
  file.columns_ = std::move(columns);
  file.run_ = run_name(1);
  return file;
}

ResultFile ResultFile::resume(const std::filesystem::path& path, std::vector<Column> columns) {
  ResultFile file = create(path, std::move(columns));
  if (!std::filesystem::exists(path)) return file;
  const Hdf5Input input(path);
  if (input.attribute("generator") != impl::Scalar("katt")) {
    input.reject("is not a result file of katt: its attribute generator is not \"katt\"");
  }
  if (input.attribute("schema") != impl::Scalar(schema_version)) {
    input.reject("attribute schema: expected " + std::to_string(schema_version) +
                 ", the version that this katt writes");
  }
  bool same = true;
  std::tie(file.rows_, same) = read_rows(input, file.columns_);
  file.outdated_ = !same;
  file.run_ = next_run(input);
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
    const AtomicFile discarded(path_);
    discarded.copy_current();
    edit(discarded.temporary(), [&](hid_t file) {
      for (const char* group : {"/runs/", "/samples/", "/ceilings/"}) {
        (void)impl::open_group(file, group + run_);
      }
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
    Handle file = exists_ ? impl::open_output(temporary) : start_file(temporary, columns_);
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
    impl::close_output(std::move(file), temporary);
  };
  if (!is_foreign_) return apply();
  impl::run_in_child([&] {
    H5Lunregister(H5L_TYPE_EXTERNAL);  // a group of the file may lie in no other file
    apply();
  });
}

void ResultFile::commit(const std::function<void(std::int64_t)>& change) {
  impl::silence_errors();
  AtomicFile target(path_);
  if (exists_) target.copy_current();
  edit(target.temporary(), change);
  target.commit();
  exists_ = true;
  outdated_ = false;
}

void ResultFile::commit_run(const Attributes& attributes) {
  commit([&](std::int64_t file) {
    const Handle group = impl::open_group(file, "/runs/" + run_);
    for (const auto& [name, value] : attributes) impl::write_attribute(group.get(), name, value);
  });
}

void ResultFile::commit_ceilings(const std::vector<CeilingRow>& ceilings) {
  static const std::vector<Column> columns{{"name", ColumnKind::text, 32},
                                           {"value", ColumnKind::real},
                                           {"unit", ColumnKind::text, 8},
                                           {"threads", ColumnKind::integer},
                                           {"bytes", ColumnKind::integer}};
  const std::size_t width = bytes_of(columns);
  std::vector<std::byte> packed(ceilings.size() * width);
  for (std::size_t i = 0; i < ceilings.size(); ++i) {
    const CeilingRow& row = ceilings[i];
    pack(columns, {row.name, row.value, row.unit, row.threads, row.bytes},
         packed.data() + i * width);
  }
  commit([&](std::int64_t file) {
    const std::string name = "/ceilings/" + run_;
    if (H5Lexists(file, name.c_str(), H5P_DEFAULT) > 0) {
      require(H5Ldelete(file, name.c_str(), H5P_DEFAULT), "replace " + name);
    }
    impl::write_dataset(file, name, type_of(columns).get(),
                        {static_cast<std::int64_t>(ceilings.size())}, packed.data());
  });
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
  if (std::get<std::string>(row.cells[index_of(columns_, "run")]) != run_) {
    throw std::invalid_argument("point " + name + ": its run is not " + run_);
  }
}

void ResultFile::commit_rows(const std::vector<Row>& rows) {
  if (rows.empty()) return;
  const std::size_t point = index_of(columns_, "point");
  const std::size_t run = index_of(columns_, "run");
  std::set<std::string> taken;
  for (const auto& cells : rows_) {
    if (std::get<std::string>(cells[run]) == run_)
      taken.insert(std::get<std::string>(cells[point]));
  }
  for (const Row& row : rows) {
    check(row);
    if (!taken.insert(std::get<std::string>(row.cells[point])).second) {
      throw std::invalid_argument("point " + std::get<std::string>(row.cells[point]) +
                                  " is in the run already");
    }
  }
  commit([&](std::int64_t file) {
    std::vector<std::vector<Cell>> cells;
    for (const Row& row : rows) cells.push_back(row.cells);
    append_rows(file, columns_, cells);
    const Handle group = impl::open_group(file, "/samples/" + run_);
    for (const Row& row : rows) {
      const auto& name = std::get<std::string>(row.cells[point]);
      if (!row.samples_s.empty()) {
        impl::write_dataset(group.get(), name, H5T_NATIVE_DOUBLE,
                            {static_cast<std::int64_t>(row.samples_s.size())},
                            row.samples_s.data());
      }
      if (row.profile.runs > 0) write_profile(file, run_, name, row.profile);
    }
  });
  for (const Row& row : rows) rows_.push_back(row.cells);
}

}  // namespace katt::io
