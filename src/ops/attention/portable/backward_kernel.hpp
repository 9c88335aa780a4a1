#pragma once

#include <cstddef>
#include <cstdint>

#include <Kokkos_Core.hpp>

#include "ops/attention/portable/backward_frame.hpp"
#include "ops/attention/portable/backward_plan.hpp"
#include "ops/attention/portable/portable.hpp"
#include "ops/attention/problem.hpp"
#include "tile/engines/product.hpp"
#include "tile/engines/teams.hpp"
#include "tile/vec/vec.hpp"

/// Flash attention, backward, with the scores recomputed from lse (FlashAttention-2,
/// arXiv:2307.08691, Algorithm 2). A work item is (batch, kv head, chunk of key tiles) and owns a
/// sum of dQ; the first sum of a head is in dq itself if possible:
///
///   for every key tile of the chunk:   Kᵀ, Vᵀ packed;  dK = dV = 0
///     for every live tile of query rows:
///       S = Q·Kᵀ, dP = dO·Vᵀ;  P = e^(S − lse), dS = P ∘ (dP − Δ)
///       dV += Pᵀ·dO,  dK += dSᵀ·Q,  dQ(chunk) += dS·K
///     write dK, dV
///   afterwards dQ = Σ over chunks, in order
///
/// The number of chunks depends on the shapes alone, so the result does not depend on the threads.
/// Rows are packed over the query heads of a group as in the forward pass.
///
/// So few items would leave most of a device idle, and more chunks would need as many copies of dQ.
/// On a device every key tile is an item, which computes only dK and dV, and every tile of query
/// rows is an item of a second kernel, which computes S and dP again and dQ in shared memory: seven
/// products instead of five, no copy, no atomics, the same bits in every run.
///
/// Tiles of query rows that RowShift::is_steep() go over their keys once more before, for the largest
/// score and the sum of every row.
namespace katt::attention::impl {

/// RowShift of the steep rows of a tile of query rows: largest score and sum, online, over its keys.
template <class Exec, class T, class Rule>
struct FlashBackwardShifts : FlashBackward<Exec, T, Rule> {
  using Base = FlashBackward<Exec, T, Rule>;
  using typename Base::Team;
  using typename Base::Vec;

  KOKKOS_INLINE_FUNCTION void run(const Team& team, std::int64_t item, float* memory) const {
    const BackwardPlan& plan = this->plan;
    const QueryTile tile = this->query_tile(item, plan.tile.q);
    const PackedRows& packed = tile.packed;
    const auto lse_of = [&](int r) {
      return this->lse(tile.batch, packed.head(r), packed.query(r));
    };
    bool steep = false;
    for (int r = 0; r < tile.rows; ++r) steep = steep || RowShift::is_steep(lse_of(r));
    if (!steep) return;

    const BackwardScratch at = plan.scratch(memory);
    const auto scores = this->scores.of(tile.batch, packed.kv_head);
    const ScoreUnit unit = scores.unit();
    // Uses the place of dP: only one thread works on the statistics of a row.
    const auto largest = [&](int r) -> float& { return at.dp[2 * r]; };
    const auto sum = [&](int r) -> float& { return at.dp[2 * r + 1]; };
    for (int r = team.team_rank(); r < tile.rows; r += team.team_size()) {
      largest(r) = tile::lowest_score;
      sum(r) = 0.0F;
    }
    this->stage_queries(team, at, tile.batch, packed, tile.rows);
    LiveKeys<std::int64_t> keys(scores.mask, tile.first(), tile.last(), plan.tile.kv);
    for (; keys.valid(); keys.next()) {
      this->pack_keys(team, at, tile.batch, packed.kv_head, keys.key(), keys.columns());
      const bool partial = keys.state() == TileState::partial || keys.columns() < plan.columns;
      team.team_barrier();
      tile::product<Exec, false>(team, tile.rows, plan.columns / this->lanes, plan.head_dim,
                                 {at.q, plan.row_stride, 1}, {at.kt, plan.score_stride},
                                 {at.s, plan.score_stride});
      team.team_barrier();
      this->run_rule(at.s, nullptr, scores, packed, tile.rows, keys.key(), partial);
      for (int r = team.team_rank(); r < tile.rows; r += team.team_size()) {
        float* s = at.s + static_cast<std::ptrdiff_t>(r) * plan.score_stride;
        const auto columns = this->finish_scores(s, nullptr, 0.0F, scores, partial, packed.head(r),
                                                 packed.query(r), keys.key(), keys.columns());
        float above = largest(r);
        this->for_each_vector(
            s, columns,
            [&](int, const Vec& score) { above = tile::max(above, tile::reduce_max(score)); },
            [](int) {});
        float total = sum(r) * Kokkos::exp2((largest(r) - above) * unit.factor);
        this->for_each_vector(
            s, columns,
            [&](int, const Vec& score) {
              total +=
                  tile::reduce_sum(Vec(tile::exp2(Vec((score - Vec(above)) * Vec(unit.factor)))));
            },
            [](int) {});
        largest(r) = above;
        sum(r) = total;
      }
      team.team_barrier();
    }
    const std::int64_t head = tile.batch * this->kv_heads + packed.kv_head;
    for (int r = team.team_rank(); r < tile.rows; r += team.team_size()) {
      if (!RowShift::is_steep(lse_of(r))) continue;
      this->shifts[head * plan.rows + packed.begin + r] =
          RowShift::of_steep(lse_of(r), unit, largest(r), sum(r));
    }
  }
};

/// dQ of a tile of query rows: a device's second kernel.
template <class Exec, class T, class Rule>
struct FlashBackwardQueries : FlashBackward<Exec, T, Rule> {
  using Team = tile::TeamOf<Exec>;

  KOKKOS_INLINE_FUNCTION void run(const Team& team, std::int64_t item, float* memory) const {
    const BackwardPlan& plan = this->plan;
    const BackwardScratch at = plan.scratch(memory);
    const QueryTile tile = this->query_tile(item, plan.tile.q);
    const PackedRows& packed = tile.packed;
    const auto scores = this->scores.of(tile.batch, packed.kv_head);
    this->clear(team, at.dq, static_cast<std::int64_t>(plan.tile.q) * plan.row_stride);
    this->stage_queries(team, at, tile.batch, packed, tile.rows);
    LiveKeys<std::int64_t> keys(scores.mask, tile.first(), tile.last(), plan.tile.kv);
    for (; keys.valid(); keys.next()) {
      this->pack_keys(team, at, tile.batch, packed.kv_head, keys.key(), keys.columns());
      const bool partial = keys.state() == TileState::partial || keys.columns() < plan.columns;
      this->score_tile(team, at, scores, packed, tile.rows, keys.key(), keys.columns(), partial);
      tile::product<Exec, true>(team, tile.rows, plan.row / this->lanes, keys.columns(),
                                {at.dp, plan.score_stride, 1}, {at.k, plan.row_stride},
                                {at.dq, plan.row_stride});
      team.team_barrier();
    }
    team.team_barrier();
    for (int n = team.team_rank(); n < tile.rows * plan.head_dim; n += team.team_size()) {
      const int r = n / plan.head_dim;
      const int d = n % plan.head_dim;
      this->dq.row(tile.batch, packed.head(r), packed.query(r))[d] =
          static_cast<T>(at.dq[r * plan.row_stride + d] * scores.scale);
    }
  }
};

/// Δ − dlse and RowShift of every query row, in the packed order of the rows; `index` is of a vector
/// of them on a host.
template <class Exec, class T, class Rule>
struct BackwardDelta : FlashBackward<Exec, T, Rule> {
  KOKKOS_INLINE_FUNCTION void operator()(std::int64_t index) const {
    using Vec = tile::VecOf<Exec>;
    constexpr int lanes = tile::lanes_v<Exec>;
    const std::int64_t count = this->plan.heads * this->plan.rows;
    const auto row = [&](const HeadRows<const T>& tensor, std::int64_t n) -> const T* {
      if (n >= count) return nullptr;
      const std::int64_t head = n / this->plan.rows;
      const PackedRows packed{head % this->kv_heads, this->group, n % this->plan.rows};
      return tensor.row(head / this->kv_heads, packed.head(0), packed.query(0));
    };
    if constexpr (is_host_v<Exec>) {
      const std::int64_t first = index * lanes;
      const Vec deltas =
          row_deltas<1, Vec>([&](int r) { return row(this->out, first + r); },
                             [&](int r) { return row(this->dout, first + r); }, this->head_dim);
      const auto left = static_cast<int>(Kokkos::min<std::int64_t>(lanes, count - first));
      tile::store(this->delta + first, deltas, tile::PartialVector{left});
      for (std::int64_t n = first; n < first + left; ++n) {
        if (this->dlse) this->delta[n] -= dlse_of(n);
        write_shift(n);
      }
    } else {
      this->delta[index] =
          row_delta<1>(row(this->out, index), row(this->dout, index), this->head_dim);
      write_shift(index);
    }
  }

 private:
  KOKKOS_INLINE_FUNCTION float dlse_of(std::int64_t n) const {
    const std::int64_t head = n / this->plan.rows;
    const PackedRows packed{head % this->kv_heads, this->group, n % this->plan.rows};
    return this->lse_gradient(head / this->kv_heads, packed.head(0), packed.query(0));
  }
  KOKKOS_INLINE_FUNCTION float lse_of(std::int64_t n) const {
    const std::int64_t head = n / this->plan.rows;
    const PackedRows packed{head % this->kv_heads, this->group, n % this->plan.rows};
    return this->lse(head / this->kv_heads, packed.head(0), packed.query(0));
  }
  KOKKOS_INLINE_FUNCTION void write_shift(std::int64_t n) const {
    this->shifts[n] = RowShift::of_lse(lse_of(n), this->scores.unit());
  }
};

/// dq = scale · Σ over chunks of the partial dQ, in order.
template <class Exec, class T, class Rule>
struct SumQueries : FlashBackward<Exec, T, Rule> {
  using Vec = tile::VecOf<Exec>;
  static constexpr int lanes = tile::lanes_v<Exec>;

  KOKKOS_INLINE_FUNCTION void operator()(std::int64_t index) const {
    const BackwardPlan& plan = this->plan;
    const std::int64_t head = index / plan.rows;
    const PackedRows packed{head % this->kv_heads, this->group, index % plan.rows};
    const auto first = this->sums_of(head, 0);
    const auto others = this->sums_of(head, 1);
    T* target = this->dq.row(head / this->kv_heads, packed.head(0), packed.query(0));
    for (int d = 0; d < plan.head_dim; d += lanes) {
      Vec sum = Vec(0.0F) + tile::load<Vec>(first.data + packed.begin * first.stride + d);
      for (std::int64_t c = 1; c < plan.chunks; ++c) {
        const std::int64_t row = (c - 1) * plan.rows + packed.begin;
        sum = sum + tile::load<Vec>(others.data + row * others.stride + d);
      }
      alignas(Vec) float sums[lanes];
      tile::store(sums, sum);
      this->write(sums, this->scores.scale, target, d);
    }
  }
};

template <class Exec, class T, class Rule>
void run_flash(const Exec& exec, const BackwardArgs& args, const Rule& rule, Tile tile,
               Workspace workspace) {
  const auto plan = BackwardPlan::of<Exec>(args, tile);
  auto* base = static_cast<std::byte*>(workspace.data);
  std::byte* scratch = base + plan.delta_bytes() + plan.shift_bytes() + plan.dq_bytes();
  const FlashBackward<Exec, T, Rule> functor(args, rule, plan, base);
  using Rows = Kokkos::RangePolicy<Exec, Kokkos::IndexType<std::int64_t>>;
  const std::int64_t rows = plan.heads * plan.rows;
  constexpr int lanes = is_host_v<Exec> ? tile::lanes_v<Exec> : 1;
  Kokkos::parallel_for("katt::attention::backward_delta", Rows(exec, 0, (rows + lanes - 1) / lanes),
                       BackwardDelta<Exec, T, Rule>{functor});
  tile::launch_teams(exec, "katt::attention::flash_backward_shifts",
                     plan.heads * functor.row_tiles(tile.q), plan.scratch_bytes(), scratch,
                     FlashBackwardShifts<Exec, T, Rule>{functor});
  if constexpr (is_host_v<Exec>) {
    tile::launch_teams(exec, "katt::attention::flash_backward", plan.heads * plan.chunks,
                       plan.scratch_bytes(), scratch, functor);
    Kokkos::parallel_for("katt::attention::backward_sum_dq", Rows(exec, 0, rows),
                         SumQueries<Exec, T, Rule>{functor});
  } else {
    tile::launch_teams(exec, "katt::attention::flash_backward_keys", plan.heads * plan.key_tiles,
                       plan.scratch_bytes(), nullptr, functor);
    tile::launch_teams(exec, "katt::attention::flash_backward_queries",
                       plan.heads * functor.row_tiles(tile.q), plan.scratch_bytes(), nullptr,
                       FlashBackwardQueries<Exec, T, Rule>{functor});
  }
}

}  // namespace katt::attention::impl
