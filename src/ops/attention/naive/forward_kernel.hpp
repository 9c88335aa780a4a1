#pragma once

#include <algorithm>
#include <cstdint>

#include "core/library_product.hpp"
#include "core/parts.hpp"
#include "ops/attention/check.hpp"
#include "ops/attention/naive/naive.hpp"
#include "ops/attention/problem.hpp"
#include "ops/linear/gemm/gemm.hpp"
#include "tile/columns.hpp"

/// The kernels and the products of the naive forward pass; see forward.hpp.
namespace katt::attention::impl::naive {

/// target(r, c) = source(r, c), converted, for dense or strided rows.
template <class Exec, class From, class To>
void convert_rows(const Exec& exec, const char* label, const From* from, std::int64_t from_stride,
                  To* to, std::int64_t to_stride, std::int64_t rows, std::int64_t columns) {
  using Policy = Kokkos::TeamPolicy<Exec>;
  const Policy policy(exec, static_cast<int>(rows), is_host_v<Exec> ? 1 : 128);
  Kokkos::parallel_for(
      label, policy, KOKKOS_LAMBDA(const typename Policy::member_type& team) {
        const From* source = from + team.league_rank() * from_stride;
        To* target = to + team.league_rank() * to_stride;
        tile::for_columns<Exec>(team, 0, columns, [&]<class V>(std::int64_t c) {
          tile::store(target + c, tile::load<V>(source + c));
        });
      });
}

/// Masked softmax of every row of products (batch · heads · seq_q rows of seq_kv), in place, and
/// lse. In 16 bits, where products and scores are rounded when they are stored, the products have
/// been scaled before, so that they keep the range of scores; f32 rounds scores as every other
/// kernel does.
template <class Exec, class T, class Rule>
struct RowSoftmax {
  using Policy = Kokkos::TeamPolicy<Exec>;
  using Team = typename Policy::member_type;

  T* stored;
  std::int64_t heads, seq_q, seq_kv;
  Scores<T, Rule> scores;
  RowValues<float> lse;

  RowSoftmax(const ForwardArgs& args, const Rule& rule, T* products)
      : stored(products),
        heads(args.heads()),
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
    const EntryScores<T, Rule> rule = scores.of(b);
    const std::int64_t begin = rule.mask.interval.begin(i);
    const std::int64_t end = Kokkos::max(begin, rule.mask.interval.end(i));
    constexpr float infinity = Kokkos::Experimental::infinity_v<float>;

    if (!rule.folded()) {
      const T* added = rule.bias ? rule.bias.row(b, h, i) : nullptr;
      const auto numbers = rule.row(h, i);
      tile::for_columns<Exec>(team, begin, end, [&]<class V>(std::int64_t j) {
        V slope;
        V s = rule.score(tile::load<V>(row + j), tile::place_of_columns<V>(numbers), j, slope);
        if (added != nullptr) s = s + tile::load<V>(added + j);
        tile::store(row + j, s);
      });
      team.team_barrier();
    }
    if (rule.mask.blocks.blocks != nullptr) {
      for (std::int64_t j = begin + team.team_rank(); j < end; j += team.team_size()) {
        if (!rule.mask.blocks.visible(i, j)) row[j] = static_cast<T>(-infinity);
      }
      team.team_barrier();
    }

    tile::RowMax<Exec> row_max(-infinity);
    tile::for_columns<Exec>(team, begin, end,
                            [&]<class V>(std::int64_t j) { row_max.add(tile::load<V>(row + j)); });
    const float factor = rule.factor();
    // Finite, so that a row whose scores are all −inf has sum 0 without a case of its own.
    const float lowest = tile::lowest_score;
    const float largest = tile::max(lowest, row_max.total(team) * factor);
    const float shift = -largest;
    tile::RowSum<Exec> row_sum;
    tile::for_columns<Exec>(team, begin, end, [&]<class V>(std::int64_t j) {
      const V e = tile::exp2(tile::fma(tile::load<V>(row + j), V(factor), V(shift)));
      row_sum.add(e);
      if constexpr (std::is_same_v<T, float>) tile::store(row + j, e);
    });
    const float sum = row_sum.total(team);
    const float inverse = sum == 0.0F ? 0.0F : 1.0F / sum;
    tile::for_columns<Exec>(team, begin, end, [&]<class V>(std::int64_t j) {
      V e = tile::load<V>(row + j);
      if constexpr (!std::is_same_v<T, float>) e = tile::exp2(tile::fma(e, V(factor), V(shift)));
      tile::store(row + j, V(e * V(inverse)));
    });
    for (std::int64_t j = team.team_rank(); j < Kokkos::min(begin, seq_kv); j += team.team_size()) {
      row[j] = T(0.0F);
    }
    for (std::int64_t j = Kokkos::max<std::int64_t>(0, end) + team.team_rank(); j < seq_kv;
         j += team.team_size()) {
      row[j] = T(0.0F);
    }
    if (lse && team.team_rank() == 0) lse(b, h, i) = natural_lse(largest, sum);
  }
};

/// The products of one head in 16 bits, S = scale · Q·Kᵀ and out = P·V with S and P in one place.
struct HalfProducts {
  linear::GemmArgs scores;
  linear::GemmArgs output;

  HalfProducts(const ForwardArgs& args, std::int64_t b, std::int64_t h, void* stored) {
    const std::int64_t kv_head = h / (args.heads() / args.kv_heads());
    const TensorRef<2> s(stored, args.q.dtype, {args.seq_q(), args.seq_kv()});
    scores.a = rows_of(args.q, b, h);
    scores.b = rows_of(args.k, b, kv_head);
    scores.trans_b = true;
    scores.alpha = args.scale;
    scores.c = s;
    output.a = s;
    output.b = rows_of(args.v, b, kv_head);
    output.c = rows_of(args.out, b, h);
    if (output.c.dtype != args.q.dtype || output.c.extent[0] == 0) {  // shapes alone are asked for
      output.c = {nullptr, args.q.dtype, {args.seq_q(), args.head_dim()}};
    }
  }
};

/// Bytes of the stored scores.
template <class T>
std::size_t score_bytes(const ForwardArgs& args) {
  return aligned_bytes<T>(args.batch() * args.heads() * args.seq_q() * args.seq_kv());
}

/// Where the parts of the workspace begin in f32, in bytes: the scores, then dense rows of K, V and
/// of Q or out where theirs are not.
struct WideRows {
  std::size_t key, value, rows, total;
  explicit WideRows(const ForwardArgs& args) {
    const auto bytes = [&](std::int64_t count) {
      return aligned_bytes<float>(count * args.head_dim());
    };
    key = score_bytes<float>(args);
    value = key + bytes(args.seq_kv());
    rows = value + bytes(args.seq_kv());
    total = rows + bytes(args.seq_q());
  }
};

/// P = softmax(S), in place, and lse.
template <class Exec, class T, class Rule>
void softmax_rows(const Exec& exec, const ForwardArgs& args, const Rule& rule, T* stored) {
  using Softmax = RowSoftmax<Exec, T, Rule>;
  const auto league = static_cast<int>(args.batch() * args.heads() * args.seq_q());
  Kokkos::parallel_for("katt::attention::naive_softmax",
                       typename Softmax::Policy(exec, league, is_host_v<Exec> ? 1 : 128),
                       Softmax(args, rule, stored));
}

/// In f32: the library's products on all threads. Rows that are dense already are used where they
/// lie.
template <class Exec, class Rule>
void forward_f32(const Exec& exec, const ForwardArgs& args, const Rule& rule, std::byte* base) {
  const WideRows places(args);
  const std::int64_t n = args.seq_kv();
  const std::int64_t sq = args.seq_q();
  const std::int64_t d = args.head_dim();
  const std::int64_t group = args.heads() / args.kv_heads();
  auto* scores = reinterpret_cast<float*>(base);
  auto* rows = reinterpret_cast<float*>(base + places.rows);
  const auto dense = [&](const ConstTensorRef<4>& tensor, std::int64_t b, std::int64_t h,
                         std::size_t place) -> const float* {
    const float* source = HeadRows<const float>(tensor).row(b, h, 0);
    if (tensor.stride[2] == d) return source;
    auto* target = reinterpret_cast<float*>(base + place);
    convert_rows(exec, "katt::attention::naive_gather", source, tensor.stride[2], target, d,
                 tensor.extent[2], d);
    return target;
  };
  for (std::int64_t b = 0; b < args.batch(); ++b) {
    for (std::int64_t h = 0; h < args.heads() && n > 0; ++h) {
      library_product(exec, {.trans_b = true},
                      LibraryMatrix<const float>(dense(args.q, b, h, places.rows), sq, d),
                      LibraryMatrix<const float>(dense(args.k, b, h / group, places.key), n, d),
                      LibraryMatrix<float>(scores + (b * args.heads() + h) * sq * n, sq, n));
    }
  }
  softmax_rows(exec, args, rule, scores);
  for (std::int64_t b = 0; b < args.batch(); ++b) {
    for (std::int64_t h = 0; h < args.heads(); ++h) {
      const bool direct = args.out.stride[2] == d;
      float* out = HeadRows<float>(args.out).row(b, h, 0);
      float* o = direct ? out : rows;
      library_product(exec, {},
                      LibraryMatrix<const float>(scores + (b * args.heads() + h) * sq * n, sq, n),
                      LibraryMatrix<const float>(dense(args.v, b, h / group, places.value), n, d),
                      LibraryMatrix<float>(o, sq, d));
      if (!direct) {
        convert_rows(exec, "katt::attention::naive_scatter", o, d, out, args.out.stride[2], sq, d);
      }
    }
  }
}

/// In 16 bits: the products of linear, which take the operands as they are (bf16
/// tiles where a unit multiplies them, else widened block by block).
template <class Exec, class T, class Rule>
void forward_half(const Exec& exec, const ForwardArgs& args, const Rule& rule,
                  Workspace workspace) {
  auto* scores = static_cast<T*>(workspace.data);
  const std::size_t stored = score_bytes<T>(args);
  const Workspace rest{static_cast<std::byte*>(workspace.data) + stored, workspace.bytes - stored};
  const auto each_head = [&](const auto& product) {
    for (std::int64_t b = 0; b < args.batch(); ++b) {
      for (std::int64_t h = 0; h < args.heads(); ++h) {
        product(HalfProducts(args, b, h,
                             scores + (b * args.heads() + h) * args.seq_q() * args.seq_kv()));
      }
    }
  };
  each_head([&](const HalfProducts& products) {
    if (args.seq_kv() > 0) {
      linear::gemm(exec, products.scores, rest, "katt::attention::naive_scores");
    }
  });
  softmax_rows(exec, args, rule, scores);
  each_head([&](const HalfProducts& products) {
    linear::gemm(exec, products.output, rest, "katt::attention::naive_output");
  });
}

}  // namespace katt::attention::impl::naive

namespace katt::attention::impl {

template <class Exec>
std::string naive_engine(const Exec& exec, const ForwardArgs& args) {
  if (args.q.dtype == Dtype::f32) return "blas";
  return linear::gemm_engine(exec, naive::HalfProducts(args, 0, 0, nullptr).scores);
}

template <class Exec, class T>
std::size_t naive_workspace_bytes(const Exec& exec, const ForwardArgs& args) {
  if (stored_scores(args) > 0x1p58) return std::size_t{1} << 62;  // beyond any memory
  if constexpr (std::is_same_v<T, float>) {
    (void)exec;
    return naive::WideRows(args).total;
  } else {
    const naive::HalfProducts products(args, 0, 0, nullptr);
    return naive::score_bytes<T>(args) +
           std::max(linear::gemm_workspace_bytes(exec, products.scores),
                    linear::gemm_workspace_bytes(exec, products.output));
  }
}

template <class Exec, class T, class Rule>
void run_naive(const Exec& exec, const ForwardArgs& args, const Rule& rule, Workspace workspace) {
  if (args.seq_q() == 0 || args.batch() * args.heads() == 0) return;
  if constexpr (std::is_same_v<T, float>) {
    naive::forward_f32(exec, args, rule, static_cast<std::byte*>(workspace.data));
  } else {
    naive::forward_half<Exec, T>(exec, args, rule, workspace);
  }
}

}  // namespace katt::attention::impl
