#pragma once

#include <cstdint>

#include <Kokkos_Core.hpp>

#include "core/views.hpp"
#include "ops/cross_entropy/cross_entropy_kernels.hpp"
#include "tile/rows/row_softmax.hpp"

/// Functors of linear_cross_entropy on a block of logits: the columns first … first + columns of
/// the vocabulary, in f32, one row a token.
namespace katt::linear_cross_entropy::impl {

using cross_entropy::impl::Targets;

/// Statistics of every token so far.
struct RunningTokens {
  float* max;     ///< of the logits seen
  float* sum;     ///< Σ exp(logits − max)
  float* target;  ///< the logit of the target, once seen
};

/// Merges a block into the statistics of its tokens.
template <class Exec>
struct MergeBlock {
  const float* block;
  std::int64_t first;
  std::int64_t columns;
  Targets targets;
  RunningTokens running;

  template <class Team>
  KOKKOS_INLINE_FUNCTION void operator()(const Team& team, std::int64_t t) const {
    if (!targets.counts(t)) return;
    const float* row = block + t * columns;
    const tile::RowStatistics found = tile::row_statistics<Exec>(team, row, columns);
    if (team.team_rank() != 0) return;
    const tile::RowStatistics before =
        first == 0 ? tile::RowStatistics{} : tile::RowStatistics{running.max[t], running.sum[t]};
    const tile::RowStatistics merged = tile::merge(before, found);
    running.max[t] = merged.max;
    running.sum[t] = merged.sum;
    const std::int64_t target = targets.values[t] - first;
    if (target >= 0 && target < columns) running.target[t] = row[target];
  }
};

/// statistics(t) and token_losses(t), which may be running.target, after the last block.
template <class Exec>
struct FinishTokens {
  using Memory = typename Exec::memory_space;

  RunningTokens running;
  Targets targets;
  StridedView<float, 2, Memory> statistics;
  float* token_losses;

  KOKKOS_INLINE_FUNCTION void operator()(std::int64_t t) const {
    const bool counts = targets.counts(t);
    const float max = counts ? running.max[t] : 0.0F;
    const float log_sum = counts ? Kokkos::log(running.sum[t]) : 0.0F;
    float loss = 0.0F;
    if (counts) {
      loss = targets.valid(t) ? cross_entropy::impl::token_loss(max, log_sum, running.target[t])
                              : cross_entropy::impl::not_a_number;
    }
    token_losses[t] = loss;
    statistics(t, 0) = max;
    statistics(t, 1) = log_sum;
  }
};

/// The gradients of a block of logits, in f32 perhaps in the place of the logits.
template <class Exec, class T>
struct BlockGradient {
  using Memory = typename Exec::memory_space;

  const float* block;
  T* gradients;
  std::int64_t first;
  std::int64_t columns;
  Targets targets;
  StridedView<const float, 2, Memory> statistics;
  const float* factor;

  template <class Team>
  KOKKOS_INLINE_FUNCTION void operator()(const Team& team, std::int64_t t) const {
    const float* row = block + t * columns;
    T* out = gradients + t * columns;
    if (!targets.counts(t)) {
      tile::for_columns<Exec>(team, 0, columns,
                              [&]<class V>(std::int64_t c) { tile::store(out + c, V(0.0F)); });
      return;
    }
    const float scale = *factor;
    const float max = statistics(t, 0);
    const float shift = -statistics(t, 1) * tile::log2e;
    const auto probability = [&]<class V>(const V& logit) {
      return V(tile::exp2(tile::fma(V(logit - V(max)), V(tile::log2e), V(shift))) * V(scale));
    };
    const std::int64_t target = targets.values[t] - first;
    const bool inside = target >= 0 && target < columns;
    const float logit = inside ? row[target] : 0.0F;
    team.team_barrier();
    tile::for_columns<Exec>(team, 0, columns, [&]<class V>(std::int64_t c) {
      tile::store(out + c, probability(tile::load<V>(row + c)));
    });
    team.team_barrier();
    if (team.team_rank() == 0 && inside) tile::store(out + target, probability(logit) - scale);
  }
};

}  // namespace katt::linear_cross_entropy::impl
