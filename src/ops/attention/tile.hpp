#pragma once

#include "core/variants.hpp"

namespace katt::attention {

/// Query rows × keys: the parameters tile_q and tile_kv of the variants.
struct Tile {
  int q = 0;
  int kv = 0;

  constexpr Tile() = default;
  constexpr Tile(int rows, int keys) : q(rows), kv(keys) {}
  Tile(const Setting& setting) : Tile(setting.at(0), setting.at(1)) {}  // NOLINT
  operator Setting() const { return {q, kv}; }                          // NOLINT
  friend constexpr bool operator==(const Tile&, const Tile&) = default;
};

}  // namespace katt::attention
