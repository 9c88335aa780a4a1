#pragma once

#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "plan/plan.hpp"
#include "plan/tuning.hpp"

/// Reads what an entry of a sweep requests besides its points: variants, peers, tiles, paired axes.
namespace katt::bench {

/// An axis that an entry names, with its values.
struct EntryAxis {
  std::string name;
  std::vector<AxisValue> values;
};

/// The variants and tiles that an entry requests.
struct ConfigRequest {
  std::vector<std::pair<std::string, AxisValue>> paired;  ///< axes with the value of the reference
  std::vector<std::string> variants;                      ///< empty: all
  std::vector<std::string> peers;                         ///< and candidates
  std::vector<Setting> tiles;                             ///< of `tile`
  std::vector<std::string> presets;                       ///< of `tile`, by name
  std::map<std::string, std::vector<int>> extents{};      ///< of `tile_q`, `tile_kv`
};

/// The typed axes of an entry by axis name, each at most once.
[[nodiscard]] std::map<std::string, const AxisText*> typed_axes(const SweepEntry& entry);

/// True for what the column `variant` can hold as the name of a peer or a candidate.
[[nodiscard]] bool is_name(std::string_view name);

/// A kernel of the user that an entry names.
struct NamedCandidate {
  std::string name;  ///< of its rows
  std::string path;
};

/// The candidates of an axis, "NAME=PATH,…"; without a name the file's stem. Throws InputError for
/// what is no name.
[[nodiscard]] std::vector<NamedCandidate> read_candidates(const AxisText& typed);

/// The end of a refusal of one of several candidates, whose path may be a part of one with a comma.
/// Empty for a single candidate.
[[nodiscard]] std::string comma_note(const AxisText& typed);

/// The variants, peers, candidates and tiles among the typed axes. Throws InputError for the first error.
[[nodiscard]] ConfigRequest read_configs(const SweepEntry& entry,
                                         const std::map<std::string, const AxisText*>& typed);

/// The axes whose points are measured in the same rounds: NAME, or NAME=VALUE for a reference other
/// than the first value. `axes` are those that the entry names.
[[nodiscard]] std::vector<std::pair<std::string, AxisValue>> read_paired(
    const SweepEntry& entry, const AxisText& typed, std::span<const EntryAxis> axes);

/// True when two configurations have the same variant and setting.
[[nodiscard]] bool same_config(const Config& a, const Config& b);

/// Adds the configurations of a point to its case.
void add_configs(PlannedCase& planned, const ConfigRequest& request, const Tuning& tuning);

}  // namespace katt::bench
