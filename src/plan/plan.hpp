#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "op/registry.hpp"
#include "plan/axes.hpp"

/// From axes as typed to the cases of a sweep: everything that is checked before anything is
/// allocated.
namespace katt::bench {

class Tuning;

/// One operator with its axes, as a sweep file or the command line names them.
struct SweepEntry {
  const Operator* op = nullptr;
  std::string label;  ///< column `label`, e.g. "LLaMA 3 8B"
  std::vector<AxisText> axes;
  std::string where;  ///< "sweep.toml:7"; empty for the command line
};

/// One point with everything that is compared on it: measured together, interleaved.
struct PlannedCase {
  const Operator* op = nullptr;
  std::string label;
  Point point;
  std::vector<Config> configs;       ///< without a setting: the variant's default
  std::vector<std::string> peers{};  ///< configs of these names run in other programs
  /// Presets of tiles that the device cannot run: their configs, and why.
  std::vector<std::pair<Config, std::string>> refused{};
  std::string where{};  ///< the place of its entry in a file; empty for the command line

  [[nodiscard]] bool is_peer(const Config& config) const;
};

/// A text that tells the case from all others: operator, label, pass, backend, threads, dtype, axes.
[[nodiscard]] std::string case_key(const PlannedCase& planned);

/// Axes that every operator has: pass, backend, threads, dtype.
[[nodiscard]] std::vector<AxisSpec> common_axes(const Operator& op);

/// Every key that an entry of this operator may hold: axes by name and short name, variant, peer,
/// tile, tile_q, tile_kv.
[[nodiscard]] std::vector<std::string> axis_keys(const Operator& op);

/// The axis that a key means ("seq" → "seq_q"), or nothing.
[[nodiscard]] std::optional<std::string> axis_of_key(const Operator& op, std::string_view key);

/// Names of devices whose tiles can be asked for in place of a tile, e.g. "h200", "amx".
[[nodiscard]] std::vector<std::string> preset_names(const Operator& op);

/// The point whose axes are all at their fallback.
[[nodiscard]] Point default_point(const Operator& op, Backend backend, std::string_view pass,
                                  Dtype dtype);

/// Why no point of a variant can run on this machine: the reason at the default point; empty where
/// one can, in some dtype, at the default axes or with one token.
[[nodiscard]] std::string refusal_here(const Operator& op, Backend backend, std::string_view pass,
                                       const std::string& variant);

/// Replaces axes of an entry; those of another operator are ignored.
void override_axes(SweepEntry& entry, std::span<const AxisText> axes);

/// The values that an entry asks for of an axis that every operator has, or the axis' fallback.
[[nodiscard]] std::vector<AxisValue> asked_values(const SweepEntry& entry,
                                                  std::string_view common_axis);

/// Most host threads that any of the entries asks for.
[[nodiscard]] int most_threads(std::span<const SweepEntry> entries);

/// The cartesian product of each entry's axes, each point once, checked by the operator. Throws
/// InputError for the first thing that is wrong. `variant = auto` is planned as the variant that it
/// is at the point; `tile = auto` means what `tuning` holds, else the variant's default.
[[nodiscard]] std::vector<PlannedCase> plan_cases(std::span<const SweepEntry> entries,
                                                  std::uint64_t seed);
[[nodiscard]] std::vector<PlannedCase> plan_cases(std::span<const SweepEntry> entries,
                                                  std::uint64_t seed, const Tuning& tuning);

/// Why the operator does not list the variant or tile of a configuration; empty where it does.
[[nodiscard]] std::string unlisted_reason(const PlannedCase& planned, const Config& config);

}  // namespace katt::bench
