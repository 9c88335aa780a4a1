#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <type_traits>
#include <vector>

#include "core/parts.hpp"
#include "ops/attention/naive/device_passes.hpp"
#include "ops/attention/naive/existing_keys.hpp"
#include "ops/attention/naive/naive.hpp"
#include "ops/attention/problem.hpp"
#include "ops/attention/work.hpp"
#include "ops/linear/gemm/naive.hpp"
#include "ops/linear/linear_kernels.hpp"
#include "tile/rows/columns.hpp"
#include "tile/rows/rows.hpp"

/// The kernels and the products of the naive backward pass on a host; see naive.hpp.
namespace katt::attention::impl::naive {

/// Turns the products of one head into P and dS = P ∘ (dP − Δ), Δ = Σ P ∘ dP, both stored in T, row
/// by row. In f32 they take the products' place. lse only shifts the exponentials: P is divided by
/// its sum, which is known here, so that it sums to one for any rounding of the forward pass'
/// scores; Δ does not depend on the rounding of out either. When the sum is far from one, lse does
/// not fit these scores, and their largest is the shift.
template <class Exec, class T, class Rule>
struct RowGradient {
  using Team = tile::RowTeam<Exec>;
  const float* s;   ///< seq_q × seq_kv: Q·Kᵀ
  const float* dp;  ///< seq_q × seq_kv: dO·Vᵀ
  T* p;
  T* ds;
  RowValues<const float> lse, dlse;
  Scores<T, Rule> scores;
  std::int64_t b, h, kv_head, seq_kv;

  KOKKOS_INLINE_FUNCTION void operator()(const Team& team, std::int64_t i) const {
    const EntryScores<T, Rule> rule = scores.of(b, kv_head);
    const ScoreUnit unit = rule.unit();
    RowShift shift = RowShift::of_lse(lse(b, h, i), unit);
    const auto numbers = rule.row(h, i);
    const T* added = rule.bias ? rule.bias.row(b, h, i) : nullptr;
    const float* program_scores = nullptr;
    const float* program_slopes = nullptr;
    if constexpr (is_program<Rule>) {
      run_program(rule, numbers, i, program_scores, program_slopes);
    }
    const auto score_at = [&]<class V>(std::int64_t j, V& slope) {
      V score = tile::load<V>(s + i * seq_kv + j);
      slope = V(1.0F);
      if constexpr (is_program<Rule>) {
        score = tile::load<V>(program_scores + j);
        slope = tile::load<V>(program_slopes + j);
      } else if (!rule.folded()) {
        score = rule.score(score, tile::place_of_columns<V>(numbers), j, slope);
      }
      if (added != nullptr) score = score + tile::load<V>(added + j);
      return score;
    };
    const auto exponential = [&]<class V>(std::int64_t j, V& slope) {
      const V above = score_at.template operator()<V>(j, slope) - V(shift.shift);
      return tile::exp2(V(tile::fma(above, V(unit.factor), V(-shift.low))));
    };
    float total = 0.0F;
    float delta = 0.0F;
    const auto add_up = [&] {
      tile::RowSum<Exec> sum;
      tile::RowSum<Exec> weighted;
      for_each_run(rule.mask, i, [&](bool visible, std::int64_t begin, std::int64_t end) {
        if (!visible) return;
        tile::for_columns<Exec>(team, begin, end, [&]<class V>(std::int64_t j) {
          V slope;
          const V e = exponential.template operator()<V>(j, slope);
          sum.add(e);
          weighted.multiply_add(e, tile::load<V>(dp + i * seq_kv + j));
        });
      });
      total = sum.total(team);
      delta = total == 0.0F ? 0.0F : weighted.total(team) / total;
    };
    add_up();
    if (!(total > 0.5F && total < 2.0F)) {
      tile::RowMax<Exec> largest(tile::lowest_score);
      for_each_run(rule.mask, i, [&](bool visible, std::int64_t begin, std::int64_t end) {
        if (!visible) return;
        tile::for_columns<Exec>(team, begin, end, [&]<class V>(std::int64_t j) {
          V slope;
          largest.add(score_at.template operator()<V>(j, slope));
        });
      });
      shift = {largest.total(team), 0.0F};
      add_up();
    }
    if (dlse && total != 0.0F) delta -= dlse(b, h, i);
    const float inverse = total == 0.0F ? 0.0F : 1.0F / total;
    for_each_run(rule.mask, i, [&](bool visible, std::int64_t begin, std::int64_t end) {
      tile::for_columns<Exec>(team, begin, end, [&]<class V>(std::int64_t j) {
        const std::int64_t at = i * seq_kv + j;
        V probability(0.0F);
        V gradient(0.0F);
        if (visible) {
          V slope;
          probability = exponential.template operator()<V>(j, slope) * V(inverse);
          gradient = probability * (tile::load<V>(dp + at) - V(delta));
          gradient = gradient * seen(probability, slope);
        }
        tile::store(p + at, probability);
        tile::store(ds + at, gradient);
      });
    });
  }

  /// The slope of a rule, which may be NaN where the score is −∞; 0 there.
  template <class V>
  KOKKOS_INLINE_FUNCTION static V seen(const V& probability, const V& slope) {
    if constexpr (!EntryScores<T, Rule>::has_any_rule) {
      return slope;
    } else if constexpr (std::is_arithmetic_v<V>) {
      return probability == 0.0F ? 0.0F : slope;
    } else {
      return Kokkos::Experimental::condition(probability == V(0.0F), V(0.0F), slope);
    }
  }

  /// Calls f(visible, begin, end) for the runs of keys that query i sees or does not see, in order.
  template <class F>
  KOKKOS_INLINE_FUNCTION void for_each_run(const Mask& mask, std::int64_t i, const F& f) const {
    const std::int64_t begin = Kokkos::min(mask.interval.begin(i), seq_kv);
    const std::int64_t end = Kokkos::max(begin, mask.interval.end(i));
    f(false, 0, begin);
    if (mask.blocks.blocks == nullptr) {
      f(true, begin, end);
    } else {
      for (std::int64_t j = begin; j < end;) {
        const std::int64_t next = Kokkos::min(end, (j / mask.blocks.size + 1) * mask.blocks.size);
        f(mask.blocks.visible(i, j), j, next);
        j = next;
      }
    }
    f(false, end, seq_kv);
  }

 private:
  /// The scores of a row by a rule that is a program, and their slopes, in memory of this thread.
  void run_program(const EntryScores<T, Rule>& rule,
                   const typename EntryScores<T, Rule>::RowNumbers& numbers, std::int64_t i,
                   const float*& made_scores, const float*& made_slopes) const {
    constexpr std::int64_t part = 256;
    thread_local std::vector<float> row_scores;
    thread_local std::vector<float> row_slopes;
    row_scores.resize(static_cast<std::size_t>(seq_kv + part));
    row_slopes.resize(static_cast<std::size_t>(seq_kv + part));
    const std::int64_t end = Kokkos::min(rule.mask.interval.end(i), seq_kv);
    for (std::int64_t j = rule.mask.interval.begin(i); j < end; j += part) {
      const std::int64_t count = Kokkos::min(part, end - j);
      for (std::int64_t n = j; n < j + count; ++n) {
        row_scores[static_cast<std::size_t>(n)] =
            rule.score(s[i * seq_kv + n], tile::place_of_columns<float>(numbers), n,
                       row_slopes[static_cast<std::size_t>(n)]);
      }
      rule.rule.differentiate_row(&row_scores[static_cast<std::size_t>(j)],
                                  &row_slopes[static_cast<std::size_t>(j)],
                                  static_cast<int>((count + 15) / 16 * 16), rule, h, i, j, true);
    }
    made_scores = row_scores.data();
    made_slopes = row_slopes.data();
  }
};

/// The rows of one head of a tensor like `like`, which has the shape where `tensor` itself is not
/// given, because sizes alone are asked for.
template <bool Const, bool LikeConst>
BasicTensorRef<2, Const> head_rows(const BasicTensorRef<4, Const>& tensor,
                                   const BasicTensorRef<4, LikeConst>& like, std::int64_t b,
                                   std::int64_t h) {
  if (tensor.data == nullptr) return {nullptr, like.dtype, {like.extent[2], like.extent[3]}};
  return rows_of(tensor, b, h);
}

/// Offsets of the parts of the workspace, in bytes: P and dS of all heads, then, for one head, the
/// raw products and the sums of dK and dV over the heads that share them, in f32 when that is not
/// the dtype.
struct WorkspaceParts {
  std::size_t p, ds, s, dp, dk, dv, rest;

  explicit WorkspaceParts(const BackwardArgs& args) {
    std::size_t next = 0;
    const auto take = [&next](std::size_t bytes) {
      const std::size_t begin = next;
      next += aligned_bytes(bytes);
      return begin;
    };
    const auto d = static_cast<std::size_t>(args.head_dim());
    const auto n = static_cast<std::size_t>(args.seq_kv());
    const auto m = static_cast<std::size_t>(args.seq_q());
    const auto heads = static_cast<std::size_t>(args.batch() * args.heads());
    const bool wide = args.q.dtype != Dtype::f32;
    const std::size_t sums = wide && args.heads() > args.kv_heads() ? n * d * sizeof(float) : 0;
    p = take(heads * m * n * size_of(args.q.dtype));
    ds = take(heads * m * n * size_of(args.q.dtype));
    s = take(wide ? m * n * sizeof(float) : 0);
    dp = take(wide ? m * n * sizeof(float) : 0);
    dk = take(sums);
    dv = take(sums);
    rest = next;
  }
};

/// The five products of one head. Without memory they serve for sizes.
struct BackwardProducts {
  linear::GemmArgs s, dp, dv, dk, dq;
  bool summed = false;  ///< dK and dV are sums in f32 that are still to be rounded
  bool last_of_group;   ///< and this head is the last one
  TensorRef<2> dk_rounded, dv_rounded;
  TensorRef<2> p, ds;

  BackwardProducts(const BackwardArgs& args, const WorkspaceParts& at, std::byte* base,
                   std::int64_t b, std::int64_t h) {
    const std::int64_t m = args.seq_q();
    const std::int64_t n = args.seq_kv();
    const std::int64_t d = args.head_dim();
    const std::int64_t group = args.heads() / args.kv_heads();
    const Dtype dtype = args.q.dtype;
    const bool wide = dtype != Dtype::f32;
    const auto place = [base](std::size_t offset) {
      return base == nullptr ? nullptr : base + offset;
    };
    const auto stored = static_cast<std::size_t>((b * args.heads() + h) * m * n) * size_of(dtype);
    p = {place(at.p + stored), dtype, {m, n}};
    ds = {place(at.ds + stored), dtype, {m, n}};
    const TensorRef<2> scores = wide ? TensorRef<2>(place(at.s), Dtype::f32, {m, n}) : p;
    const TensorRef<2> slopes = wide ? TensorRef<2>(place(at.dp), Dtype::f32, {m, n}) : ds;
    const auto q = head_rows(args.q, args.q, b, h);
    const auto k = head_rows(args.k, args.k, b, h / group);
    const auto v = head_rows(args.v, args.k, b, h / group);
    const auto dout = head_rows(args.dout, args.q, b, h);
    dk_rounded = head_rows(args.dk, args.k, b, h / group);
    dv_rounded = head_rows(args.dv, args.k, b, h / group);
    last_of_group = h % group == group - 1;
    summed = wide && group > 1;
    const float keep = h % group == 0 ? 0.0F : 1.0F;
    s = {.a = q, .b = k, .c = scores, .trans_b = true};
    dp = {.a = dout, .b = v, .c = slopes, .trans_b = true};
    dv = {.a = p, .b = dout, .c = dv_rounded, .trans_a = true, .beta = keep};
    dk = {.a = ds, .b = q, .c = dk_rounded, .trans_a = true, .alpha = args.scale, .beta = keep};
    dq = {.a = ds, .b = k, .c = head_rows(args.dq, args.q, b, h), .alpha = args.scale};
    if (summed) {
      dk.c = {place(at.dk), Dtype::f32, {n, d}};
      dv.c = {place(at.dv), Dtype::f32, {n, d}};
    }
  }
};

template <class Exec, class T>
void round_sums(const Exec& exec, const TensorRef<2>& sums, const TensorRef<2>& target) {
  tile::for_each_vector(
      exec, "katt::attention::naive_backward_round", target.extent[0], target.extent[1],
      linear::impl::Convert<float, T>{static_cast<const float*>(sums.data), sums.stride[0],
                                      static_cast<T*>(target.data), target.stride[0]});
}

/// On a host: in f32 as many heads together as there are threads, of different heads of K and V, so
/// that their products are a batch; else a head after the other.
template <class Exec, class T, class Rule>
void run_on_host(const Exec& exec, const BackwardArgs& args, const Rule& rule,
                 Workspace workspace) {
  const WorkspaceParts layout(args);
  auto* base = static_cast<std::byte*>(workspace.data);
  const Workspace rest{base + layout.rest, workspace.bytes - layout.rest};
  const std::int64_t group = args.heads() / args.kv_heads();
  const std::int64_t kv_heads = args.batch() * args.kv_heads();
  const std::int64_t together = std::is_same_v<T, float> ? exec.concurrency() : 1;
  const auto run = [&](std::int64_t first, std::int64_t count, std::int64_t member) {
    const auto batch_of = [&](std::int64_t i) { return (first + i) / args.kv_heads(); };
    const auto head_of = [&](std::int64_t i) {
      return (first + i) % args.kv_heads() * group + member;
    };
    const auto products = [&](std::int64_t i) {
      return BackwardProducts(args, layout, base, batch_of(i), head_of(i));
    };
    const auto multiply = [&](linear::GemmArgs BackwardProducts::*product, const char* label) {
      linear::naive_gemm_batch(
          exec, count, [&](std::int64_t i) { return products(i).*product; }, rest, label);
    };
    multiply(&BackwardProducts::s, "katt::attention::naive_backward_scores");
    multiply(&BackwardProducts::dp, "katt::attention::naive_backward_dp");
    for (std::int64_t i = 0; i < count; ++i) {
      const BackwardProducts head = products(i);
      tile::for_each_row(
          exec, "katt::attention::naive_backward_rows", args.seq_q(),
          RowGradient<Exec, T, Rule>{static_cast<const float*>(head.s.c.data),
                                     static_cast<const float*>(head.dp.c.data),
                                     static_cast<T*>(head.p.data), static_cast<T*>(head.ds.data),
                                     RowValues<const float>(args.lse),
                                     RowValues<const float>(args.dlse), Scores<T, Rule>(args, rule),
                                     batch_of(i), head_of(i), head_of(i) / group, args.seq_kv()});
    }
    multiply(&BackwardProducts::dv, "katt::attention::naive_backward_dv");
    multiply(&BackwardProducts::dk, "katt::attention::naive_backward_dk");
    multiply(&BackwardProducts::dq, "katt::attention::naive_backward_dq");
    for (std::int64_t i = 0; i < count; ++i) {
      const BackwardProducts head = products(i);
      if (!head.summed || !head.last_of_group) continue;
      round_sums<Exec, T>(exec, head.dk.c, head.dk_rounded);
      round_sums<Exec, T>(exec, head.dv.c, head.dv_rounded);
    }
  };
  for (std::int64_t first = 0; first < kv_heads; first += together) {
    for (std::int64_t member = 0; member < group; ++member) {
      run(first, std::min(together, kv_heads - first), member);
    }
  }
}

}  // namespace katt::attention::impl::naive

namespace katt::attention::impl {

template <class Exec>
std::string naive_engine(const Exec& exec, const BackwardArgs& args) {
  if (!is_host_v<Exec>) return "cublaslt";
  return linear::naive_gemm_engine(
      exec, naive::BackwardProducts(args, naive::WorkspaceParts(args), nullptr, 0, 0).dq);
}

template <class Exec, class T>
std::size_t naive_workspace_bytes(const Exec& exec, const BackwardArgs& args) {
  if (stored_scores(args) > 0x1p58) return std::size_t{1} << 62;  // beyond any memory
  const std::size_t copies = 2 * naive::copied_bytes(args);
#if defined(KATT_HAS_CUDA)
  if constexpr (!is_host_v<Exec>) return copies + naive::device_workspace_bytes(exec, args);
#endif
  const naive::WorkspaceParts layout(args);
  const naive::BackwardProducts products(args, layout, nullptr, 0, 0);
  std::size_t bytes = 0;
  for (const linear::GemmArgs* product :
       {&products.s, &products.dp, &products.dv, &products.dk, &products.dq}) {
    bytes = std::max(bytes, linear::naive_gemm_workspace_bytes(exec, *product));
  }
  return copies + layout.rest + bytes;
}

template <class Exec, class T, class Rule>
void run_naive(const Exec& exec, const BackwardArgs& args, const Rule& rule, Workspace workspace) {
  const BackwardArgs existing = naive::with_existing_keys<Exec, T>(exec, args, workspace);
  if constexpr (is_host_v<Exec>) {
    naive::run_on_host<Exec, T>(exec, existing, rule, workspace);
  } else {
#if defined(KATT_HAS_CUDA)
    naive::run_on_device<T>(exec, existing, rule, workspace);
#endif
  }
}

}  // namespace katt::attention::impl
