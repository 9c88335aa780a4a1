#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "io/hdf5/result_contents.hpp"
#include "op/registry.hpp"

namespace katt::bench {

/// Several result files as one.
struct Merged {
  io::ResultContents contents;
  std::size_t files = 0;
  std::vector<std::string> missing;     ///< parts of which there is no run: "3/4"
  std::vector<std::string> unfinished;  ///< parts of which rows are missing: "2/4"
  std::size_t duplicates = 0;           ///< rows of which there is another from another run
  std::string first_duplicate;          ///< e.g. "attention forward flash f32 in a.h5 and b.h5"
  std::size_t copies = 0;             ///< runs that were there twice, to the bit, and are kept once
  std::vector<std::string> commits;   ///< of the programs, each once
  std::vector<std::string> machines;  ///< each once: "AMD EPYC 9654 (96 cores)"
};

/// Puts result files together. Runs are kept apart and numbered anew in the order of the files, one
/// that is there twice, to the bit, once. The rows of the parts of one split of a sweep are in the
/// order in which the sweep in one part has them; otherwise that of the files. Rows that measure the
/// same are all kept. Throws InputError of one line where a file is no result file of this schema
/// with the columns of these operators.
[[nodiscard]] Merged merge_results(const Registry& registry,
                                   std::span<const std::filesystem::path> files);

/// What a reader of the file must know: lines about missing parts, duplicates, machines and commits.
[[nodiscard]] std::vector<std::string> notes(const Merged& merged);

}  // namespace katt::bench
