#pragma once

#include <algorithm>
#include <cstdint>

#include "core/parts.hpp"
#include "ops/attention/naive/device_passes.hpp"
#include "ops/attention/naive/existing_keys.hpp"
#include "ops/attention/naive/naive.hpp"
#include "ops/attention/problem.hpp"
#include "ops/attention/work.hpp"
#include "ops/linear/gemm/naive.hpp"
#include "tile/rows/columns.hpp"

/// The kernels and the products of the naive forward pass on a host; see naive.hpp.
namespace katt::attention::impl::naive {

/// Masked softmax of every row of products (batch · heads · seq_q rows of seq_kv), in place, and
/// lse. In 16 bits, where products and scores are rounded when they are stored, the products have
/// been scaled before, so that they keep the range of scores; f32 rounds scores as every other
/// kernel does.
template <class Exec, class T, class Rule>
struct RowSoftmax {
  using Policy = Kokkos::TeamPolicy<Exec>;
  using Team = typename Policy::member_type;

  T* stored;
  std::int64_t heads, group, seq_q, seq_kv;
  Scores<T, Rule> scores;
  RowValues<float> lse;

  RowSoftmax(const ForwardArgs& args, const Rule& rule, T* products)
      : stored(products),
        heads(args.heads()),
        group(args.heads() / args.kv_heads()),
        seq_q(args.seq_q()),
        seq_kv(args.seq_kv()),
        scores(args, rule),
        lse(args.lse) {
    if (!std::is_same_v<T, float>) scores.scale = 1.0F;
  }

  KOKKOS_INLINE_FUNCTION void operator()(const Team& team) const {
    const std::int64_t item = team.league_rank();
    const std::int64_t i = item % seq_q;
    const std::int64_t h = item / seq_q % heads;
    const std::int64_t b = item / seq_q / heads;
    T* row = stored + item * seq_kv;
    const EntryScores<T, Rule> rule = scores.of(b, h / group);
    const std::int64_t begin = rule.mask.interval.begin(i);
    const std::int64_t end = Kokkos::max(begin, rule.mask.interval.end(i));
    constexpr float infinity = Kokkos::Experimental::infinity_v<float>;

    if (!rule.folded()) {
      const T* added = rule.bias ? rule.bias.row(b, h, i) : nullptr;
      const auto numbers = rule.row(h, i);
      tile::for_columns<Exec>(team, begin, end, [&]<class V>(std::int64_t j) {
        V slope;
        V s = rule.score(tile::load<V>(row + j), tile::place_of_columns<V>(numbers), j, slope);
        if (added != nullptr && !is_program<Rule>) s = with_bias(s, tile::load<V>(added + j));
        tile::store(row + j, s);
      });
      team.team_barrier();
      if constexpr (is_program<Rule>) {
        rule.rule.run_row(row, begin, end, rule, h, i);
        if (added != nullptr) {
          tile::for_columns<Exec>(team, begin, end, [&]<class V>(std::int64_t j) {
            tile::store(row + j, with_bias(tile::load<V>(row + j), tile::load<V>(added + j)));
          });
        }
      }
    }
    if (rule.mask.blocks.blocks != nullptr) {
      rule.mask.blocks.for_each_hidden(i, begin, end,
                                       [&](std::int64_t j) { row[j] = static_cast<T>(-infinity); });
    }

    tile::RowMax<Exec, tile::column_slots> row_max(-infinity);
    tile::for_columns<Exec>(team, begin, end, [&]<class V>(std::int64_t j, int slot) {
      row_max.add(tile::load<V>(row + j), slot);
    });
    const ScoreUnit unit = rule.unit();
    // Finite, so that a row whose scores are all −inf has sum 0 without a case of its own.
    const float lowest = tile::lowest_score;
    const float largest = tile::max(lowest, row_max.total(team));
    const auto exponential = [&]<class V>(const V& s) {
      return tile::exp2(V((s - V(largest)) * V(unit.factor)));
    };
    tile::RowSum<Exec> row_sum;
    tile::for_columns<Exec>(team, begin, end, [&]<class V>(std::int64_t j) {
      const V e = exponential(tile::load<V>(row + j));
      row_sum.add(e);
      if constexpr (std::is_same_v<T, float>) tile::store(row + j, e);
    });
    const float sum = row_sum.total(team);
    const float inverse = sum == 0.0F ? 0.0F : 1.0F / sum;
    tile::for_columns<Exec>(team, begin, end, [&]<class V>(std::int64_t j) {
      V e = tile::load<V>(row + j);
      if constexpr (!std::is_same_v<T, float>) e = exponential(e);
      tile::store(row + j, V(e * V(inverse)));
    });
    for (std::int64_t j = team.team_rank(); j < Kokkos::min(begin, seq_kv); j += team.team_size()) {
      row[j] = T(0.0F);
    }
    for (std::int64_t j = Kokkos::max<std::int64_t>(0, end) + team.team_rank(); j < seq_kv;
         j += team.team_size()) {
      row[j] = T(0.0F);
    }
    if (lse && team.team_rank() == 0) lse(b, h, i) = unit.lse(largest, sum);
  }

 private:
  /// A sum that f16 would store as −inf, beside the lowest bias, is the lowest number instead.
  template <class V>
  KOKKOS_FORCEINLINE_FUNCTION static V with_bias(const V& s, const V& bias) {
    if constexpr (std::is_same_v<T, f16>) {
      const V room = V(0.0F) - tile::max(V(0.0F), V(bias + V(65504.0F)));  // 0 beside −inf
      return tile::max(room, s) + bias;
    } else {
      return s + bias;
    }
  }
};

/// The products of one head, S = Q·Kᵀ, scaled in 16 bits, and out = P·V with S and P in one place.
struct ForwardProducts {
  linear::GemmArgs scores;
  linear::GemmArgs output;

  ForwardProducts(const ForwardArgs& args, std::int64_t b, std::int64_t h, void* stored) {
    const std::int64_t kv_head = h / (args.heads() / args.kv_heads());
    const TensorRef<2> s(stored, args.q.dtype, {args.seq_q(), args.seq_kv()});
    scores = {.a = rows_of(args.q, b, h),
              .b = rows_of(args.k, b, kv_head),
              .c = s,
              .trans_b = true,
              .alpha = args.q.dtype == Dtype::f32 ? 1.0F : args.scale};
    output = {.a = s, .b = rows_of(args.v, b, kv_head), .c = rows_of(args.out, b, h)};
    if (output.c.dtype != args.q.dtype || output.c.extent[0] == 0) {  // shapes alone are asked for
      output.c = {nullptr, args.q.dtype, {args.seq_q(), args.head_dim()}};
    }
  }
};

/// Bytes of the stored scores.
inline std::size_t score_bytes(const ForwardArgs& args) {
  const std::int64_t rows = args.batch() * args.heads() * args.seq_q();
  return aligned_bytes(static_cast<std::size_t>(rows * args.seq_kv()) * size_of(args.q.dtype));
}

/// P = softmax(S), in place, and lse.
template <class Exec, class T, class Rule>
void softmax_rows(const Exec& exec, const ForwardArgs& args, const Rule& rule, T* stored) {
  using Softmax = RowSoftmax<Exec, T, Rule>;
  const auto league = static_cast<int>(args.batch() * args.heads() * args.seq_q());
  Kokkos::parallel_for("katt::attention::naive_softmax", typename Softmax::Policy(exec, league, 1),
                       Softmax(args, rule, stored));
}

/// On a host: the products of all heads, between them the rows of all of them.
template <class Exec, class T, class Rule>
void run_on_host(const Exec& exec, const ForwardArgs& args, const Rule& rule, Workspace workspace) {
  auto* scores = static_cast<T*>(workspace.data);
  const std::size_t stored = score_bytes(args);
  const Workspace rest{static_cast<std::byte*>(workspace.data) + stored, workspace.bytes - stored};
  const auto products = [&](std::int64_t head) {
    return ForwardProducts(args, head / args.heads(), head % args.heads(),
                           scores + head * args.seq_q() * args.seq_kv());
  };
  const std::int64_t heads = args.batch() * args.heads();
  if (args.seq_kv() > 0) {
    linear::naive_gemm_batch(
        exec, heads, [&](std::int64_t head) { return products(head).scores; }, rest,
        "katt::attention::naive_scores");
  }
  softmax_rows(exec, args, rule, scores);
  linear::naive_gemm_batch(
      exec, heads, [&](std::int64_t head) { return products(head).output; }, rest,
      "katt::attention::naive_output");
}

}  // namespace katt::attention::impl::naive

namespace katt::attention::impl {

template <class Exec>
std::string naive_engine(const Exec& exec, const ForwardArgs& args) {
  if (!is_host_v<Exec>) return "cublaslt";
  return linear::naive_gemm_engine(exec, naive::ForwardProducts(args, 0, 0, nullptr).scores);
}

template <class Exec, class T>
std::size_t naive_workspace_bytes(const Exec& exec, const ForwardArgs& args) {
  if (stored_scores(args) > 0x1p58) return std::size_t{1} << 62;  // beyond any memory
  const std::size_t copies = 2 * naive::copied_bytes(args);
#if defined(KATT_HAS_CUDA)
  if constexpr (!is_host_v<Exec>) return copies + naive::device_workspace_bytes(exec, args);
#endif
  const naive::ForwardProducts products(args, 0, 0, nullptr);
  return copies + naive::score_bytes(args) +
         std::max(linear::naive_gemm_workspace_bytes(exec, products.scores),
                  linear::naive_gemm_workspace_bytes(exec, products.output));
}

template <class Exec, class T, class Rule>
void run_naive(const Exec& exec, const ForwardArgs& args, const Rule& rule, Workspace workspace) {
  if (args.seq_q() == 0 || args.batch() * args.heads() == 0) return;
  const ForwardArgs existing = naive::with_existing_keys<Exec, T>(exec, args, workspace);
  if constexpr (is_host_v<Exec>) {
    naive::run_on_host<Exec, T>(exec, existing, rule, workspace);
  } else {
#if defined(KATT_HAS_CUDA)
    naive::run_on_device<T>(exec, existing, rule, workspace);
#endif
  }
}

}  // namespace katt::attention::impl
