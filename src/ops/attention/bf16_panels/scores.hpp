#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include "ops/attention/problem.hpp"
#include "ops/attention/tile.hpp"
#include "tile/bf16/bf16_units.hpp"
#include "tile/extents.hpp"
#include "tile/vec/convert_avx512.hpp"

/// Code that the passes on packed bf16 panels share.
#if defined(KATT_BF16_PANELS)
namespace katt::attention::impl {

namespace bf16_panels = tile::bf16_panels;

/// Work items that a thread should have at least, so that all end together.
inline constexpr std::int64_t items_per_thread = 4;

/// True when one thread computes a whole K/V head, from packing its operands, of `head_bytes`, to
/// its results. They then stay in the caches of the thread, and room for one head a thread is
/// enough.
inline bool goes_by_heads(std::int64_t heads, int threads, std::int64_t head_bytes) {
  constexpr std::int64_t most_bytes = std::int64_t{4} << 20;
  const bool ends_together = divide_up(heads, threads) * threads * 8 <= heads * 9;
  return head_bytes <= most_bytes && heads >= items_per_thread * threads && ends_together;
}

/// Keys of a block of 32 from `first` on, those behind the length of a sequence left out: they are
/// packed as zeros, for any contents of memory.
template <class Problem>
int live_keys(const Problem& problem, std::int64_t head, std::int64_t first) {
  const std::int64_t keys = problem.scores.masks.of(head / problem.kv_heads).interval.keys;
  return static_cast<int>(std::clamp<std::int64_t>(keys - first, 0, bf16_panels::block));
}

/// The rows of a block: one division for all of them.
struct BlockRows {
  std::int64_t head[bf16_panels::block];
  std::int64_t query[bf16_panels::block];

  BlockRows(const PackedRows& packed, int count) {
    std::int64_t at = packed.query(0);
    std::int64_t of_group = packed.begin - at * packed.group;
    for (int r = 0; r < count; ++r) {
      head[r] = packed.kv_head * packed.group + of_group;
      query[r] = at;
      if (++of_group < packed.group) continue;
      of_group = 0;
      ++at;
    }
  }
};

/// The scores of a key block as EntryScores sees them: [query panel 2][32 keys][16 queries].
struct ScoreTile {
  using Vec = bf16_panels::HostVec;
  static constexpr bool columns_outer = true;  ///< of for_each_part()
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

  /// Calls f(score, place) for every vector of scores, where numbers(r) are those of row r.
  template <class Numbers, class F>
  void for_each_vector(const Numbers& numbers, const F& f) const {
    for (int t = 0; t < 2; ++t) {
      auto place = tile::place_of_rows<Vec>(
          [&](int lane) { return numbers(std::min(t * bf16_panels::rows + lane, rows - 1)); });
      float* s = scores + t * 2 * bf16_panels::panel_floats;
      for (int j = 0; j < bf16_panels::block; ++j, s += bf16_panels::rows) {
        place.column = Vec(static_cast<float>(j));
        f(s, place);
      }
    }
  }
  template <class Numbers, class F>
  void transform(const Numbers& numbers, const F& f) {
    for_each_vector(numbers, [&](float* s, const auto& place) {
      tile::store(s, Vec(f(tile::load<Vec>(s), place)));
    });
  }
  template <class F>
  void for_each_row(const F& f) {
    for (int r = 0; r < rows; ++r) f(r, row(r));
  }
  /// Calls f(part) for all scores.
  template <class F>
  void for_each_part(const F& f) const {
    constexpr int height = bf16_panels::rows;
    f(tile::ScorePart{scores, 0, rows > height ? 2 * height : height, std::max(rows, 1),
                      bf16_panels::block, false, height, 2 * bf16_panels::panel_floats});
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

/// The scores of a call, for kernels that are compiled once for all score rules: they make one call
/// a block of 32 × 32 scores.
class BlockScores {
 public:
  /// `scores` outlives this.
  template <class Rule>
  explicit BlockScores(const Scores<bf16, Rule>& scores)
      : scores_(&scores),
        folded_(scores.folded()),
        sloped_(scores.sloped()),
        unit_(scores.unit()),
        apply_(&apply<Rule>),
        differentiate_(&differentiate<Rule>) {}

  /// Applies the rule to the products of a key block, and also hides missing keys. Returns the
  /// factor that then puts them in base 2.
  float adjust(ScoreTile tile, TileState state, std::int64_t batch, const PackedRows& packed,
               std::int64_t key) const {
    if (!folded_ || state != TileState::full) apply_(scores_, tile, state, batch, packed, key);
    return unit_.factor;
  }
  ScoreUnit unit() const { return unit_; }
  /// True where the derivative of a score is not one.
  bool sloped() const { return sloped_; }

  /// adjust(), and dP ← (dP − Δ) · slope, where sloped(). delta: Δ of the tile's rows.
  float differentiate(ScoreTile tile, float* dp, const float* delta, TileState state,
                      std::int64_t batch, const PackedRows& packed, std::int64_t key) const {
    differentiate_(scores_, tile, dp, delta, state, batch, packed, key);
    return unit_.factor;
  }

 private:
  template <class Rule>
  static void apply(const void* all, ScoreTile tile, TileState state, std::int64_t batch,
                    const PackedRows& packed, std::int64_t key) {
    const auto scores = static_cast<const Scores<bf16, Rule>*>(all)->of(batch, packed.kv_head);
    scores.apply(tile, state, packed, key, tile.columns);
    hide_missing_keys(tile);
  }

  template <class Rule>
  static void differentiate(const void* all, ScoreTile tile, float* dp, const float* delta,
                            TileState state, std::int64_t batch, const PackedRows& packed,
                            std::int64_t key) {
    using Vec = ScoreTile::Vec;
    const auto scores = static_cast<const Scores<bf16, Rule>*>(all)->of(batch, packed.kv_head);
    tile.for_each_vector([&](int r) { return scores.row(packed.head(r), packed.query(r)); },
                         [&](float* s, const auto& place) {
                           Vec slope;
                           tile::store(s, scores.score(tile::load<Vec>(s), place, key, slope));
                           float* d = dp + (s - tile.scores);
                           const auto t = (s - tile.scores) / (2 * bf16_panels::panel_floats);
                           const auto row_delta = tile::load<Vec>(delta + t * bf16_panels::rows);
                           tile::store(d, Vec((tile::load<Vec>(d) - row_delta) * slope));
                         });
    if constexpr (is_program<Rule>) {
      tile.for_each_part([&](const tile::ScorePart& part) {
        scores.rule.differentiate(part, dp + (part.score - tile.scores), scores, packed, key,
                                  state != TileState::full);
      });
    }
    scores.add_bias_and_mask(tile, state, packed, key, tile.columns);
    hide_missing_keys(tile);
    if constexpr (Scores<bf16, Rule>::has_any_rule) {
      constexpr float hidden = -std::numeric_limits<float>::infinity();
      for (int i = 0; i < bf16_panels::block * bf16_panels::block; ++i) {
        if (tile.scores[i] == hidden) dp[i] = 0.0F;  // a rule's slope may be NaN there
      }
    }
  }

  static void hide_missing_keys(ScoreTile tile) {
    if (tile.columns == bf16_panels::block) return;
    const auto columns = static_cast<float>(tile.columns);
    tile.clip([&](int) { return tile::ColumnRange{0.0F, columns}; });
  }

  const void* scores_;
  bool folded_;
  bool sloped_;
  ScoreUnit unit_;
  void (*apply_)(const void*, ScoreTile, TileState, std::int64_t, const PackedRows&, std::int64_t);
  void (*differentiate_)(const void*, ScoreTile, float*, const float*, TileState, std::int64_t,
                         const PackedRows&, std::int64_t);
};

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

/// Stores rows of up to 32 dimensions that lie transposed: dim(i) is dimension i of 16 rows,
/// `width` of them exist. Dimensions are rounded and transposed in pairs, which takes half as many
/// steps as f32.
template <class Dim, class Target>
void store_transposed(const Dim& dim, std::int64_t width, int rows, const Target& target) {
  using Vec = bf16_panels::HostVec;
  Vec square[bf16_panels::rows];
  for (int p = 0; p < bf16_panels::rows; ++p) {
    const __m512i pairs = avx512::narrow_pairs<bf16>(static_cast<__m512>(dim(2 * p)),
                                                     static_cast<__m512>(dim(2 * p + 1)));
    square[p] = Vec(_mm512_castsi512_ps(pairs));
  }
  tile::transpose(square);
  const __mmask32 mask =
      width >= bf16_panels::depth ? ~0U : (1U << static_cast<unsigned>(width)) - 1U;
  for (int r = 0; r < rows; ++r) {
    _mm512_mask_storeu_epi16(target(r), mask, _mm512_castps_si512(static_cast<__m512>(square[r])));
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

/// Calls f.operator()<U, Depth>() for a unit and the depth of a head_dim.
template <class F>
void visit_unit_and_depth(bf16_panels::UnitName unit, int depth, const F& f) {
  bf16_panels::visit_unit(unit, [&]<bf16_panels::Unit U>() {
    visit_depth<1>(depth, [&]<int Depth>() { f.template operator()<U, Depth>(); });
  });
}

}  // namespace katt::attention::impl
#endif
