#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "io/hdf5/result_file.hpp"

namespace katt::io {

/// One run of a result file: the provenance of its numbers, and the limits of its machine.
struct RunRecord {
  std::string name;
  Attributes attributes;
  std::vector<CeilingRow> ceilings{};

  /// A text attribute; "" when there is none of that name.
  [[nodiscard]] std::string text(std::string_view attribute) const;
  /// An integer attribute; `fallback` when there is none of that name.
  [[nodiscard]] std::int64_t integer(std::string_view attribute, std::int64_t fallback) const;
};

/// A result file in memory.
struct ResultContents {
  std::vector<RunRecord> runs;
  std::vector<Row> rows;  ///< in the order of /points
  CodeFiles code{};
};

/// The runs of a result file, without their ceilings. Throws InputError when it is not a result
/// file of this schema.
[[nodiscard]] std::vector<RunRecord> read_runs(const std::filesystem::path& path);

/// Reads a whole result file, which may be hostile. A file without the later columns is read as if
/// it had them. Throws InputError of one line when it is not a result file of this schema with
/// these columns, or is damaged.
[[nodiscard]] ResultContents read_result(const std::filesystem::path& path,
                                         const std::vector<Column>& columns);

/// Writes a whole result file in one step, and replaces an existing file. Throws as ResultFile.
void write_result(const std::filesystem::path& path, const std::vector<Column>& columns,
                  const ResultContents& contents);

}  // namespace katt::io
