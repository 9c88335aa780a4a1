#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "io/hdf5/result_file.hpp"
#include "measure/measure.hpp"
#include "plan/plan.hpp"

/// The memory and the time that a plan will need, before anything is allocated.
namespace katt::bench {

/// Throws InputError when the inputs and outputs of a point cannot fit in memory with any variant,
/// or when no row of the plan can.
void check_memory(std::span<const PlannedCase> plan);

/// Forecast of a configuration. For a peer only the tensors are known, so the forecast counts its
/// inputs and outputs once more in the shared memory.
[[nodiscard]] Footprint footprint(const PlannedCase& planned, const Config& config);

/// Bytes that a variant needs on top of the inputs of its case.
[[nodiscard]] std::size_t own_bytes(const Footprint& footprint);

/// Approximate upper limit of the seconds to measure these cases: the budget of every row, or the
/// fewest rounds if they take longer, at half the speed of the ceilings. Without ceilings it
/// assumes a common processor's.
[[nodiscard]] double expected_s(std::span<const PlannedCase> plan, const Settings& settings,
                                std::span<const io::CeilingRow> ceilings = {});

/// The forecast of a sweep, for --dry-run.
struct Outlook {
  std::vector<std::string> lines;  ///< a case each: its point, its rows, its memory
  std::size_t points = 0, rows = 0;
  std::size_t skipped = 0;       ///< of the rows, as far as known without inputs
  std::size_t memory_bytes = 0;  ///< bytes of the largest case
  double seconds = 0;            ///< approximate upper limit
};
[[nodiscard]] Outlook outlook(std::span<const PlannedCase> plan, const Settings& settings);

/// "needs 34.4 GB, 22.1 GB available".
[[nodiscard]] std::string memory_reason(std::size_t needed, std::size_t available);

}  // namespace katt::bench
