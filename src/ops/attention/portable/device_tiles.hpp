#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "ops/attention/portable/backward_kernel.hpp"
#include "ops/attention/tiles.hpp"
#include "tile/simd.hpp"

/// Tiles of the portable flash on devices: what they take of a block's shared memory, and the first
/// that fits.
namespace katt::attention::impl {

/// Shared memory that a block can have on every device since compute capability 8.0: the least, of
/// 8.6, 8.9 and 12.0.
inline constexpr std::size_t common_shared_bytes = std::size_t{99} << 10;

inline std::size_t portable_forward_bytes(Tile tile, std::int64_t head_dim) {
  const auto d = static_cast<std::size_t>(head_dim);
  return tile::simd_scratch_bytes(static_cast<std::size_t>(tile.q),
                                  static_cast<std::size_t>(tile.kv), d, d);
}

inline std::size_t portable_backward_bytes(Tile tile, std::int64_t head_dim) {
  const auto d = static_cast<int>(head_dim);
  return BackwardPlan::scratch_bytes(tile, d, d, tile.kv);
}

/// The tiles of the backward pass that can be asked for on a device.
inline std::vector<Tile> portable_backward_tiles() {
  return {{32, 32}, {32, 16}, {16, 16}, {64, 32}, {16, 8}};
}

/// The first of the tiles that takes at most `shared_bytes`; the first of all where none does.
template <class Bytes>
Tile first_fitting(const std::vector<Tile>& tiles, std::int64_t head_dim, std::size_t shared_bytes,
                   const Bytes& bytes) {
  const auto found = std::find_if(tiles.begin(), tiles.end(),
                                  [&](Tile tile) { return bytes(tile, head_dim) <= shared_bytes; });
  return found == tiles.end() ? tiles.front() : *found;
}

/// The default tiles for a device whose blocks can have `shared_bytes`.
inline Tile portable_forward_tile(std::int64_t head_dim,
                                  std::size_t shared_bytes = common_shared_bytes) {
  return first_fitting(DeviceFlashTiles::all(), head_dim, shared_bytes, portable_forward_bytes);
}
inline Tile portable_backward_tile(std::int64_t head_dim,
                                   std::size_t shared_bytes = common_shared_bytes) {
  return first_fitting(portable_backward_tiles(), head_dim, shared_bytes, portable_backward_bytes);
}

}  // namespace katt::attention::impl
