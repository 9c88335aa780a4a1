#include "io/hdf5/result_table.hpp"

#include <algorithm>
#include <cstring>
#include <limits>
#include <set>
#include <stdexcept>

#include "core/error.hpp"
#include "io/hdf5/hdf5_input.hpp"
#include "io/hdf5/hdf5_output.hpp"
#include "io/printable.hpp"

namespace katt::io::impl {

namespace {

constexpr hsize_t rows_per_chunk = 32;

const std::vector<Column>& ceiling_columns() {
  static const std::vector<Column> columns{{"name", ColumnKind::text, 32},
                                           {"value", ColumnKind::real},
                                           {"unit", ColumnKind::text, 8},
                                           {"threads", ColumnKind::integer},
                                           {"bytes", ColumnKind::integer}};
  return columns;
}

const std::vector<Column>& code_columns() {
  static const std::vector<Column> columns{{"file", ColumnKind::text, 96},
                                           {"tokens", ColumnKind::text, 16}};
  return columns;
}

const std::vector<Column>& profile_columns() {
  static const std::vector<Column> columns{{"name", ColumnKind::text, 96},
                                           {"depth", ColumnKind::integer},
                                           {"calls", ColumnKind::real},
                                           {"time_s", ColumnKind::real},
                                           {"flops", ColumnKind::real, 0, true},
                                           {"bytes", ColumnKind::real, 0, true},
                                           {"ceiling", ColumnKind::text, 24, true},
                                           {"ceiling_fraction", ColumnKind::real, 0, true}};
  return columns;
}

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
    case ColumnKind::text: return text_type(column.width);
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

/// The rows, each as its packed compound type.
std::vector<std::byte> packed(const std::vector<Column>& columns,
                              const std::vector<std::vector<Cell>>& rows) {
  std::vector<std::byte> bytes(rows.size() * bytes_of(columns));
  std::byte* out = bytes.data();
  for (const std::vector<Cell>& cells : rows) {
    for (std::size_t i = 0; i < columns.size(); ++i) {
      if (const auto* text = std::get_if<std::string>(&cells[i])) {
        copy_text(*text, reinterpret_cast<char*>(out), columns[i].width);
      } else if (const auto* integer = std::get_if<std::int64_t>(&cells[i])) {
        std::memcpy(out, integer, sizeof *integer);
      } else {
        std::memcpy(out, &std::get<double>(cells[i]), sizeof(double));
      }
      out += bytes_of(columns[i]);
    }
  }
  return bytes;
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

/// A new dataset of a table of any columns.
void write_table(hid_t group, const std::string& name, const std::vector<Column>& columns,
                 const std::vector<std::vector<Cell>>& rows) {
  write_dataset(group, name, type_of(columns).get(), {static_cast<std::int64_t>(rows.size())},
                packed(columns, rows).data());
}

void write_list(hid_t group, const std::string& name, const std::vector<double>& values) {
  write_dataset(group, name, H5T_NATIVE_DOUBLE, {static_cast<std::int64_t>(values.size())},
                values.data());
}

/// The columns of `columns` that the table has, in their order: all but later ones. Refuses any
/// other table.
struct HeldColumns {
  std::vector<bool> held;
  bool to_the_letter = true;  ///< no column is missing, and none is int64 instead of float64
};

HeldColumns held_columns(const Hdf5Input& input, const std::string& name, const DatasetInfo& info,
                         const std::vector<Column>& columns) {
  const auto reject = [&](const std::string& holds, const std::string& expected) {
    input.reject_dataset(name, holds + ", expected " + expected +
                                   "; it is of another version of katt or of another program");
  };
  if (info.kind != ElementKind::table) reject("holds " + info.type, "a table");
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
    const ColumnInfo& held = info.columns[next++];
    const bool count = column.kind == ColumnKind::real && held.is_int64;
    if (held.name != column.name || !(held.is_expected || count)) {
      reject(place + "is " + printable(held.name) + " (" + held.type + ")", expected);
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

/// The value of a cell in a column that the file lacks.
Cell unknown_cell(const Column& column) {
  switch (column.kind) {
    case ColumnKind::text: return std::string();
    case ColumnKind::integer: return std::int64_t{0};
    case ColumnKind::real: break;
  }
  return std::numeric_limits<double>::quiet_NaN();
}

}  // namespace

std::string kind_text(const Column& column) {
  switch (column.kind) {
    case ColumnKind::text: return "text of " + std::to_string(column.width) + " bytes";
    case ColumnKind::integer: return "int64";
    case ColumnKind::real: break;
  }
  return "float64";
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

MemoryFile start_file(const std::vector<Column>& columns) {
  MemoryFile file;
  write_attribute(file.get(), "schema", schema_version);
  write_attribute(file.get(), "generator", "katt");
  for (const char* group : {"runs", "samples", "ceilings"}) {
    (void)open_group(file.get(), group);
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
  const std::vector<std::byte> bytes = packed(columns, rows);
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
                   bytes.data()),
          "write dataset points");
}

std::pair<std::vector<std::vector<Cell>>, bool> read_table(const Hdf5Input& input,
                                                           const std::string& name,
                                                           const std::string& expected,
                                                           const std::vector<Column>& columns) {
  const DatasetInfo info = input.describe(name, expected, type_of(columns));
  const HeldColumns held = held_columns(input, name, info, columns);
  if (info.shape.size() != 1) {
    input.reject_dataset(name, "holds shape " + shape_text(info.shape) + ", expected " + expected);
  }
  const std::size_t width = bytes_of(columns);
  const std::size_t count = input.readable_count(name, info, width);
  std::vector<std::byte> bytes(count * width);
  if (count > 0) input.read(name, type_of(columns).get(), bytes);
  std::vector<std::vector<Cell>> rows;
  rows.reserve(count);
  for (std::size_t i = 0; i < count; ++i) {
    rows.push_back(unpack(columns, bytes.data() + i * width));
    for (std::size_t c = 0; c < columns.size(); ++c) {
      if (!held.held[c]) rows.back()[c] = unknown_cell(columns[c]);
    }
  }
  return {std::move(rows), held.to_the_letter};
}

void write_profile(hid_t group, const std::string& name, const Profile& profile) {
  std::vector<std::vector<Cell>> rows;
  for (const ProfileRow& row : profile.rows) {
    rows.push_back({row.name, row.depth, row.calls, row.time_s, row.flops, row.bytes, row.ceiling,
                    row.ceiling_fraction});
  }
  write_table(group, name, profile_columns(), rows);
  const Handle data(require(H5Dopen2(group, name.c_str(), H5P_DEFAULT), "open a profile"));
  write_attribute(data.get(), "runs", profile.runs);
  write_attribute(data.get(), "time_s", profile.time_s);
}

void write_run(hid_t file, const std::string& run, const Attributes& attributes) {
  const Handle group = open_group(file, "/runs/" + run);
  for (const auto& [name, value] : attributes) write_attribute(group.get(), name, value);
}

void write_ceilings(hid_t file, const std::string& run, const std::vector<CeilingRow>& ceilings) {
  const std::string name = "/ceilings/" + run;
  if (H5Lexists(file, name.c_str(), H5P_DEFAULT) > 0) {
    require(H5Ldelete(file, name.c_str(), H5P_DEFAULT), "replace " + name);
  }
  std::vector<std::vector<Cell>> rows;
  for (const CeilingRow& row : ceilings) {
    rows.push_back({row.name, row.value, row.unit, row.threads, row.bytes});
  }
  write_table(file, name, ceiling_columns(), rows);
}

void write_code(hid_t file, const CodeFiles& code) {
  if (code.empty()) return;
  const Handle group = open_group(file, "/code");
  for (const auto& [name, files] : code) {
    if (H5Lexists(group.get(), name.c_str(), H5P_DEFAULT) > 0) continue;
    std::vector<std::vector<Cell>> rows;
    for (const CodeFile& held : files) rows.push_back({held.file, held.tokens});
    write_table(group.get(), name, code_columns(), rows);
  }
}

void write_rows(hid_t file, const std::vector<Column>& columns, const std::vector<Row>& rows) {
  const std::size_t point = index_of(columns, "point");
  const std::size_t run = index_of(columns, "run");
  std::vector<std::vector<Cell>> cells;
  for (const Row& row : rows) {
    cells.push_back(row.cells);
    const auto& name = std::get<std::string>(row.cells[point]);
    const auto& of_run = std::get<std::string>(row.cells[run]);
    const Handle group = open_group(file, "/samples/" + of_run);
    if (!row.samples_s.empty()) write_list(group.get(), name, row.samples_s);
    if (!row.cycles.empty()) {
      write_list(open_group(file, "/cycles/" + of_run).get(), name, row.cycles);
    }
    if (row.profile.runs > 0) {
      const Handle profiles = open_group(file, "/profile/" + of_run);
      write_profile(profiles.get(), name, row.profile);
    }
  }
  append_rows(file, columns, cells);
}

std::vector<CeilingRow> read_ceilings(const Hdf5Input& input, const std::string& run) {
  std::vector<CeilingRow> ceilings;
  for (const auto& cells :
       read_table(input, "ceilings/" + run, "a table of measured limits", ceiling_columns())
           .first) {
    ceilings.push_back({.name = std::get<std::string>(cells[0]),
                        .value = std::get<double>(cells[1]),
                        .unit = std::get<std::string>(cells[2]),
                        .threads = std::get<std::int64_t>(cells[3]),
                        .bytes = std::get<std::int64_t>(cells[4])});
  }
  return ceilings;
}

std::vector<CodeFile> read_code_files(const Hdf5Input& input, const std::string& name) {
  std::vector<CodeFile> files;
  for (const auto& cells : read_table(input, name, "a table of files", code_columns()).first) {
    files.push_back({std::get<std::string>(cells[0]), std::get<std::string>(cells[1])});
  }
  return files;
}

std::vector<ProfileRow> read_profile_rows(const Hdf5Input& input, const std::string& name) {
  std::vector<ProfileRow> rows;
  for (const auto& cells :
       read_table(input, name, "a table of regions and kernels", profile_columns()).first) {
    rows.push_back({.name = std::get<std::string>(cells[0]),
                    .depth = std::get<std::int64_t>(cells[1]),
                    .calls = std::get<double>(cells[2]),
                    .time_s = std::get<double>(cells[3]),
                    .flops = std::get<double>(cells[4]),
                    .bytes = std::get<double>(cells[5]),
                    .ceiling = std::get<std::string>(cells[6]),
                    .ceiling_fraction = std::get<double>(cells[7])});
  }
  return rows;
}

void check_is_result_file(const Hdf5Input& input) {
  if (input.attribute("generator") != Scalar("katt")) {
    input.reject("is not a result file of katt: its attribute generator is not \"katt\"");
  }
  const std::optional<Scalar> schema = input.attribute("schema");
  if (schema == Scalar(schema_version)) return;
  input.reject_attribute("schema", (schema ? holds(*schema) : "is missing") + ", expected " +
                                       std::to_string(schema_version) +
                                       ", the version that this katt writes");
}

}  // namespace katt::io::impl
