#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "io/hdf5/result_file.hpp"

namespace katt::bench {

/// The place of a column that is there.
[[nodiscard]] inline std::size_t column_index(const std::vector<io::Column>& columns,
                                              std::string_view name) {
  return static_cast<std::size_t>(std::ranges::find(columns, name, &io::Column::name) -
                                  columns.begin());
}

/// The cells of a row by the names of their columns. Refers to both.
class RowCells {
 public:
  RowCells(const std::vector<io::Column>& columns, const io::Row& row) {
    for (std::size_t i = 0; i < columns.size(); ++i) cells_[columns[i].name] = &row.cells[i];
  }
  [[nodiscard]] const io::Cell& cell(std::string_view name) const { return *cells_.at(name); }
  [[nodiscard]] const std::string& text(std::string_view name) const {
    return std::get<std::string>(cell(name));
  }
  [[nodiscard]] std::int64_t integer(std::string_view name) const {
    return std::get<std::int64_t>(cell(name));
  }
  [[nodiscard]] double real(std::string_view name) const { return std::get<double>(cell(name)); }

 private:
  std::map<std::string_view, const io::Cell*> cells_;
};

}  // namespace katt::bench
