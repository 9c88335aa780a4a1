#pragma once

#include <cstddef>
#include <cstdint>

#include <Kokkos_Core.hpp>

#include "ops/attention/portable/backward_plan.hpp"
#include "ops/attention/portable/portable.hpp"
#include "ops/attention/problem.hpp"
#include "tile/engines/product.hpp"
#include "tile/engines/teams.hpp"
#include "tile/vec/vec.hpp"

/// Parts that the kernels of the portable backward pass share (backward_kernel.hpp): a tile of keys
/// against the query rows of its head, and the rows of a tile of scores.
namespace katt::attention::impl {

template <class Exec, class T, class Rule>
struct FlashBackward : BackwardProblem<T, Rule> {
  using Team = tile::TeamOf<Exec>;
  using Vec = tile::VecOf<Exec>;
  using Scores = EntryScores<T, Rule>;
  static constexpr int lanes = tile::lanes_v<Exec>;

  BackwardPlan plan;
  float* delta;      ///< heads × rows, packed
  RowShift* shifts;  ///< likewise
  float* dq_copies;  ///< heads × copies × rows × row

  FlashBackward(const BackwardArgs& args, const Rule& rule, const BackwardPlan& extents,
                std::byte* workspace)
      : BackwardProblem<T, Rule>(args, rule),
        plan(extents),
        delta(reinterpret_cast<float*>(workspace)),
        shifts(reinterpret_cast<RowShift*>(workspace + plan.delta_bytes())),
        dq_copies(reinterpret_cast<float*>(workspace + plan.delta_bytes() + plan.shift_bytes())) {}

  KOKKOS_INLINE_FUNCTION void run(const Team& team, std::int64_t item, float* memory) const {
    const BackwardScratch at = plan.scratch(memory);
    if constexpr (!is_host_v<Exec>) {
      key_pass(team, at, item / plan.key_tiles, item % plan.key_tiles * plan.tile.kv, {});
    } else {
      const std::int64_t chunk = item % plan.chunks;
      const std::int64_t head = item / plan.chunks;  // of batch · kv_heads
      const Sums dq = sums_of(head, chunk);
      for (std::int64_t r = 0; r < plan.rows; ++r) clear(team, dq.data + r * dq.stride, plan.row);
      const std::int64_t begin = plan.key_tiles * chunk / plan.chunks;
      const std::int64_t end = plan.key_tiles * (chunk + 1) / plan.chunks;
      for (std::int64_t key_tile = begin; key_tile < end; ++key_tile) {
        key_pass(team, at, head, key_tile * plan.tile.kv, dq);
      }
    }
  }

  using Sums = tile::VectorRows<float>;

  /// The rows of a head in which a chunk sums its dQ.
  KOKKOS_INLINE_FUNCTION Sums sums_of(std::int64_t head, std::int64_t chunk) const {
    if constexpr (std::is_same_v<T, float>) {
      if (plan.first_in_dq && chunk == 0) {
        return {this->dq.row(head / this->kv_heads, head % this->kv_heads, 0), this->dq.stride_seq};
      }
    }
    const std::int64_t copy = head * plan.copies() + chunk - (plan.first_in_dq ? 1 : 0);
    return {dq_copies + copy * plan.rows * plan.row, plan.row};
  }

  /// One key tile against all query rows of its head; dQ on a host only.
  KOKKOS_INLINE_FUNCTION void key_pass(const Team& team, const BackwardScratch& at,
                                       std::int64_t head, std::int64_t key, Sums dq) const {
    const std::int64_t b = head / this->kv_heads;
    const std::int64_t h = head % this->kv_heads;
    const Scores scores = this->scores.of(b, h);
    const auto keys_until = [&](std::int64_t end) {
      return position<int>(end - key, plan.tile.kv);
    };
    const int keys = keys_until(scores.mask.interval.keys);  // nothing behind them is read
    clear(team, at.dk, static_cast<std::int64_t>(plan.tile.kv) * plan.row_stride);
    clear(team, at.dv, static_cast<std::int64_t>(plan.tile.kv) * plan.row_stride);
    pack_keys(team, at, b, h, key, keys);
    LiveQueries<std::int64_t> tiles(scores.mask, key, key + keys, this->group, plan.rows,
                                    plan.tile.q);
    for (; tiles.valid(); tiles.next()) {
      const std::int64_t row = tiles.row();
      const int rows = tiles.count();
      const PackedRows packed{h, this->group, row};
      stage_queries(team, at, b, packed, rows);
      const bool partial = tiles.state() == TileState::partial || keys < plan.columns;
      score_tile(team, at, scores, packed, rows, key, keys, partial);
      const int width = plan.row / lanes;
      for_each_band(scores, packed, rows, key, keys, partial, [&](const Band& band) {
        const int live = Kokkos::min(band.columns, keys - band.column);
        const int scored = band.row * plan.score_stride + band.column;
        const int from = band.row * plan.row_stride;
        const int to = band.column * plan.row_stride;
        tile::product<Exec, true>(team, live, width, band.rows,
                                  {at.s + scored, 1, plan.score_stride},
                                  {at.dout + from, plan.row_stride}, {at.dv + to, plan.row_stride});
        tile::product<Exec, true>(team, live, width, band.rows,
                                  {at.dp + scored, 1, plan.score_stride},
                                  {at.q + from, plan.row_stride}, {at.dk + to, plan.row_stride});
        if constexpr (is_host_v<Exec>) {
          tile::product<Exec, true>(
              team, band.rows, width, live, {at.dp + scored, plan.score_stride, 1},
              {at.k + to, plan.row_stride}, {dq.data + (row + band.row) * dq.stride, dq.stride});
        }
      });
      team.team_barrier();
    }
    team.team_barrier();  // where no query sees the keys, dK and dV have only been cleared
    const int width = plan.row / lanes;
    const int written = keys_until(this->seq_kv) * width;
    for (int item = team.team_rank(); item < written; item += team.team_size()) {
      const int j = item / width;
      const int d = item % width * lanes;
      write(at.dk + j * plan.row_stride + d, scores.scale, this->dk.row(b, h, key + j), d);
      write(at.dv + j * plan.row_stride + d, 1.0F, this->dv.row(b, h, key + j), d);
    }
    team.team_barrier();
  }

  /// A vector of sums, times a factor, to the elements from d on of a row of the output.
  KOKKOS_FORCEINLINE_FUNCTION void write(const float* sums, float factor, T* row, int d) const {
    const Vec value = tile::load<Vec>(sums) * Vec(factor);
    if (lanes == 1 || plan.head_dim - d >= lanes) {
      tile::store(row + d, value);
    } else {
      tile::store(row + d, value, tile::PartialVector{plan.head_dim - d});
    }
  }

  /// Rows of a tile of scores, and the columns of them, in whole vectors, that hold all that they see.
  struct Band {
    int row, rows, column, columns;
  };

  /// Calls f for the bands of a tile. On a host the bands of a tile that a mask cuts leave out the
  /// columns that nobody sees: columns that all of its rows see are one band, and the columns
  /// beside them are a band for every few rows.
  template <class F>
  KOKKOS_INLINE_FUNCTION void for_each_band(const Scores& scores, const PackedRows& packed,
                                            int rows, std::int64_t key, int keys, bool partial,
                                            const F& f) const {
    if (!is_host_v<Exec> || !partial) return f(Band{0, rows, 0, plan.columns});
    constexpr int band_rows = 16;
    const auto up = [](int column) { return (column + lanes - 1) / lanes * lanes; };
    const auto down = [](int column) { return column / lanes * lanes; };
    const KeyRange by_all = scores.mask.live(packed.query(rows - 1), packed.query(0));
    const int begin = up(position<int>(by_all.begin - key, keys));
    const int end = down(position<int>(by_all.end - key, keys));
    const bool whole = begin < end;
    if (whole) f(Band{0, rows, begin, end - begin});
    for (int r = 0; r < rows; r += band_rows) {
      const int count = Kokkos::min(band_rows, rows - r);
      const KeyRange live = scores.mask.live(packed.query(r), packed.query(r + count - 1));
      const int first = down(position<int>(live.begin - key, keys));
      const int last = up(position<int>(live.end - key, keys));
      const int left = whole ? begin : last;
      const int right = whole ? end : last;
      if (first < left) f(Band{r, count, first, left - first});
      if (right < last) f(Band{r, count, right, last - right});
    }
  }

  KOKKOS_INLINE_FUNCTION void clear(const Team& team, float* target, std::int64_t count) const {
    for (std::int64_t i = team.team_rank(); i < count / lanes; i += team.team_size()) {
      tile::store(target + i * lanes, Vec(0.0F));
    }
  }

  /// P and dS of staged queries and packed keys, in place of their products; barriers before and
  /// after.
  KOKKOS_INLINE_FUNCTION void score_tile(const Team& team, const BackwardScratch& at,
                                         const Scores& scores, const PackedRows& packed, int rows,
                                         std::int64_t key, int keys, bool partial) const {
    team.team_barrier();
    for_each_band(scores, packed, rows, key, keys, partial,
                  [&](const Band& band) { products(team, at, band); });
    team.team_barrier();
    const std::int64_t head = scores.batch * this->kv_heads + packed.kv_head;
    run_rule(at.s, at.dp, scores, packed, rows, key, partial);
    for (int r = team.team_rank(); r < rows; r += team.team_size()) {
      score_row(at.s + static_cast<std::ptrdiff_t>(r) * plan.score_stride,
                at.dp + static_cast<std::ptrdiff_t>(r) * plan.score_stride, scores, partial,
                packed.head(r), packed.query(r), key, keys, head * plan.rows + packed.begin + r);
    }
    team.team_barrier();
  }

  /// S = Q·Kᵀ and dP = dO·Vᵀ of staged queries and packed keys.
  KOKKOS_INLINE_FUNCTION void products(const Team& team, const BackwardScratch& at,
                                       const Band& band) const {
    const int vectors = band.columns / lanes;
    const int scored = band.row * plan.score_stride + band.column;
    const int from = band.row * plan.row_stride;
    tile::product<Exec, false>(
        team, band.rows, vectors, plan.head_dim, {at.q + from, plan.row_stride, 1},
        {at.kt + band.column, plan.score_stride}, {at.s + scored, plan.score_stride});
    tile::product<Exec, false>(
        team, band.rows, vectors, plan.head_dim, {at.dout + from, plan.row_stride, 1},
        {at.vt + band.column, plan.score_stride}, {at.dp + scored, plan.score_stride});
  }

  /// Kᵀ and Vᵀ (head_dim × columns, missing keys zero), and K by rows.
  KOKKOS_INLINE_FUNCTION void pack_keys(const Team& team, const BackwardScratch& at, std::int64_t b,
                                        std::int64_t h, std::int64_t key, int keys) const {
    if constexpr (is_host_v<Exec>) {
      pack_transposed(
          keys, [&](int j) { return this->k.row(b, h, key + j); }, at.kt, at.k);
      pack_transposed(
          keys, [&](int j) { return this->v.row(b, h, key + j); }, at.vt, nullptr);
    } else {
      for (int j = team.team_rank(); j < plan.columns; j += team.team_size()) {
        const T* from_k = j < keys ? this->k.row(b, h, key + j) : nullptr;
        const T* from_v = j < keys ? this->v.row(b, h, key + j) : nullptr;
        for (int d = 0; d < plan.head_dim; ++d) {
          const float value = j < keys ? static_cast<float>(from_k[d]) : 0.0F;
          at.kt[d * plan.score_stride + j] = value;
          at.vt[d * plan.score_stride + j] = j < keys ? static_cast<float>(from_v[d]) : 0.0F;
          if (j < plan.tile.kv) at.k[j * plan.row_stride + d] = value;
        }
        for (int d = plan.head_dim; d < plan.row && j < plan.tile.kv; ++d) {
          at.k[j * plan.row_stride + d] = 0.0F;
        }
      }
    }
  }
  /// The rows of keys or values by squares of vectors, and unchanged if `rows` is given.
  template <class Row>
  KOKKOS_INLINE_FUNCTION void pack_transposed(int keys, const Row& row_of, float* transposed,
                                              float* rows) const {
    for (int first = 0; first < plan.columns; first += lanes) {
      for (int d = 0; d < plan.row; d += lanes) {
        Vec square[lanes];
        for (int i = 0; i < lanes; ++i) {
          const int j = first + i;
          square[i] = load_of_row<Vec>(j < keys ? row_of(j) + d : nullptr, plan.head_dim - d);
          if (rows != nullptr && j < plan.tile.kv)
            tile::store(rows + j * plan.row_stride + d, square[i]);
        }
        tile::transpose(square);
        for (int i = 0; i < lanes && d + i < plan.head_dim; ++i) {
          tile::store(transposed + (d + i) * plan.score_stride + first, square[i]);
        }
      }
    }
  }

  /// Rows of q and dout, widened, padded with zeros to whole vectors.
  KOKKOS_INLINE_FUNCTION void stage_queries(const Team& team, const BackwardScratch& at,
                                            std::int64_t b, const PackedRows& packed,
                                            int rows) const {
    for (int r = team.team_rank(); r < rows; r += team.team_size()) {
      const std::int64_t i = packed.query(r);
      const std::int64_t head = packed.head(r);
      widen(this->q.row(b, head, i), at.q + static_cast<std::ptrdiff_t>(r) * plan.row_stride);
      widen(this->dout.row(b, head, i), at.dout + static_cast<std::ptrdiff_t>(r) * plan.row_stride);
    }
  }
  KOKKOS_INLINE_FUNCTION void widen(const T* from, float* to) const {
    const int whole = plan.head_dim / lanes * lanes;
    for (int d = 0; d < whole; d += lanes) tile::store(to + d, tile::load<Vec>(from + d));
    for (int d = whole; d < plan.row; ++d) {
      to[d] = d < plan.head_dim ? static_cast<float>(from[d]) : 0.0F;
    }
  }

  /// A rule that is a program, before finish_scores(): products s of a tile become scores, but for
  /// bias and mask, and dP, if given, (dP − Δ) · slope.
  KOKKOS_INLINE_FUNCTION void run_rule(float* s, float* dp, const Scores& scores,
                                       const PackedRows& packed, int rows, std::int64_t key,
                                       bool partial) const {
    if constexpr (is_program<Rule>) {
      const std::int64_t head = scores.batch * this->kv_heads + packed.kv_head;
      for (int r = 0; r < rows; ++r) {
        const std::ptrdiff_t from = static_cast<std::ptrdiff_t>(r) * plan.score_stride;
        apply_steps(s + from, dp == nullptr ? dp : dp + from,
                    dp == nullptr ? 0.0F : delta[head * plan.rows + packed.begin + r], scores,
                    packed.head(r), packed.query(r), key);
      }
      const tile::ScorePart part{s, 0, rows, rows, plan.columns, true, plan.score_stride};
      scores.rule.differentiate(part, dp, scores, packed, key, partial);
    }
  }

  /// The steps of the scores of a row that are computed score by score; dP, if given, becomes
  /// (dP − Δ) · slope: Δ is scaled by the slope, too.
  KOKKOS_INLINE_FUNCTION void apply_steps(float* s, float* dp, float row_delta,
                                          const Scores& scores, std::int64_t head, std::int64_t i,
                                          std::int64_t key) const {
    auto place = tile::place_of_columns<Vec>(scores.row(head, i));
    for (int j = 0; j < plan.columns; j += lanes) {
      Vec slope;
      tile::store(s + j, scores.score(tile::load<Vec>(s + j), place, key, slope));
      if (dp != nullptr) {
        tile::store(dp + j, Vec((tile::load<Vec>(dp + j) - Vec(row_delta)) * slope));
      }
      place.column = place.column + Vec(static_cast<float>(lanes));
    }
  }

  /// Columns begin … end − 1 of a row of a tile are visible, and there are some.
  struct Columns {
    int begin, end;
  };

  /// Scores of a row of products s; they may have any value in columns that are not visible. Unless
  /// the scores are the products, dP, if given, becomes (dP − Δ) · slope.
  KOKKOS_INLINE_FUNCTION Columns finish_scores(float* s, float* dp, float row_delta,
                                               const Scores& scores, bool partial,
                                               std::int64_t head, std::int64_t i, std::int64_t key,
                                               int keys) const {
    if (!is_program<Rule> && !scores.folded()) {
      apply_steps(s, dp, row_delta, scores, head, i, key);
    }
    if (scores.bias) {
      const T* added = scores.bias.row(scores.batch, head, i) + key;
      for (int j = 0; j < keys; ++j) s[j] = scores.biased(s[j], added[j]);
    }
    int begin = 0;
    int end = plan.columns;
    if (partial) {
      const KeyRange live = scores.mask.live(i, i);
      begin = position<int>(live.begin - key, keys);
      end = Kokkos::max(begin, position<int>(live.end - key, keys));
      if (scores.mask.blocks.blocks != nullptr) {
        scores.mask.blocks.for_each_hidden(i, key + begin, key + end, [&](std::int64_t j) {
          s[j - key] = -Kokkos::Experimental::infinity_v<float>;
        });
      }
    }
    if constexpr (Scores::has_any_rule) {
      for (int j = 0; dp != nullptr && j < plan.columns; ++j) {  // a rule's slope may be NaN there
        const bool hidden =
            j < begin || j >= end || s[j] == -Kokkos::Experimental::infinity_v<float>;
        if (hidden) dp[j] = 0.0F;
      }
    }
    return {begin, end};
  }

  /// Calls f(j, scores) for the vectors of a row that hold visible columns, −inf in the others, and
  /// hidden(j) for the rest.
  template <class F, class Hidden>
  KOKKOS_INLINE_FUNCTION void for_each_vector(const float* s, const Columns& columns, const F& f,
                                              const Hidden& hidden) const {
    const auto [begin, end] = columns;
    const auto lane = tile::place_of_columns<Vec>(tile::RowNumbers<1>{}).column;
    const Vec first = Vec(static_cast<float>(begin)) - lane;
    const Vec behind = Vec(static_cast<float>(end)) - lane;
    for (int j = 0; j < plan.columns; j += lanes) {
      if (j + lanes <= begin || j >= end) {
        hidden(j);
        continue;
      }
      const Vec score = tile::load<Vec>(s + j);
      const bool whole = j >= begin && j + lanes <= end;
      f(j, whole ? score : tile::keep_between(score, static_cast<float>(j), first, behind));
    }
  }

  /// Turns a row of products s and dP into P and dS.
  KOKKOS_INLINE_FUNCTION void score_row(float* s, float* dp, const Scores& scores, bool partial,
                                        std::int64_t head, std::int64_t i, std::int64_t key,
                                        int keys, std::int64_t row) const {
    const float row_delta = delta[row];
    const Columns columns = finish_scores(s, dp, row_delta, scores, partial, head, i, key, keys);
    for_each_gradient(
        s, dp, columns, scores, row, scores.folded() ? row_delta : 0.0F,
        [&](int j, const Vec& p, const Vec& ds) {
          tile::store(s + j, p);
          tile::store(dp + j, ds);
        },
        [&](int j) {
          tile::store(s + j, Vec(0.0F));
          tile::store(dp + j, Vec(0.0F));
        });
  }

  /// Calls f(j, P, P ∘ (dP − subtracted)) for the vectors of a row of scores that hold visible
  /// columns, and hidden(j) for the rest.
  template <class F, class Hidden>
  KOKKOS_INLINE_FUNCTION void for_each_gradient(const float* s, const float* dp,
                                                const Columns& columns, const Scores& scores,
                                                std::int64_t row, float subtracted, const F& f,
                                                const Hidden& hidden) const {
    const Vec factor(scores.factor());
    const Vec shift(shifts[row].shift);
    const Vec low(-shifts[row].low);
    const Vec subtract(subtracted);
    for_each_vector(
        s, columns,
        [&](int j, const Vec& score) {
          const Vec slope = tile::load<Vec>(dp + j) - subtract;
          const Vec p = tile::exp2(Vec(tile::fma(Vec(score - shift), factor, low)));
          f(j, p, Vec(p * slope));
        },
        hidden);
  }
};

}  // namespace katt::attention::impl
