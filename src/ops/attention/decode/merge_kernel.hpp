#pragma once

#include <cstdint>

#include <Kokkos_Core.hpp>

#include "core/views.hpp"
#include "ops/attention/scores.hpp"
#include "tile/rows/elementwise.hpp"
#include "tile/rows/rows.hpp"

/// The last step of decoding: the results over disjoint sets of keys become the result over all of them
/// (Milakov & Gimelshein 2018, arXiv:1805.02867, section 3.1, for whole rows of values).
namespace katt::attention::impl {

/// A part's statistics of a row: the largest score, and Σ 2^(factor · (score − largest)); 0 when it
/// saw nothing.
struct PartSum {
  float max;
  float sum;
};

/// On a host; a work item is one row. Parts are normalised: Σ P·V / sum.
template <class Exec, class T>
struct MergeParts {
  using Memory = typename Exec::memory_space;
  using Vec = tile::VecOf<Exec>;
  static constexpr int lanes = tile::lanes_v<Exec>;
  static constexpr int unroll = 4;  ///< vectors that share the weights

  const float* parts;   ///< (splits, rows, head_dim)
  const PartSum* sums;  ///< (splits, rows)
  std::int64_t splits, rows;
  StridedView<T, 4, Memory> out;
  StridedView<float, 3, Memory> lse;
  ScoreUnit unit;  ///< of the largest scores

  KOKKOS_INLINE_FUNCTION void operator()(const tile::RowTeam<Exec>& /*team*/,
                                         std::int64_t row) const {
    const auto heads = static_cast<std::int64_t>(out.extent(1));
    const auto queries = static_cast<std::int64_t>(out.extent(2));
    const auto columns = static_cast<std::int64_t>(out.extent(3));
    const std::int64_t i = row % queries;
    const std::int64_t h = row / queries % heads;
    const std::int64_t b = row / queries / heads;

    float largest = tile::lowest_score;
    for (std::int64_t p = 0; p < splits; ++p) {
      const PartSum part = sums[p * rows + row];
      if (part.sum != 0.0F) largest = tile::max(largest, part.max);
    }
    float total = 0.0F;
    for (std::int64_t p = 0; p < splits; ++p) {
      const PartSum part = sums[p * rows + row];
      if (part.sum != 0.0F) total += weight_of(part, largest);
    }
    const float inverse = total == 0.0F ? 0.0F : 1.0F / total;

    for (std::int64_t first = 0; first < columns; first += unroll * lanes) {
      Vec acc[unroll];
      for (int u = 0; u < unroll; ++u) acc[u] = Vec(0.0F);
      for (std::int64_t p = 0; p < splits; ++p) {
        const PartSum part = sums[p * rows + row];
        if (part.sum == 0.0F) continue;
        const Vec weight(weight_of(part, largest) * inverse);
        const float* source = parts + (p * rows + row) * columns;
        for (int u = 0; u < unroll; ++u) {
          const std::int64_t c = first + u * lanes;
          if (c + lanes <= columns) {
            acc[u] = tile::fma(weight, tile::load<Vec>(source + c), acc[u]);
          } else if (c < columns) {
            acc[u] = tile::fma(weight, tile::load<Vec>(source + c, rest(columns - c)), acc[u]);
          }
        }
      }
      for (int u = 0; u < unroll; ++u) {
        const std::int64_t c = first + u * lanes;
        T* target = &out(b, h, i, 0) + c;
        if (c + lanes <= columns) {
          tile::store(target, acc[u]);
        } else if (c < columns) {
          tile::store(target, acc[u], rest(columns - c));
        }
      }
    }
    if (lse.data() != nullptr) lse(b, h, i) = unit.lse(largest, total);
  }

 private:
  KOKKOS_FORCEINLINE_FUNCTION float weight_of(const PartSum& part, float largest) const {
    return part.sum * Kokkos::exp2((part.max - largest) * unit.factor);
  }
  KOKKOS_FORCEINLINE_FUNCTION static tile::PartialVector rest(std::int64_t count) {
    return {static_cast<int>(count)};
  }
};

}  // namespace katt::attention::impl
