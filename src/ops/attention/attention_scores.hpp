#pragma once

#include <cstdint>

#include <Kokkos_Core.hpp>

#include "ops/attention/attention_mask.hpp"
#include "tile/engine.hpp"
#include "tile/vec.hpp"

/// What the forward kernels share: how query heads are packed into the rows of a tile, and what
/// happens to the scores of a tile between Q·Kᵀ and the softmax.
namespace katt::attention::impl {

inline constexpr float log2e = 1.4426950408889634F;
inline constexpr float ln2 = 0.6931471805599453F;

/// Natural log-sum-exp of a row with this maximum in base 2 and this sum of 2^(s − max) > 0. The
/// maximum is not rounded again: P = exp(s − lse) of the backward pass has the error of lse as its
/// relative error, in a whole row alike.
KOKKOS_INLINE_FUNCTION float natural_lse(float max, float sum) {
  return Kokkos::fma(max, ln2, Kokkos::log(sum));
}

/// The packed rows of one K/V head, from row `begin` on: packed row n is query n / group of head
/// kv_head · group + n mod group, so that few queries and many heads (decoding) still fill a tile.
struct PackedRows {
  std::int64_t kv_head;
  std::int64_t group;  ///< query heads per K/V head
  std::int64_t begin;

  KOKKOS_INLINE_FUNCTION std::int64_t query(int r) const { return (begin + r) / group; }
  KOKKOS_INLINE_FUNCTION std::int64_t head(int r) const {
    return kv_head * group + (begin + r) % group;
  }
};

/// The mask of one batch entry, the bias and the softcap, applied to tiles of scores.
///
/// Scores are kept in base 2; a softcap works on natural ones, log2(e) follows after it.
template <class T>
struct ScoreRule {
  Mask mask;
  Bias<T> bias;
  float softcap;

  /// Factor of the queries.
  KOKKOS_INLINE_FUNCTION float query_scale(float scale) const {
    return softcap > 0.0F ? scale : scale * log2e;
  }

  /// To the scores of keys [key, key + columns) of a tile in this state, which is not dead.
  template <class Engine>
  KOKKOS_INLINE_FUNCTION void apply(Engine& engine, TileState state, std::int64_t batch,
                                    const PackedRows& rows, std::int64_t key, int columns) const {
    if (softcap > 0.0F) {
      using Vec = typename Engine::Vec;
      const float cap = softcap;
      engine.transform([cap](const Vec& s) {
        return Vec(tile::tanh(Vec(s * Vec(1.0F / cap))) * Vec(cap * log2e));
      });
    }
    if (bias) {
      engine.for_each_row([&](int r, const typename Engine::ScoreRow& score) {
        const T* added = bias.row(batch, rows.head(r), rows.query(r)) + key;
        for (int j = 0; j < columns; ++j) score(j) += static_cast<float>(added[j]) * log2e;
      });
    }
    if (state == TileState::full) return;
    if (mask.blocks.blocks == nullptr) {
      engine.clip([&](int r) {
        const std::int64_t i = rows.query(r);
        return tile::ColumnRange{static_cast<float>(mask.interval.begin(i) - key),
                                 static_cast<float>(mask.interval.end(i) - key)};
      });
      return;
    }
    engine.for_each_row([&](int r, const typename Engine::ScoreRow& score) {
      const std::int64_t i = rows.query(r);
      for (int j = 0; j < columns; ++j) {
        if (!mask.visible(i, key + j)) score(j) = -Kokkos::Experimental::infinity_v<float>;
      }
    });
  }
};

}  // namespace katt::attention::impl
