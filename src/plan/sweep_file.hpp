#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "measure/measure.hpp"
#include "plan/plan.hpp"

namespace katt::bench {

/// The request for a sweep, from a TOML file or the command line, not yet planned.
struct SweepRequest {
  std::string title;
  std::string description;
  Settings settings;
  std::vector<SweepEntry> entries;
  std::string source;  ///< text of the file; empty for the command line
};

/// Reads a sweep file:
///
///   title = "Tiles of flash attention"
///   budget_s = 0.5                 # settings: rounds, min_rounds, budget_s, precision, seed,
///                                  # cold, paired_goal, peer_program, peer_timeout_s,
///                                  # candidate_program, untrusted
///   dtype = ["f32", "bf16"]        # axes here, or in a table [axes], hold for every [[sweep]]
///   [[sweep]]
///   op = "attention"
///   label = "LLaMA 3 8B"
///   seq = "512:4096:x2"            # integer, real, boolean, string in axis syntax, or
///                                  # an array of them
///
/// [sweep] is one such table; without any the top level is the only entry. Throws InputError of one
/// line, "FILE:LINE: …", for anything else.
[[nodiscard]] SweepRequest read_sweep_file(const std::filesystem::path& path,
                                           const Registry& registry);

}  // namespace katt::bench
