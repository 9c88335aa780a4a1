#pragma once

#include <cstdint>

#include <Kokkos_Core.hpp>

#include "core/views.hpp"
#include "ops/attention/scores.hpp"
#include "tile/rows/elementwise.hpp"
#include "tile/rows/rows.hpp"

/// The merge of partial results: what merge() and the last step of decoding have in common.
namespace katt::attention::impl {

/// A part's statistics of a row: the largest score, and Σ 2^(factor · (score − largest)); 0 when it
/// saw nothing.
struct PartSum {
  float max;
  float sum;
};

/// Sums of parts that are known by their log-sum-exp.
template <class Memory>
struct LseSums {
  StridedView<const float, 4, Memory> lse;

  KOKKOS_INLINE_FUNCTION PartSum operator()(std::int64_t part, std::int64_t b, std::int64_t h,
                                            std::int64_t i) const {
    const float value = lse(part, b, h, i);
    const bool blind = value == -Kokkos::Experimental::infinity_v<float>;
    return {blind ? tile::lowest_score : value, blind ? 0.0F : 1.0F};
  }
};

/// Sums of parts as the kernels write them, dense in the order (part, batch, head, query).
struct StoredSums {
  const PartSum* sums;
  std::int64_t batch, heads, seq_q;

  KOKKOS_INLINE_FUNCTION PartSum operator()(std::int64_t part, std::int64_t b, std::int64_t h,
                                            std::int64_t i) const {
    return sums[((part * batch + b) * heads + h) * seq_q + i];
  }
};

/// A work item is one row. Parts are normalised: Σ P·V / sum.
template <class Exec, class Part, class T, class Sums>
struct MergeParts {
  using Memory = typename Exec::memory_space;
  using Vec = tile::VecOf<Exec>;
  static constexpr int lanes = tile::lanes_v<Exec>;
  static constexpr int unroll = 4;  ///< vectors that share the weights

  StridedView<const Part, 5, Memory> parts;
  Sums sums;
  StridedView<T, 4, Memory> out;
  StridedView<float, 3, Memory> lse;
  ScoreUnit unit;  ///< of the largest scores

  KOKKOS_INLINE_FUNCTION void operator()(const tile::RowTeam<Exec>& team, std::int64_t row) const {
    const auto count = static_cast<std::int64_t>(parts.extent(0));
    const auto heads = static_cast<std::int64_t>(out.extent(1));
    const auto queries = static_cast<std::int64_t>(out.extent(2));
    const auto columns = static_cast<std::int64_t>(out.extent(3));
    const std::int64_t i = row % queries;
    const std::int64_t h = row / queries % heads;
    const std::int64_t b = row / queries / heads;

    float largest = tile::lowest_score;
    for (std::int64_t p = team.team_rank(); p < count; p += team.team_size()) {
      const PartSum part = sums(p, b, h, i);
      if (part.sum != 0.0F) largest = tile::max(largest, part.max);
    }
    team.team_reduce(Kokkos::Max<float>(largest));
    float total = 0.0F;
    for (std::int64_t p = team.team_rank(); p < count; p += team.team_size()) {
      const PartSum part = sums(p, b, h, i);
      if (part.sum != 0.0F) total += weight_of(part, largest);
    }
    team.team_reduce(Kokkos::Sum<float>(total));
    const float inverse = total == 0.0F ? 0.0F : 1.0F / total;

    const std::int64_t step = static_cast<std::int64_t>(team.team_size()) * lanes;
    for (std::int64_t first = static_cast<std::int64_t>(team.team_rank()) * lanes; first < columns;
         first += unroll * step) {
      Vec acc[unroll];
      for (int u = 0; u < unroll; ++u) acc[u] = Vec(0.0F);
      for (std::int64_t p = 0; p < count; ++p) {
        const PartSum part = sums(p, b, h, i);
        if (part.sum == 0.0F) continue;
        const Vec weight(weight_of(part, largest) * inverse);
        const Part* source = &parts(p, b, h, i, 0);
        for (int u = 0; u < unroll; ++u) {
          const std::int64_t c = first + u * step;
          if (c + lanes <= columns) {
            acc[u] = tile::fma(weight, tile::load<Vec>(source + c), acc[u]);
          } else if (c < columns) {
            acc[u] = tile::fma(weight, tile::load<Vec>(source + c, rest(columns - c)), acc[u]);
          }
        }
      }
      for (int u = 0; u < unroll; ++u) {
        const std::int64_t c = first + u * step;
        T* target = &out(b, h, i, 0) + c;
        if (c + lanes <= columns) {
          tile::store(target, acc[u]);
        } else if (c < columns) {
          tile::store(target, acc[u], rest(columns - c));
        }
      }
    }
    if (team.team_rank() == 0 && lse.data() != nullptr) {
      lse(b, h, i) = unit.lse(largest, total);
    }
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
