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
#include "plan/operator_axes.hpp"

/// Turns axes as typed into the cases of a sweep, with all checks that come before an allocation.
namespace katt::bench {

/// Bytes of a label that result files hold.
inline constexpr std::size_t label_bytes = 64;

class Tuning;

/// One operator with its axes from a sweep file or the command line.
struct SweepEntry {
  const Operator* op = nullptr;
  std::string label;  ///< column `label`, e.g. "LLaMA 3 8B"
  std::vector<AxisText> axes;
  std::string where;  ///< "sweep.toml:7"; empty for the command line
};

/// The part of a case in a group of points that are measured in the same rounds, along the axes
/// that the sweep names in `paired`.
struct Pairing {
  std::string to;             ///< the reference point: "block_density=1"; empty: there is no group
  std::string group;          ///< case_key() of the reference
  bool is_reference = false;  ///< the rows of the group are compared with the rows of this case
};

/// One point with all configurations to compare at it, measured together and interleaved.
struct PlannedCase {
  const Operator* op = nullptr;
  std::string label;
  Point point;
  std::vector<Config> configs;       ///< without a setting: the variant's default
  std::vector<std::string> peers{};  ///< configs of these names run in other programs
  /// Presets of tiles that the device cannot run: their configs, and the reason.
  std::vector<std::pair<Config, std::string>> refused{};
  std::string where{};  ///< the place of its entry in a file; empty for the command line
  Pairing paired{};
  std::string of_auto{};  ///< the variant that `auto` means here; empty when nobody asked for it
  std::vector<std::string> remarks{};  ///< on tiles of `tile = auto`: Tuning::remark()

  [[nodiscard]] bool is_peer(const Config& config) const;
};

/// The remarks of a plan, each once.
[[nodiscard]] std::vector<std::string> remarks_of(std::span<const PlannedCase> plan);

/// A text that identifies the case: operator, label, pass, backend, threads, dtype, axes.
[[nodiscard]] std::string case_key(const PlannedCase& planned);

inline const PlannedCase& case_of(const PlannedCase& planned) { return planned; }

/// Cuts cases, or what holds one, into the groups that are measured in the same rounds. The members
/// of a group follow each other in a plan; a case without paired axes is a group of its own.
template <class T>
[[nodiscard]] std::vector<std::span<const T>> groups_of(std::span<const T> list) {
  std::vector<std::span<const T>> groups;
  std::size_t first = 0;
  for (std::size_t i = 1; i <= list.size(); ++i) {
    const std::string& group = case_of(list[first]).paired.group;
    if (i < list.size() && !group.empty() && case_of(list[i]).paired.group == group) continue;
    groups.push_back(list.subspan(first, i - first));
    first = i;
  }
  return groups;
}

/// Replaces axes of an entry and ignores axes of other operators.
void override_axes(SweepEntry& entry, std::span<const AxisText> axes);

/// The values that an entry requests for an axis of every operator, or the axis' fallback.
[[nodiscard]] std::vector<AxisValue> asked_values(const SweepEntry& entry,
                                                  std::string_view common_axis);

/// Largest number of host threads that an entry requests.
[[nodiscard]] int most_threads(std::span<const SweepEntry> entries);

inline constexpr std::size_t max_cases = 1'000'000;

/// The cartesian product of each entry's axes, each point once, the points of a group of paired axes
/// one after the other; the operator checks it. Throws InputError for the first error, and for more
/// than `most` points. `variant = auto` becomes the variant that auto chooses at the
/// point; `tile = auto` becomes the tile in `tuning`, else the variant's default.
[[nodiscard]] std::vector<PlannedCase> plan_cases(std::span<const SweepEntry> entries,
                                                  std::uint64_t seed);
[[nodiscard]] std::vector<PlannedCase> plan_cases(std::span<const SweepEntry> entries,
                                                  std::uint64_t seed, const Tuning& tuning,
                                                  std::size_t most = max_cases);

/// The reason why the operator lacks the variant or tile of a configuration; empty when it has it.
[[nodiscard]] std::string unlisted_reason(const PlannedCase& planned, const Config& config);

}  // namespace katt::bench
