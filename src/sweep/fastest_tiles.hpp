#pragma once

#include <span>
#include <vector>

#include "plan/tuning.hpp"
#include "record/results.hpp"

namespace katt::bench {

/// The fastest tile of each variant among the rows of a case that did not leave a race. The
/// variant's default stays unless the tile is faster in the same rounds, with 95 %; after a race
/// also unless its median is more than 1 % lower (measure/race.hpp).
[[nodiscard]] std::vector<TunedTile> fastest_tiles(const PlannedCase& planned,
                                                   std::span<const RowResult> rows, bool is_race);

}  // namespace katt::bench
