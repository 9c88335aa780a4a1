#pragma once

#include <cmath>
#include <string>
#include <vector>

#include "io/hdf5/result_file.hpp"

namespace katt::test {

/// A few columns of every kind, about as wide as those of a real sweep.
inline std::vector<io::Column> some_columns() {
  using enum io::ColumnKind;
  return {{"point", text, 64}, {"run", text, 16},           {"op", text, 32},
          {"label", text, 64}, {"status", text, 8},         {"reason", text, 256},
          {"seq_q", integer},  {"head_dim", integer},       {"time_s", real},
          {"speedup", real},   {"workspace_bytes", integer}};
}

/// A row of those columns.
inline io::Row some_row(const std::string& point, const std::string& run, std::size_t samples) {
  io::Row row;
  row.cells = {point, run, "attention",           "LLaMA 3 8B",
               "ok",  "",  std::int64_t{1} << 40, std::int64_t{128},
               0.25,  NAN, std::int64_t{-1}};
  for (std::size_t i = 0; i < samples; ++i) row.samples_s.push_back(0.001 * static_cast<double>(i));
  return row;
}

}  // namespace katt::test
