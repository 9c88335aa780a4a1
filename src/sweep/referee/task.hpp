#pragma once

#include <filesystem>
#include <limits>
#include <string>

#include "plan/sweep_file.hpp"

namespace katt::bench {

/// A task of `katt referee`: which kernel, on which cases, and what it must keep to. The file is a
/// JSON object (docs/referee.md):
///
///   {"candidate": "mine.so",                 a path, from the folder of the file
///    "operator": "attention",
///    "axes": {"seq": [512, 1024], "dtype": "f32,bf16", "causal": 1},
///    "variants": ["naive", "flash"],         to compare with; without it all
///    "peers": ["torch_flash"],
///    "baseline": "naive",                    that `ratio` refers to
///    "limits": {"ratio": 1.5, "memory_bytes": 1e9, "max_abs_err": 1e-4, "timeout_s": 20},
///    "measuring": {"budget_s": 1, "seed": 7},
///    "untrusted": true}
struct RefereeTask {
  std::string where;  ///< the file, for messages
  SweepRequest request;
  std::string candidate;   ///< name of its rows
  std::string baseline;    ///< a variant or a peer; empty: the operator's own
  double least_ratio = 0;  ///< of the baseline's time to the candidate's, the lower bound of it
  double most_bytes = std::numeric_limits<double>::infinity();  ///< of the candidate's process
  double most_error = std::numeric_limits<double>::infinity();  ///< beyond the error rule
  std::filesystem::path library;
};

/// Reads a task. Throws InputError of one line, "FILE: KEY: …".
[[nodiscard]] RefereeTask read_task(const std::filesystem::path& path, const Registry& registry);

}  // namespace katt::bench
