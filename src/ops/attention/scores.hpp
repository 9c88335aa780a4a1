#pragma once

#include <cstdint>

#include <Kokkos_Core.hpp>

#include "ops/attention/mask.hpp"
#include "tile/engine.hpp"
#include "tile/vec.hpp"

/// What the forward kernels share: how query heads are packed into the rows of a tile, and what
/// happens to the scores of a tile between Q·Kᵀ and the softmax.
namespace katt::attention::impl {

using tile::ln2;
using tile::log2e;

/// Natural log-sum-exp of a row with this maximum in base 2 and this sum of 2^(s − max) > 0. The
/// maximum is not rounded again: P = exp(s − lse) of the backward pass has the error of lse as its
/// relative error, in a whole row alike.
KOKKOS_INLINE_FUNCTION float natural_lse(float max, float sum) {
  return Kokkos::fma(max, ln2, Kokkos::log(sum));
}

/// A natural log-sum-exp in base 2, high + low: rounded to one float it would add as much to the
/// error of P as lse brings along. Of a row that sees no key, whose lse is −inf, it is +inf, so
/// that every 2^(s − high) is 0.
struct BinaryLse {
  float high, low;

  KOKKOS_INLINE_FUNCTION explicit BinaryLse(float lse) : high(lse * log2e), low(0.0F) {
    constexpr float infinity = Kokkos::Experimental::infinity_v<float>;
    if (lse == -infinity) {
      high = infinity;
    } else {
      low = Kokkos::fma(lse, tile::log2e_low, Kokkos::fma(lse, log2e, -high));
    }
  }
};

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

/// What makes scores of the products q·k: scale, softcap and bias, and the mask of one batch entry.
///
/// Both passes of every variant round scores alike, or P = 2^(s − lse) of the backward pass would
/// not sum to one: at scores of 270, in f32, one rounding is 3e-5 of P. Products are f32 sums over
/// head_dim of the operands as they are. Where nothing else is done to them, the score in base 2 is
/// product · fl(scale · log2 e) within the fused multiply-add that subtracts the maximum or lse,
/// and is not rounded by itself. Otherwise it is what score() and biased() give.
template <class T>
struct ScoreRule {
  Mask mask;
  Bias<T> bias;
  float softcap;
  float scale;

  /// Whether a positive factor is all that is done to the products.
  KOKKOS_INLINE_FUNCTION bool folded() const {
    return softcap <= 0.0F && !bias && scale * log2e > 0.0F;
  }
  /// What puts the scores that apply() leaves in base 2.
  KOKKOS_INLINE_FUNCTION float factor() const { return folded() ? scale * log2e : 1.0F; }

  /// The score of a product in base 2, but for the bias; `slope` is d score / d product, relative
  /// to what it is without a softcap.
  template <class Vec>
  KOKKOS_INLINE_FUNCTION Vec score(const Vec& product, Vec& slope) const {
    if (softcap <= 0.0F) {
      slope = Vec(1.0F);
      return Vec(product * Vec(scale * log2e));
    }
    const Vec t = tile::tanh(Vec(product * Vec(scale / softcap)));
    slope = Vec(1.0F) - t * t;
    return Vec(t * Vec(softcap * log2e));
  }
  template <class Vec>
  KOKKOS_INLINE_FUNCTION Vec score(const Vec& product) const {
    Vec slope;
    return score(product, slope);
  }
  KOKKOS_INLINE_FUNCTION static float biased(float score, T added) {
    return Kokkos::fma(static_cast<float>(added), log2e, score);
  }

  /// To the products of keys [key, key + columns) of a tile in this state, which is not dead.
  template <class Engine>
  KOKKOS_INLINE_FUNCTION void apply(Engine& engine, TileState state, std::int64_t batch,
                                    const PackedRows& rows, std::int64_t key, int columns) const {
    if (!folded()) {
      engine.transform([this](const typename Engine::Vec& product) { return score(product); });
    }
    if (bias) {
      engine.for_each_row([&](int r, const typename Engine::ScoreRow& row) {
        const T* added = bias.row(batch, rows.head(r), rows.query(r)) + key;
        for (int j = 0; j < columns; ++j) row(j) = biased(row(j), added[j]);
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

/// Δ of one query row: Σ_d dout · out.
template <class Vec, class T>
KOKKOS_INLINE_FUNCTION float row_delta(const T* out, const T* dout, int head_dim) {
  constexpr int lanes = sizeof(Vec) / sizeof(float);
  Vec vector_sum(0.0F);
  int d = 0;
  for (; d + lanes <= head_dim; d += lanes) {
    vector_sum = tile::fma(tile::load<Vec>(out + d), tile::load<Vec>(dout + d), vector_sum);
  }
  float sum = tile::reduce_sum(vector_sum);
  for (; d < head_dim; ++d) sum += static_cast<float>(out[d]) * static_cast<float>(dout[d]);
  return sum;
}

}  // namespace katt::attention::impl
