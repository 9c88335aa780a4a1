#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "io/hdf5/result_file.hpp"
#include "measure/measure.hpp"
#include "plan/plan.hpp"

/// A sweep in parts, for a job array: each part measures some of the points into a file of its own.
namespace katt::bench {

/// The index-th of count parts, from 1.
struct Shard {
  int index = 1, count = 1;
};

/// "2/4". Throws InputError for a text other than I/N with I from 1 to N.
[[nodiscard]] Shard parse_shard(const std::string& text);
[[nodiscard]] std::string to_text(const Shard& shard);

/// Some configurations of a case of a plan.
using Indices = std::vector<std::uint64_t>;

/// A case of a sweep, or some of its configurations, and where it stands in the whole plan.
struct Task {
  PlannedCase planned;
  std::uint64_t number = 0;     ///< of its case in the plan
  std::size_t first_place = 0;  ///< of the case's first row among all rows of the plan, from 1
  Indices wanted;               ///< which of the case's configurations these are

  /// The place of a row among all rows: the one that the sweep in one part would give it.
  [[nodiscard]] std::size_t place(std::size_t i) const { return first_place + wanted[i]; }
};

inline const PlannedCase& case_of(const Task& task) { return task.planned; }

/// The configurations of a case of a plan that another process asks for. It may know more of them than this
/// machine: those that are not here are left out of `wanted`, too.
[[nodiscard]] PlannedCase wanted_of(std::span<const PlannedCase> plan, std::uint64_t number,
                                    Indices& wanted);

/// One part of a sweep: its tasks in the order of the plan.
struct Part {
  std::vector<Task> tasks;
  Shard shard;
  std::string split;     ///< hexadecimal; equal for the parts of one split of one sweep
  std::size_t rows = 0;  ///< rows of the tasks
};

/// Seconds to measure a point on a nominal machine, from the budget and the sizes of its tensors: n
/// matrices of b bytes are multiplied in time ∝ b^1.5. It serves to compare points only: the number
/// is the same on every machine, with any threads, caches and variants.
[[nodiscard]] double forecast_s(const PlannedCase& planned, const Settings& settings);

/// The part, from 0 to `count` − 1, that measures each point of a plan. The points with the longest
/// forecasts come first, each goes to the part with the least time so far; so equal points are
/// dealt round robin. A group of paired points counts as one.
[[nodiscard]] std::vector<int> split(std::span<const PlannedCase> plan, int count,
                                     const Settings& settings);

/// One part of a plan. Throws InputError when there are fewer points, or groups, than parts.
[[nodiscard]] Part part_of(std::span<const PlannedCase> plan, const Shard& shard,
                           const Settings& settings);

/// Attributes of a run: its part of the sweep ("1/1": the whole), the split, and the number of rows
/// of the part.
inline constexpr const char* shard_attribute = "shard";
inline constexpr const char* split_attribute = "split";
inline constexpr const char* rows_attribute = "part_rows";
[[nodiscard]] io::Attributes place_in_split(const Part& part);

/// Name of the row at that place, and the order of two places.
[[nodiscard]] std::string point_name(std::size_t place);
[[nodiscard]] bool point_before(const std::string& a, const std::string& b);

/// The cases of one part.
[[nodiscard]] std::vector<PlannedCase> cases_of(std::span<const Task> tasks);

}  // namespace katt::bench
