#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "ops/attention/portable/backward_plan.hpp"
#include "ops/attention/portable/tiles.hpp"
#include "tile/engines/simd.hpp"

/// Tiles of the portable flash on devices: their shared memory, and the first tile that fits.
namespace katt::attention::impl {

/// Shared memory that a block can have on every device since compute capability 8.0: the least, of
/// 8.6, 8.9 and 12.0.
inline constexpr std::size_t common_shared_bytes = std::size_t{99} << 10;

/// The tiles of a pass that a device offers.
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

/// The default on a host. Forward it is the first, or one of half as many query rows for a mask
/// with an edge, because a tile on the edge computes scores that nobody sees. Backward every tile
/// of keys reads and writes all rows of its head: as many keys as leave tiles for the threads, and
/// with an edge a few tiles for a head.
template <class Args>
Tile portable_host_tile(const Args& args) {
  const std::vector<Tile> tiles = HostFlashTiles::all();
  const Tile first = tiles.front();
  const auto or_first = [&](Tile tile) {
    return std::ranges::count(tiles, tile) == 0 ? first : tile;
  };
  const bool has_edge =
      args.mask.causal || args.mask.window_left >= 0 || args.mask.window_right >= 0;
  if constexpr (std::is_same_v<Args, ForwardArgs>) {
    return has_edge ? or_first(Tile(first.q / 2, first.kv)) : first;
  } else {
    const std::int64_t heads = args.batch() * args.kv_heads();
    for (int kv = 4 * first.kv; kv > first.kv; kv /= 2) {
      const std::int64_t tiles_of_head = args.seq_kv() / kv;
      const bool few = has_edge && tiles_of_head < 4;
      if (!few && heads * tiles_of_head >= least_items) return or_first(Tile(first.q, kv));
    }
    return first;
  }
}

/// Shared memory that a tile of a pass takes on a device.
template <class Args>
std::size_t portable_shared_bytes(Tile tile, std::int64_t head_dim) {
  if constexpr (std::is_same_v<Args, ForwardArgs>) {
    return tile::device_simd_scratch_bytes(static_cast<std::size_t>(tile.q),
                                           static_cast<std::size_t>(tile.kv),
                                           static_cast<std::size_t>(head_dim));
  } else {
    return BackwardPlan::device_scratch_bytes(tile, static_cast<int>(head_dim));
  }
}

/// The default tile of a pass for a device whose blocks can have `shared_bytes`: the first that
/// fits, or the first of all if none fits.
template <class Args>
Tile portable_device_tile(std::int64_t head_dim, std::size_t shared_bytes = common_shared_bytes) {
  const std::vector<Tile> tiles = portable_device_tiles<Args>();
  const auto found = std::find_if(tiles.begin(), tiles.end(), [&](Tile tile) {
    return portable_shared_bytes<Args>(tile, head_dim) <= shared_bytes;
  });
  return found == tiles.end() ? tiles.front() : *found;
}

}  // namespace katt::attention::impl
