#pragma once

#include <cstdint>

#include <Kokkos_Core.hpp>

#include "core/views.hpp"
#include "tile/rows/row_softmax.hpp"

/// Functors of cross-entropy, one team a token. Also the ends of linear_cross_entropy.
namespace katt::cross_entropy::impl {

inline constexpr float not_a_number = Kokkos::Experimental::quiet_NaN_v<float>;

/// The targets, and the column of each.
struct Targets {
  const std::int64_t* values;
  std::int64_t ignore_index;
  std::int64_t vocab;

  KOKKOS_INLINE_FUNCTION bool counts(std::int64_t token) const {
    return values[token] != ignore_index;
  }
  KOKKOS_INLINE_FUNCTION bool valid(std::int64_t token) const {
    return values[token] >= 0 && values[token] < vocab;
  }
};

/// loss of a counted token: lse − logit = (max − logit) + log Σ exp(x − max), each part without
/// cancellation; NaN where the target is out of range.
KOKKOS_INLINE_FUNCTION float token_loss(float max, float log_sum, float target_logit) {
  return (max - target_logit) + log_sum;
}

/// token_losses(t) and statistics(t) in one pass over the logits.
template <class Exec, class T>
struct FusedForward {
  using Memory = typename Exec::memory_space;

  StridedView<const T, 2, Memory> logits;
  Targets targets;
  StridedView<float, 2, Memory> statistics;
  float* token_losses;

  template <class Team>
  KOKKOS_INLINE_FUNCTION void operator()(const Team& team, std::int64_t t) const {
    float max = 0.0F;
    float log_sum = 0.0F;
    float loss = 0.0F;
    if (targets.counts(t)) {
      const T* row = &logits(t, 0);
      const tile::RowStatistics found =
          tile::row_statistics<Exec>(team, row, static_cast<std::int64_t>(logits.extent(1)));
      max = found.max;
      log_sum = Kokkos::log(found.sum);
      loss = targets.valid(t) ? token_loss(max, log_sum, static_cast<float>(row[targets.values[t]]))
                              : not_a_number;
    }
    if (team.team_rank() == 0) {
      token_losses[t] = loss;
      if (statistics.data() != nullptr) {
        statistics(t, 0) = max;
        statistics(t, 1) = log_sum;
      }
    }
  }
};

/// loss = Σ token_losses / count. One team: the order of the additions is fixed.
template <class Exec>
struct MeanLoss {
  using Team = tile::RowTeam<Exec>;

  const float* token_losses;
  Targets targets;
  std::int64_t tokens;
  float* loss;

  KOKKOS_INLINE_FUNCTION void operator()(const Team& team, std::int64_t /*row*/) const {
    double sum = 0.0;  // f32 would round a hundred thousand tokens
    std::int64_t count = 0;
    for (std::int64_t t = team.team_rank(); t < tokens; t += team.team_size()) {
      sum += static_cast<double>(token_losses[t]);
      count += targets.counts(t) ? 1 : 0;
    }
    team.team_reduce(Kokkos::Sum<double>(sum));
    team.team_reduce(Kokkos::Sum<std::int64_t>(count));
    if (team.team_rank() == 0) *loss = static_cast<float>(sum / static_cast<double>(count));
  }
};

/// factor = dloss / count, or 0 where nothing counts. One team.
template <class Exec>
struct GradientFactor {
  using Team = tile::RowTeam<Exec>;

  Targets targets;
  std::int64_t tokens;
  float dloss;
  float* factor;

  KOKKOS_INLINE_FUNCTION void operator()(const Team& team, std::int64_t /*row*/) const {
    std::int64_t count = 0;
    for (std::int64_t t = team.team_rank(); t < tokens; t += team.team_size()) {
      count += targets.counts(t) ? 1 : 0;
    }
    team.team_reduce(Kokkos::Sum<std::int64_t>(count));
    if (team.team_rank() == 0) *factor = count == 0 ? 0.0F : dloss / static_cast<float>(count);
  }
};

/// dlogits = factor · (exp(logits − max − log_sum) − onehot) in one pass; may work in place.
template <class Exec, class T>
struct FusedBackward {
  using Memory = typename Exec::memory_space;

  StridedView<const T, 2, Memory> logits;
  Targets targets;
  StridedView<const float, 2, Memory> statistics;
  const float* factor;
  StridedView<T, 2, Memory> dlogits;

  template <class Team>
  KOKKOS_INLINE_FUNCTION void operator()(const Team& team, std::int64_t t) const {
    const auto n = static_cast<std::int64_t>(logits.extent(1));
    const T* row = &logits(t, 0);
    T* out = &dlogits(t, 0);
    if (!targets.counts(t)) {
      tile::for_columns<Exec>(team, 0, n,
                              [&]<class V>(std::int64_t c) { tile::store(out + c, V(0.0F)); });
      return;
    }
    const float max = statistics(t, 0);
    const float scale = *factor;
    const float shift = -statistics(t, 1) * tile::log2e;
    const std::int64_t target = targets.values[t];
    const float target_logit = targets.valid(t) ? static_cast<float>(row[target]) : 0.0F;
    team.team_barrier();  // before out overwrites it
    tile::for_columns<Exec>(team, 0, n, [&]<class V>(std::int64_t c) {
      const V below = V(tile::load<V>(row + c) - V(max));
      const V p = tile::exp2(tile::fma(below, V(tile::log2e), V(shift)));
      tile::store(out + c, V(p * V(scale)));
    });
    team.team_barrier();
    if (team.team_rank() == 0 && targets.valid(t)) {
      const float p = Kokkos::exp2(Kokkos::fma(target_logit - max, tile::log2e, shift));
      out[target] = static_cast<T>((p - 1.0F) * scale);
    }
  }
};

/// The first unfused pass: stored(t, v) = logits − lse, or its exponential, rounded to the dtype. A token that
/// does not count is left out; its statistics are 0.
template <class Exec, class T, bool Exponential>
struct StoredSoftmax {
  using Memory = typename Exec::memory_space;
  using Team = tile::RowTeam<Exec>;

  StridedView<const T, 2, Memory> logits;
  Targets targets;
  StridedView<float, 2, Memory> statistics;
  T* stored;

  KOKKOS_INLINE_FUNCTION void operator()(const Team& team, std::int64_t t) const {
    float max = 0.0F;
    float log_sum = 0.0F;
    if (targets.counts(t)) {
      const auto n = static_cast<std::int64_t>(logits.extent(1));
      const T* row = &logits(t, 0);
      T* out = stored + t * n;
      const tile::RowStatistics found = tile::row_statistics<Exec>(team, row, n);
      max = found.max;
      log_sum = Kokkos::log(found.sum);
      const float inverse = 1.0F / found.sum;
      tile::for_columns<Exec>(team, 0, n, [&]<class V>(std::int64_t c) {
        const V x = tile::load<V>(row + c);
        if constexpr (Exponential) {
          tile::store(out + c, V(tile::exp_below(x, max) * V(inverse)));
        } else {
          tile::store(out + c, V((x - V(max)) - V(log_sum)));
        }
      });
    }
    if (team.team_rank() == 0 && statistics.data() != nullptr) {
      statistics(t, 0) = max;
      statistics(t, 1) = log_sum;
    }
  }
};

/// The second unfused pass forward: token_losses(t) = −log_probabilities(t, target).
template <class T>
struct GatherLoss {
  const T* log_probabilities;
  Targets targets;
  float* token_losses;

  KOKKOS_INLINE_FUNCTION void operator()(std::int64_t t) const {
    float loss = 0.0F;
    if (targets.counts(t)) {
      loss = targets.valid(t)
                 ? -static_cast<float>(log_probabilities[t * targets.vocab + targets.values[t]])
                 : not_a_number;
    }
    token_losses[t] = loss;
  }
};

/// The second unfused pass backward: dlogits = factor · (probabilities − onehot).
template <class Exec, class T>
struct SubtractTarget {
  using Memory = typename Exec::memory_space;
  using Team = tile::RowTeam<Exec>;

  const T* probabilities;
  Targets targets;
  const float* factor;
  StridedView<T, 2, Memory> dlogits;

  KOKKOS_INLINE_FUNCTION void operator()(const Team& team, std::int64_t t) const {
    const T* row = probabilities + t * targets.vocab;
    T* out = &dlogits(t, 0);
    const bool counts = targets.counts(t);
    const float scale = *factor;
    tile::for_columns<Exec>(team, 0, targets.vocab, [&]<class V>(std::int64_t c) {
      tile::store(out + c, counts ? V(tile::load<V>(row + c) * V(scale)) : V(0.0F));
    });
    team.team_barrier();
    const std::int64_t target = targets.values[t];
    if (team.team_rank() == 0 && counts && targets.valid(t)) {
      out[target] = static_cast<T>((static_cast<float>(row[target]) - 1.0F) * scale);
    }
  }
};

}  // namespace katt::cross_entropy::impl
