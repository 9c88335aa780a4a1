#pragma once

#include <algorithm>
#include <cstdint>

#include "ops/attention/scores.hpp"
#include "tile/bf16_units.hpp"

/// What the passes on packed bf16 panels share.
#if defined(KATT_BF16_PANELS)
namespace katt::attention::impl {

namespace bf16_panels = tile::bf16_panels;

constexpr std::int64_t divide_up(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

/// The scores of a key block as ScoreRule sees them: [query panel 2][32 keys][16 queries].
struct ScoreTile {
  using Vec = bf16_panels::HostVec;
  float* scores;
  int rows;
  int columns;

  struct ScoreRow {
    float* first;
    float& operator()(int column) const { return first[column * bf16_panels::rows]; }
  };

  ScoreRow row(int r) const {
    return {scores + r / bf16_panels::rows * 2 * bf16_panels::panel_floats + r % bf16_panels::rows};
  }

  template <class F>
  void transform(const F& f) {
    for (float* s = scores; s < scores + 4 * bf16_panels::panel_floats; s += bf16_panels::rows) {
      tile::store(s, Vec(f(tile::load<Vec>(s))));
    }
  }
  template <class F>
  void for_each_row(const F& f) {
    for (int r = 0; r < rows; ++r) f(r, row(r));
  }
  template <class F>
  void clip(const F& range) {
    for (int t = 0; t < 2; ++t) {
      alignas(64) float begin[bf16_panels::rows];
      alignas(64) float end[bf16_panels::rows];
      for (int lane = 0; lane < bf16_panels::rows; ++lane) {
        const int r = t * bf16_panels::rows + lane;
        const tile::ColumnRange visible = r < rows ? range(r) : tile::ColumnRange{0, 0};
        begin[lane] = visible.begin;
        end[lane] = visible.end;
      }
      const auto low = tile::load<Vec>(begin);
      const auto high = tile::load<Vec>(end);
      float* s = scores + t * 2 * bf16_panels::panel_floats;
      for (int j = 0; j < bf16_panels::block; ++j, s += bf16_panels::rows) {
        tile::store(s, tile::keep_between(tile::load<Vec>(s), static_cast<float>(j), low, high));
      }
    }
  }
};

/// Applies the rule to the products of a key block, and hides the keys that are not there. Returns
/// the factor that then puts them in base 2.
inline float adjust_scores(ScoreTile tile, const ScoreRule<bf16>& rule, TileState state,
                           std::int64_t batch, const PackedRows& packed, std::int64_t key) {
  if (rule.folded() && state == TileState::full) return rule.factor();
  rule.apply(tile, state, batch, packed, key, tile.columns);
  if (tile.columns < bf16_panels::block) {
    const auto columns = static_cast<float>(tile.columns);
    tile.clip([&](int) { return tile::ColumnRange{0.0F, columns}; });
  }
  return rule.factor();
}

/// Stores the first `width` elements of the first `rows` rows of a square of vectors, rounded, at
/// target(row).
template <class Target>
void store_rows(const bf16_panels::HostVec (&square)[bf16_panels::rows], int rows, int width,
                const Target& target) {
  for (int i = 0; i < rows; ++i) {
    if (width >= bf16_panels::rows) {
      tile::store(target(i), square[i]);
    } else {
      bf16 part[bf16_panels::rows];
      tile::store(part, square[i]);
      std::copy_n(part, width, target(i));
    }
  }
}

/// Calls f.operator()<Depth>() for the depth of a head_dim up to max_head_dim.
template <int Depth, class F>
void visit_depth(int depth, const F& f) {
  if constexpr (Depth * bf16_panels::depth <= max_head_dim) {
    if (depth == Depth) {
      f.template operator()<Depth>();
    } else {
      visit_depth<Depth + 1>(depth, f);
    }
  }
}

/// Calls f.operator()<U, Depth>() for the unit of this process and the depth of a head_dim.
template <class F>
void visit_unit_and_depth(int depth, const F& f) {
  bf16_panels::visit_unit([&]<bf16_panels::Unit U>() {
    visit_depth<1>(depth, [&]<int Depth>() { f.template operator()<U, Depth>(); });
  });
}

}  // namespace katt::attention::impl
#endif
