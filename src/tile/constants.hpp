#pragma once

namespace katt::tile {

inline constexpr float log2e = 1.4426950408889634F;
inline constexpr float log2e_low = 1.92596299e-8F;  ///< log2(e) − log2e
inline constexpr float ln2 = 0.6931471805599453F;

/// Below every finite score in base 2, and finite: 2^(−inf − lowest_score) is 0 and 2^(lowest_score
/// − lowest_score) is 1, so that rows without a visible key need no case of their own.
inline constexpr float lowest_score = -0x1p126F;

}  // namespace katt::tile
