#pragma once

#include <string>
#include <vector>

#include "op/variants.hpp"

namespace katt::attention {

/// Query rows × keys: the parameters tile_q and tile_kv of the variants.
struct Tile {
  int q = 0;   ///< query rows
  int kv = 0;  ///< keys

  constexpr Tile() = default;
  /// A tile of these extents.
  constexpr Tile(int rows, int keys) : q(rows), kv(keys) {}
  /// From a setting of two values. Throws std::out_of_range for fewer.
  Tile(const Setting& setting) : Tile(setting.at(0), setting.at(1)) {}  // NOLINT
  /// As a setting: {q, kv}.
  operator Setting() const { return {q, kv}; }  // NOLINT
  friend constexpr bool operator==(const Tile&, const Tile&) = default;
};

namespace impl {

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

/// Names of the parameters, and tiles as the settings of a variant.
inline const std::vector<std::string> tile_parameters{"tile_q", "tile_kv"};
inline std::vector<Setting> settings_of(const std::vector<Tile>& tiles) {
  return {tiles.begin(), tiles.end()};
}

/// "16x64, 32x32, …"
inline std::string names(const std::vector<Tile>& tiles) {
  std::string text;
  for (const Tile tile : tiles) {
    text += (text.empty() ? "" : ", ") + std::to_string(tile.q) + "x" + std::to_string(tile.kv);
  }
  return text;
}

}  // namespace impl

}  // namespace katt::attention
