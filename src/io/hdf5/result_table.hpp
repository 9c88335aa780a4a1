#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "io/hdf5/hdf5_output.hpp"
#include "io/hdf5/result_file.hpp"

/// The form of a result file's parts in HDF5 (docs/schema.md), for its writer ResultFile and its
/// reader read_result().
namespace katt::io::impl {

class Hdf5Input;

constexpr std::int64_t schema_version = 1;

/// Throws InputError unless the file says that it is a result file of this schema.
void check_is_result_file(const Hdf5Input& input);

/// For messages: "int64", "text of 32 bytes".
std::string kind_text(const Column& column);
/// Index of a text column. Throws std::invalid_argument when there is none.
std::size_t index_of(const std::vector<Column>& columns, std::string_view name);
/// Throws std::invalid_argument when columns of /points are repeated or lack a name.
void check_columns(const std::vector<Column>& columns);

/// A new file with its empty groups and an empty table /points.
MemoryFile start_file(const std::vector<Column>& columns);
void create_points(hid_t file, const std::vector<Column>& columns);
hsize_t row_count(const Handle& points);
/// Appends rows to /points.
void append_rows(hid_t file, const std::vector<Column>& columns,
                 const std::vector<std::vector<Cell>>& rows);

/// Writes /runs/RUN and replaces existing values.
void write_run(hid_t file, const std::string& run, const Attributes& attributes);
/// Writes /ceilings/RUN.
void write_ceilings(hid_t file, const std::string& run, const std::vector<CeilingRow>& ceilings);
/// Adds to /code what is not there yet.
void write_code(hid_t file, const CodeFiles& code);
/// Appends rows to /points, with their samples and profiles under the run that each names.
void write_rows(hid_t file, const std::vector<Column>& columns, const std::vector<Row>& rows);

/// The rows of a table, and true when the table is as this version writes it. Later columns may be
/// missing; their cells are then NaN. `expected` completes the messages. Throws InputError for any
/// other table.
std::pair<std::vector<std::vector<Cell>>, bool> read_table(const Hdf5Input& input,
                                                           const std::string& name,
                                                           const std::string& expected,
                                                           const std::vector<Column>& columns);
/// A profile as a dataset of a group.
void write_profile(hid_t group, const std::string& name, const Profile& profile);

std::vector<CeilingRow> read_ceilings(const Hdf5Input& input, const std::string& run);
std::vector<CodeFile> read_code_files(const Hdf5Input& input, const std::string& name);
std::vector<ProfileRow> read_profile_rows(const Hdf5Input& input, const std::string& name);

}  // namespace katt::io::impl
