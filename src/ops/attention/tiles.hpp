#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <type_traits>
#include <vector>

#include "core/dtype.hpp"
#include "core/execution.hpp"
#include "core/variants.hpp"
#include "tile/bf16_units.hpp"

namespace katt::attention::impl {

/// tile_q × tile_kv as a type.
template <int TileQ, int TileKv>
struct TileShape {
  static constexpr int q = TileQ;
  static constexpr int kv = TileKv;
  static constexpr Tile tile{TileQ, TileKv};
};

template <class... Shapes>
struct TileList {
  /// Calls f.operator()<Shape>() for the shape that equals `tile`; false where there is none.
  template <class F>
  static bool visit(Tile tile, F&& f) {
    return ((Shapes::tile == tile ? (f.template operator()<Shapes>(), true) : false) || ...);
  }
  static std::vector<Tile> all() { return {Shapes::tile...}; }
};

#if defined(KATT_HAS_CUDA) || defined(KATT_FEW_TILES)
/// A CUDA build has its host backends for tests, without vectors: few tiles, for a short build. So
/// has a build with sanitizers.
using HostFlashTiles = TileList<TileShape<64, 64>, TileShape<32, 32>, TileShape<32, 64>>;
#else
/// Tiles whose S, P and O stay in L1 or L2.
using HostFlashTiles =
    TileList<TileShape<64, 64>, TileShape<16, 64>, TileShape<32, 32>, TileShape<32, 64>,
             TileShape<32, 128>, TileShape<64, 32>, TileShape<64, 128>, TileShape<64, 256>,
             TileShape<128, 64>, TileShape<128, 128>>;
#endif

/// Tiles for shared memory; which of them is the default depends on head_dim, see
/// portable/device_tiles.hpp.
using DeviceFlashTiles = TileList<TileShape<64, 32>, TileShape<32, 32>, TileShape<64, 64>,
                                  TileShape<128, 32>, TileShape<32, 16>>;

/// The tiles of the flash variant, by backend; on a host the first is the default. This list alone
/// names, dispatches and instantiates them.
template <class Exec>
using FlashTiles = std::conditional_t<is_host_v<Exec>, HostFlashTiles, DeviceFlashTiles>;

/// Whether flash computes in this dtype on packed bf16 panels here.
template <class Exec>
bool on_bf16_panels(Dtype dtype) {
  return is_host_v<Exec> && dtype == Dtype::bf16 && tile::bf16_panels::usable();
}

/// The tiles of both engines where bf16 panels can be multiplied; which of them serve a dtype,
/// supports() says.
template <class Exec>
std::vector<Tile> with_bf16_panels(std::vector<Tile> tiles, const std::vector<Tile>& bf16_list) {
  if (!on_bf16_panels<Exec>(Dtype::bf16)) return tiles;
  for (const Tile tile : bf16_list) {
    if (std::find(tiles.begin(), tiles.end(), tile) == tiles.end()) tiles.push_back(tile);
  }
  return tiles;
}

/// "16x64, 32x32, …"
inline std::string names(const std::vector<Tile>& tiles) {
  std::string text;
  for (const Tile tile : tiles) {
    text += (text.empty() ? "" : ", ") + std::to_string(tile.q) + "x" + std::to_string(tile.kv);
  }
  return text;
}

}  // namespace katt::attention::impl
