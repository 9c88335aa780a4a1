#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "ops/attention/portable/backward_plan.hpp"
#include "ops/attention/portable/tiles.hpp"
#include "tile/simd.hpp"

/// Tiles of the portable flash on devices: what they take of a block's shared memory, and the first
/// that fits.
namespace katt::attention::impl {

/// Shared memory that a block can have on every device since compute capability 8.0: the least, of
/// 8.6, 8.9 and 12.0.
inline constexpr std::size_t common_shared_bytes = std::size_t{99} << 10;

/// The tiles of a pass that can be asked for on a device.
template <class Args>
std::vector<Tile> portable_device_tiles() {
  if constexpr (std::is_same_v<Args, ForwardArgs>) return DeviceFlashTiles::all();
  return {{32, 32}, {32, 16}, {16, 16}, {64, 32}, {16, 8}};
}

/// The same by backend.
template <class Exec, class Args>
std::vector<Tile> portable_tiles() {
  return is_host_v<Exec> ? HostFlashTiles::all() : portable_device_tiles<Args>();
}

/// The default on a host: the first, or one of half as many query rows for the forward pass of a mask
/// with an edge, on which a tile computes what nobody sees.
template <class Args>
Tile portable_host_tile(const Args& args) {
  const std::vector<Tile> tiles = HostFlashTiles::all();
  const Tile half(tiles.front().q / 2, tiles.front().kv);
  const bool has_edge =
      args.mask.causal || args.mask.window_left >= 0 || args.mask.window_right >= 0;
  if (!std::is_same_v<Args, ForwardArgs> || !has_edge) return tiles.front();
  return std::ranges::count(tiles, half) == 0 ? tiles.front() : half;
}

/// Shared memory that a tile of a pass takes on a device.
template <class Args>
std::size_t portable_shared_bytes(Tile tile, std::int64_t head_dim) {
  if constexpr (std::is_same_v<Args, ForwardArgs>) {
    const auto d = static_cast<std::size_t>(head_dim);
    return tile::simd_scratch_bytes(static_cast<std::size_t>(tile.q),
                                    static_cast<std::size_t>(tile.kv), d, d);
  } else {
    const auto d = static_cast<int>(head_dim);
    return BackwardPlan::scratch_bytes(tile, d, d, tile.kv);
  }
}

/// The default tile of a pass for a device whose blocks can have `shared_bytes`: the first that
/// fits, the first of all where none does.
template <class Args>
Tile portable_device_tile(std::int64_t head_dim, std::size_t shared_bytes = common_shared_bytes) {
  const std::vector<Tile> tiles = portable_device_tiles<Args>();
  const auto found = std::find_if(tiles.begin(), tiles.end(), [&](Tile tile) {
    return portable_shared_bytes<Args>(tile, head_dim) <= shared_bytes;
  });
  return found == tiles.end() ? tiles.front() : *found;
}

}  // namespace katt::attention::impl
