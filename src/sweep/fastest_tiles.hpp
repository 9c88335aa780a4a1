#pragma once

#include <span>
#include <vector>

#include "plan/tuning.hpp"
#include "record/results.hpp"

namespace katt::bench {

/// The fastest tile of each variant among the rows of a case. The variant's default stays unless a
/// tile beats it by more than the 95 % intervals of their medians.
[[nodiscard]] std::vector<TunedTile> fastest_tiles(const PlannedCase& planned,
                                                   std::span<const RowResult> rows);

}  // namespace katt::bench
