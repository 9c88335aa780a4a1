#pragma once

#include <cstddef>
#include <cstdint>

#include <Kokkos_Core.hpp>

#include "core/views.hpp"
#include "ops/attention/backward.hpp"
#include "ops/attention/scores.hpp"
#include "tile/product.hpp"
#include "tile/teams.hpp"
#include "tile/vec.hpp"

/// Flash attention, backward, with the scores recomputed from lse (FlashAttention-2,
/// arXiv:2307.08691, Algorithm 2). A work item is (batch, kv head, chunk of key tiles) and owns a
/// copy of dQ:
///
///   for every key tile of the chunk:   Kᵀ, Vᵀ packed;  dK = dV = 0
///     for every live tile of query rows:
///       S = Q·Kᵀ, dP = dO·Vᵀ;  P = 2^(S − lse), dS = P ∘ (dP − Δ)
///       dV += Pᵀ·dO,  dK += dSᵀ·Q,  dQ(chunk) += dS·K
///     write dK, dV
///   afterwards dQ = Σ over chunks, in order
///
/// The number of chunks depends on the shapes alone, so the result does not depend on the threads.
/// Rows are packed over the query heads of a group as in the forward pass.
namespace katt::attention::impl {

/// Extents of a backward pass and of its tiles, and where its workspace lies.
struct BackwardPlan {
  Tile tile;
  std::int64_t group = 1;  ///< query heads per K/V head
  std::int64_t rows = 0;   ///< packed query rows per K/V head
  std::int64_t heads = 0;  ///< batch · kv_heads
  std::int64_t key_tiles = 0;
  std::int64_t chunks = 1;  ///< per (batch, kv head)
  int head_dim = 0;
  int row = 0;      ///< head_dim padded to whole vectors
  int columns = 0;  ///< tile_kv padded to whole vectors

  /// Work items below which keys are split into chunks: enough for the threads of a large host.
  static constexpr std::int64_t least_items = 16;

  BackwardPlan(const BackwardArgs& args, Tile tile_shape, int lanes)
      : tile(tile_shape), head_dim(static_cast<int>(args.head_dim())) {
    group = args.heads() / args.kv_heads();
    rows = args.seq_q() * group;
    heads = args.batch() * args.kv_heads();
    key_tiles = (args.seq_kv() + tile.kv - 1) / tile.kv;
    const std::int64_t wanted = heads == 0 ? 1 : (least_items + heads - 1) / heads;
    chunks = Kokkos::max<std::int64_t>(1, Kokkos::min(wanted, key_tiles));
    row = (head_dim + lanes - 1) / lanes * lanes;
    columns = (tile.kv + lanes - 1) / lanes * lanes;
  }

  std::size_t delta_bytes() const { return aligned(sizeof(float) * count(heads * rows)); }
  std::size_t dq_bytes() const {
    return aligned(sizeof(float) * count(heads * chunks * rows) * count(row));
  }
  std::size_t scratch_bytes() const { return scratch_bytes(tile, head_dim, row, columns); }
  /// Scratch of one team.
  static constexpr std::size_t scratch_bytes(Tile tile, int head_dim, int row, int columns) {
    const std::size_t transposed = 2 * count(head_dim) * count(columns);
    const std::size_t keys = 3 * count(tile.kv) * count(row);
    const std::size_t queries = 2 * count(tile.q) * count(row);
    const std::size_t scores = 2 * count(tile.q) * count(columns);
    return aligned(sizeof(float) * (transposed + keys + queries + scores));
  }

 private:
  static constexpr std::size_t count(std::int64_t n) { return static_cast<std::size_t>(n); }
  static constexpr std::size_t aligned(std::size_t bytes) { return (bytes + 127) / 128 * 128; }
};

template <class Exec, class T>
struct FlashBackward {
  using Memory = typename Exec::memory_space;
  using Team = tile::TeamOf<Exec>;
  using Vec = tile::VecOf<Exec>;
  static constexpr int lanes = tile::lanes_v<Exec>;

  BackwardPlan plan;
  StridedView<const T, 4, Memory> q, k, v, dout;
  StridedView<const float, 3, Memory> lse;
  StridedView<T, 4, Memory> dk, dv;
  Masks masks;
  Bias<T> bias;
  float scale;
  float softcap;
  const float* delta;  ///< heads × rows, packed
  float* dq_parts;     ///< heads × chunks × rows × row

  /// The parts of a team's scratch.
  struct Scratch {
    float *kt, *vt, *k, *dk, *dv, *q, *dout, *s, *dp;
  };

  KOKKOS_INLINE_FUNCTION void run(const Team& team, std::int64_t item, float* memory) const {
    Scratch at{};
    const auto take = [&memory](std::int64_t n) {
      float* begin = memory;
      memory += n;
      return begin;
    };
    at.kt = take(static_cast<std::int64_t>(plan.head_dim) * plan.columns);
    at.vt = take(static_cast<std::int64_t>(plan.head_dim) * plan.columns);
    at.k = take(static_cast<std::int64_t>(plan.tile.kv) * plan.row);
    at.dk = take(static_cast<std::int64_t>(plan.tile.kv) * plan.row);
    at.dv = take(static_cast<std::int64_t>(plan.tile.kv) * plan.row);
    at.q = take(static_cast<std::int64_t>(plan.tile.q) * plan.row);
    at.dout = take(static_cast<std::int64_t>(plan.tile.q) * plan.row);
    at.s = take(static_cast<std::int64_t>(plan.tile.q) * plan.columns);
    at.dp = take(static_cast<std::int64_t>(plan.tile.q) * plan.columns);

    const std::int64_t chunk = item % plan.chunks;
    const std::int64_t head = item / plan.chunks;  // of batch · kv_heads
    float* dq = dq_parts + item * plan.rows * plan.row;
    clear(team, dq, plan.rows * plan.row);
    const std::int64_t begin = plan.key_tiles * chunk / plan.chunks;
    const std::int64_t end = plan.key_tiles * (chunk + 1) / plan.chunks;
    for (std::int64_t key_tile = begin; key_tile < end; ++key_tile) {
      key_pass(team, at, head, key_tile * plan.tile.kv, dq);
    }
  }

  /// One key tile against all query rows of its head.
  KOKKOS_INLINE_FUNCTION void key_pass(const Team& team, const Scratch& at, std::int64_t head,
                                       std::int64_t key, float* dq) const {
    const auto kv_heads = static_cast<std::int64_t>(k.extent(1));
    const std::int64_t b = head / kv_heads;
    const std::int64_t h = head % kv_heads;
    const int keys = static_cast<int>(
        Kokkos::min<std::int64_t>(plan.tile.kv, static_cast<std::int64_t>(k.extent(2)) - key));
    pack_keys(team, at, b, h, key, keys);
    const ScoreRule<T> rule{masks.of(b), bias, softcap, scale};
    for (std::int64_t row = 0; row < plan.rows; row += plan.tile.q) {
      const int rows = static_cast<int>(Kokkos::min<std::int64_t>(plan.tile.q, plan.rows - row));
      const std::int64_t first = row / plan.group;
      const std::int64_t last = (row + rows - 1) / plan.group;
      const TileState state = rule.mask.tile(first, last, key, key + keys);
      if (state == TileState::dead) continue;
      stage_queries(team, at, b, h, row, rows);
      team.team_barrier();
      const int vectors = plan.columns / lanes;
      tile::product<Exec, false>(team, rows, vectors, plan.head_dim, {at.q, plan.row, 1},
                                 {at.kt, plan.columns}, {at.s, plan.columns});
      tile::product<Exec, false>(team, rows, vectors, plan.head_dim, {at.dout, plan.row, 1},
                                 {at.vt, plan.columns}, {at.dp, plan.columns});
      team.team_barrier();
      for (int r = team.team_rank(); r < rows; r += team.team_size()) {
        score_row(at.s + static_cast<std::ptrdiff_t>(r) * plan.columns,
                  at.dp + static_cast<std::ptrdiff_t>(r) * plan.columns, rule,
                  state == TileState::partial || keys < plan.columns, b, h, row + r, key, keys,
                  delta[head * plan.rows + row + r]);
      }
      team.team_barrier();
      const int width = plan.row / lanes;
      tile::product<Exec, true>(team, keys, width, rows, {at.s, 1, plan.columns},
                                {at.dout, plan.row}, {at.dv, plan.row});
      tile::product<Exec, true>(team, keys, width, rows, {at.dp, 1, plan.columns}, {at.q, plan.row},
                                {at.dk, plan.row});
      tile::product<Exec, true>(team, rows, width, keys, {at.dp, plan.columns, 1}, {at.k, plan.row},
                                {dq + row * plan.row, plan.row});
      team.team_barrier();
    }
    for (int item = team.team_rank(); item < keys * plan.head_dim; item += team.team_size()) {
      const int j = item / plan.head_dim;
      const int d = item % plan.head_dim;
      dk(b, h, key + j, d) = static_cast<T>(at.dk[j * plan.row + d] * scale);
      dv(b, h, key + j, d) = static_cast<T>(at.dv[j * plan.row + d]);
    }
    team.team_barrier();
  }

  KOKKOS_INLINE_FUNCTION void clear(const Team& team, float* target, std::int64_t count) const {
    for (std::int64_t i = team.team_rank(); i < count / lanes; i += team.team_size()) {
      tile::store(target + i * lanes, Vec(0.0F));
    }
  }

  /// Kᵀ and Vᵀ (head_dim × columns, missing keys zero), K by rows, and cleared dK and dV.
  KOKKOS_INLINE_FUNCTION void pack_keys(const Team& team, const Scratch& at, std::int64_t b,
                                        std::int64_t h, std::int64_t key, int keys) const {
    clear(team, at.dk, static_cast<std::int64_t>(plan.tile.kv) * plan.row);
    clear(team, at.dv, static_cast<std::int64_t>(plan.tile.kv) * plan.row);
    for (int j = team.team_rank(); j < plan.columns; j += team.team_size()) {
      const T* from_k = j < keys ? &k(b, h, key + j, 0) : nullptr;
      const T* from_v = j < keys ? &v(b, h, key + j, 0) : nullptr;
      for (int d = 0; d < plan.head_dim; ++d) {
        const float value = j < keys ? static_cast<float>(from_k[d]) : 0.0F;
        at.kt[d * plan.columns + j] = value;
        at.vt[d * plan.columns + j] = j < keys ? static_cast<float>(from_v[d]) : 0.0F;
        if (j < plan.tile.kv) at.k[j * plan.row + d] = value;
      }
      for (int d = plan.head_dim; d < plan.row && j < plan.tile.kv; ++d) {
        at.k[j * plan.row + d] = 0.0F;
      }
    }
  }

  /// Rows of q and dout, widened, padded with zeros to whole vectors.
  KOKKOS_INLINE_FUNCTION void stage_queries(const Team& team, const Scratch& at, std::int64_t b,
                                            std::int64_t h, std::int64_t row, int rows) const {
    for (int r = team.team_rank(); r < rows; r += team.team_size()) {
      const std::int64_t i = (row + r) / plan.group;
      const std::int64_t head = h * plan.group + (row + r) % plan.group;
      widen(&q(b, head, i, 0), at.q + static_cast<std::ptrdiff_t>(r) * plan.row);
      widen(&dout(b, head, i, 0), at.dout + static_cast<std::ptrdiff_t>(r) * plan.row);
    }
  }
  KOKKOS_INLINE_FUNCTION void widen(const T* from, float* to) const {
    const int whole = plan.head_dim / lanes * lanes;
    for (int d = 0; d < whole; d += lanes) tile::store(to + d, tile::load<Vec>(from + d));
    for (int d = whole; d < plan.row; ++d) {
      to[d] = d < plan.head_dim ? static_cast<float>(from[d]) : 0.0F;
    }
  }

  /// Turns a row of products s and dP into P and dS.
  KOKKOS_INLINE_FUNCTION void score_row(float* s, float* dp, const ScoreRule<T>& rule, bool partial,
                                        std::int64_t b, std::int64_t h, std::int64_t row,
                                        std::int64_t key, int keys, float row_delta) const {
    const std::int64_t i = row / plan.group;
    const std::int64_t head = h * plan.group + row % plan.group;
    const BinaryLse row_lse(lse(b, head, i));
    const bool folded = rule.folded();
    if (!folded) {
      // dP is scaled by the slope of the scores, and so is Δ: it is folded in at once.
      for (int j = 0; j < plan.columns; j += lanes) {
        Vec slope;
        tile::store(s + j, rule.score(tile::load<Vec>(s + j), slope));
        tile::store(dp + j, Vec((tile::load<Vec>(dp + j) - Vec(row_delta)) * slope));
      }
    }
    if (bias) {
      const T* added = bias.row(b, head, i) + key;
      for (int j = 0; j < keys; ++j) s[j] = rule.biased(s[j], added[j]);
    }
    if (partial) {
      for (int j = 0; j < plan.columns; ++j) {
        if (j >= keys || !rule.mask.visible(i, key + j)) {
          s[j] = -Kokkos::Experimental::infinity_v<float>;
        }
      }
    }
    const Vec factor(rule.factor());
    const Vec high(-row_lse.high);
    const Vec low(row_lse.low);
    const Vec subtract(folded ? row_delta : 0.0F);
    for (int j = 0; j < plan.columns; j += lanes) {
      const Vec p = tile::exp2(Vec(tile::fma(tile::load<Vec>(s + j), factor, high) - low));
      tile::store(s + j, p);
      tile::store(dp + j, Vec(p * (tile::load<Vec>(dp + j) - subtract)));
    }
  }
};

}  // namespace katt::attention::impl
