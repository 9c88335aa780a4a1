#pragma once

namespace katt::tile {

inline constexpr float log2e = 1.4426950408889634F;

/// The lowest finite number: no finite score is below it, −inf − lowest_score is −inf and
/// lowest_score − lowest_score is 0, so that rows without a visible key need no case of their own.
inline constexpr float lowest_score = -0x1.fffffep127F;

}  // namespace katt::tile
