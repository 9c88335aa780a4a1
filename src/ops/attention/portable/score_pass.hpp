#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include <Kokkos_Core.hpp>

#include "ops/attention/portable/backward_kernel.hpp"
#include "tile/engines/teams.hpp"

/// Passes over the scores that come after the backward pass on a host: gradients of the mask and of
/// captured tensors.
namespace katt::attention::impl {

template <class T, class Rule>
struct ScorePass : FlashBackward<Host, T, Rule> {
  using Base = FlashBackward<Host, T, Rule>;
  using typename Base::Scores;
  using typename Base::Team;
  using Keys = LiveKeys<std::int64_t>;

  /// The place of the first row of a tile among the rows of all heads.
  [[nodiscard]] std::int64_t first_row(const QueryTile& tile) const {
    const std::int64_t head = tile.batch * this->kv_heads + tile.packed.kv_head;
    return head * this->plan.rows + tile.packed.begin;
  }

  /// Calls f(r, s, dP, columns) for the staged rows of a tile: their scores and dP with the keys
  /// where `keys` stands. The products Q·Kᵀ go to `products`, too, if it is given.
  template <class F>
  void for_each_row(const Team& team, const BackwardScratch& at, const QueryTile& tile,
                    const Scores& scores, const Keys& keys, float* products, const F& f) const {
    const BackwardPlan& plan = this->plan;
    const PackedRows& packed = tile.packed;
    this->pack_keys(team, at, tile.batch, packed.kv_head, keys.key(), keys.columns());
    const bool partial = keys.state() == TileState::partial || keys.columns() < plan.columns;
    this->products(team, at, {0, tile.rows, 0, plan.columns});
    if (products != nullptr) {
      std::copy_n(at.s, std::ptrdiff_t{tile.rows} * plan.score_stride, products);
    }
    this->run_rule(at.s, nullptr, scores, packed, tile.rows, keys.key(), partial);
    for (int r = 0; r < tile.rows; ++r) {
      float* const s = at.s + std::ptrdiff_t{r} * plan.score_stride;
      f(r, s, at.dp + std::ptrdiff_t{r} * plan.score_stride,
        this->finish_scores(s, nullptr, 0.0F, scores, partial, packed.head(r), packed.query(r),
                            keys.key(), keys.columns()));
    }
  }
};

/// Δ − dlse of every row as Σ P ∘ dP over its keys. Δ = dO · O has the rounding of O to 16 bits,
/// which a gradient that many rows share would add up.
template <class T, class Rule>
struct ExactDelta : ScorePass<T, Rule> {
  using typename ScorePass<T, Rule>::Team;
  using typename ScorePass<T, Rule>::Keys;
  using typename ScorePass<T, Rule>::Vec;

  void run(const Team& team, std::int64_t item, float* memory) const {
    const BackwardPlan& plan = this->plan;
    const BackwardScratch at = plan.scratch(memory);
    const QueryTile tile = this->query_tile(item, plan.tile.q);
    const auto scores = this->scores.of(tile.batch, tile.packed.kv_head);
    const std::int64_t first_row = this->first_row(tile);
    float* const delta = this->delta + first_row;
    for (int r = 0; r < tile.rows; ++r) {
      delta[r] = this->dlse
                     ? -this->lse_gradient(tile.batch, tile.packed.head(r), tile.packed.query(r))
                     : 0.0F;
    }
    this->stage_queries(team, at, tile.batch, tile.packed, tile.rows);
    for (Keys keys(scores.mask, tile.first(), tile.last(), plan.tile.kv); keys.valid();
         keys.next()) {
      this->for_each_row(team, at, tile, scores, keys, nullptr,
                         [&](int r, const float* s, const float* dp, const auto& columns) {
                           Vec sum(0.0F);
                           this->for_each_gradient(
                               s, dp, columns, scores, first_row + r, 0.0F,
                               [&](int, auto, const Vec& ds) { sum = sum + ds; }, [](int) {});
                           delta[r] += tile::reduce_sum(sum);
                         });
    }
  }
};

/// Δ − dlse and RowShift of every row. `scratch` has room for `scratch_bytes` a team.
template <class T, class Rule>
void find_row_terms(const Host& exec, const FlashBackward<Host, T, Rule>& functor,
                    std::size_t scratch_bytes, std::byte* scratch) {
  const BackwardPlan& plan = functor.plan;
  const std::int64_t tiles = plan.heads * functor.row_tiles(plan.tile.q);
  constexpr int lanes = tile::lanes_v<Host>;
  Kokkos::parallel_for("katt::attention::score_pass_delta",
                       Kokkos::RangePolicy<Host, Kokkos::IndexType<std::int64_t>>(
                           exec, 0, (plan.heads * plan.rows + lanes - 1) / lanes),
                       BackwardDelta<Host, T, Rule>{functor});
  tile::launch_teams(exec, "katt::attention::score_pass_shifts", tiles, scratch_bytes, scratch,
                     FlashBackwardShifts<Host, T, Rule>{functor});
  if constexpr (!std::is_same_v<T, float>) {
    tile::launch_teams(exec, "katt::attention::score_pass_exact_delta", tiles, scratch_bytes,
                       scratch, ExactDelta<T, Rule>{{functor}});
  }
}

}  // namespace katt::attention::impl
