#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "io/hdf5/result_contents.hpp"
#include "op/registry.hpp"

namespace katt::bench {

/// Merges several result files into one.
struct Merged {
  io::ResultContents contents;
  std::size_t files = 0;
  std::vector<std::string> missing;     ///< parts without a run: "3/4"
  std::vector<std::string> unfinished;  ///< parts with missing rows: "2/4"
  std::size_t duplicates = 0;           ///< rows that another run measured too
  std::string first_duplicate;          ///< e.g. "attention forward flash f32 in a.h5 and b.h5"
  std::size_t copies = 0;             ///< runs that came twice, equal to the bit, and are kept once
  std::vector<std::string> commits;   ///< commits of the programs, each once
  std::vector<std::string> machines;  ///< each once: "AMD EPYC 9654 (96 cores)"
};

/// Merges result files. Runs stay apart and get new numbers in the order of the files; a run that
/// comes twice, equal to the bit, is kept once. The rows of the parts of one split stand in the
/// order of the sweep in one part; other rows stand in the order of the files. Rows that measure
/// the same are all kept. Throws InputError of one line when a file is not a result file of this
/// schema with the columns of these operators.
[[nodiscard]] Merged merge_results(const Registry& registry,
                                   std::span<const std::filesystem::path> files);

/// Lines for a reader of the file about missing parts, duplicates, machines and commits.
[[nodiscard]] std::vector<std::string> notes(const Merged& merged);

}  // namespace katt::bench
