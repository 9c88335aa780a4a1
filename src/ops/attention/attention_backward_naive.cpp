#include "ops/attention/attention_backward_naive.hpp"

#include <algorithm>
#include <cstdint>

#include "core/library_product.hpp"
#include "core/views.hpp"
#include "ops/attention/attention_check.hpp"
#include "ops/attention/attention_scores.hpp"
#include "tile/columns.hpp"

namespace katt::attention::impl {

namespace {

/// Copies rows between storage dtypes; one work item is a row.
template <class Exec, class From, class To>
struct CopyRows {
  const From* from;
  std::int64_t from_stride;
  To* to;
  std::int64_t to_stride;
  std::int64_t columns;

  KOKKOS_INLINE_FUNCTION void operator()(std::int64_t row) const {
    using Vec = tile::VecOf<Exec>;
    constexpr int lanes = tile::lanes_v<Exec>;
    const From* source = from + row * from_stride;
    To* target = to + row * to_stride;
    std::int64_t c = 0;
    for (; c + lanes <= columns; c += lanes) {
      tile::store(target + c, tile::load<Vec>(source + c));
    }
    for (; c < columns; ++c) target[c] = static_cast<To>(static_cast<float>(source[c]));
  }
};

template <class Exec, class From, class To>
void copy_rows(const Exec& exec, const char* label, const From* from, std::int64_t from_stride,
               To* to, std::int64_t to_stride, std::int64_t rows, std::int64_t columns) {
  Kokkos::parallel_for(label,
                       Kokkos::RangePolicy<Exec, Kokkos::IndexType<std::int64_t>>(exec, 0, rows),
                       CopyRows<Exec, From, To>{from, from_stride, to, to_stride, columns});
}

/// Turns the products of one head into P and dS (both stored in T), row by row. lse is the shift of
/// the exponentials alone: P is divided by its sum, which is at hand here, so that it sums to one
/// however the forward pass rounded its scores.
template <class Exec, class T>
struct RowGradient {
  using Memory = typename Exec::memory_space;
  float* s;   ///< seq_q × seq_kv: Q·Kᵀ; overwritten
  float* dp;  ///< seq_q × seq_kv: dO·Vᵀ; overwritten
  T* p;
  T* ds;
  StridedView<const T, 4, Memory> out, dout;
  StridedView<const float, 3, Memory> lse;
  Masks masks;
  Bias<T> bias;
  float softcap, scale;
  std::int64_t b, h, seq_kv;

  KOKKOS_INLINE_FUNCTION void operator()(std::int64_t i) const {
    float delta = 0;
    for (std::size_t d = 0; d < out.extent(3); ++d) {
      delta += static_cast<float>(out(b, h, i, d)) * static_cast<float>(dout(b, h, i, d));
    }
    const BinaryLse row_lse(lse(b, h, i));
    const ScoreRule<T> rule{masks.of(b), bias, softcap, scale};
    const std::int64_t begin = Kokkos::min(rule.mask.interval.begin(i), seq_kv);
    const std::int64_t end = Kokkos::max(begin, rule.mask.interval.end(i));
    float* row_s = s + i * seq_kv;
    float* row_dp = dp + i * seq_kv;
    T* row_p = p + i * seq_kv;
    T* row_ds = ds + i * seq_kv;
    for (std::int64_t j = 0; j < begin; ++j) row_p[j] = row_ds[j] = T(0.0F);
    for (std::int64_t j = end; j < seq_kv; ++j) row_p[j] = row_ds[j] = T(0.0F);
    const auto each = [begin, end](const auto& f) {
      tile::for_columns<Exec>(tile::SoloTeam{}, begin, end, f);
    };

    const bool folded = rule.folded();
    if (!folded) {
      // dP is scaled by the slope of the scores, and so is Δ: it is folded in at once.
      each([&]<class V>(std::int64_t j) {
        V slope;
        tile::store(row_s + j, rule.score(tile::load<V>(row_s + j), slope));
        tile::store(row_dp + j, V((tile::load<V>(row_dp + j) - V(delta)) * slope));
      });
    }
    if (bias || rule.mask.blocks.blocks != nullptr) {
      const T* added = bias ? bias.row(b, h, i) : nullptr;
      for (std::int64_t j = begin; j < end; ++j) {
        if (added != nullptr) row_s[j] = rule.biased(row_s[j], added[j]);
        if (!rule.mask.blocks.visible(i, j)) row_s[j] = -Kokkos::Experimental::infinity_v<float>;
      }
    }
    tile::RowSum<Exec> sum;
    each([&]<class V>(std::int64_t j) {
      const V e =
          tile::exp2(V(tile::fma(tile::load<V>(row_s + j), V(rule.factor()), V(-row_lse.high)) -
                       V(row_lse.low)));
      tile::store(row_s + j, e);
      sum.add(e);
    });
    const float total = sum.mine();
    const float inverse = total == 0.0F ? 0.0F : 1.0F / total;
    const float subtract = folded ? delta : 0.0F;
    each([&]<class V>(std::int64_t j) {
      const V probability = tile::load<V>(row_s + j) * V(inverse);
      tile::store(row_p + j, probability);
      tile::store(row_ds + j, V(probability * (tile::load<V>(row_dp + j) - V(subtract))));
    });
  }
};

/// Where the parts of the workspace begin, in bytes.
struct Layout {
  std::size_t p, ds, wide_a, wide_b, q, k, v, dout, grad_q, grad_k, grad_v, total;

  template <class T>
  static Layout of(const BackwardArgs& args) {
    std::size_t next = 0;
    const auto take = [&next](std::size_t bytes) {
      const std::size_t begin = next;
      next += (bytes + 63) / 64 * 64;
      return begin;
    };
    const auto d = static_cast<std::size_t>(args.head_dim());
    const auto n = static_cast<std::size_t>(args.seq_kv());
    const auto m = static_cast<std::size_t>(args.seq_q());
    const auto heads = static_cast<std::size_t>(args.batch() * args.heads());
    Layout l{};
    l.p = take(heads * m * n * sizeof(T));
    l.ds = take(heads * m * n * sizeof(T));
    l.wide_a = take(m * n * sizeof(float));
    l.wide_b = take(m * n * sizeof(float));
    l.q = take(m * d * sizeof(float));
    l.k = take(n * d * sizeof(float));
    l.v = take(n * d * sizeof(float));
    l.dout = take(m * d * sizeof(float));
    l.grad_q = take(m * d * sizeof(float));
    l.grad_k = take(n * d * sizeof(float));
    l.grad_v = take(n * d * sizeof(float));
    l.total = next;
    return l;
  }
};

}  // namespace

template <class Exec, class T>
std::size_t naive_backward_workspace_bytes(const BackwardArgs& args) {
  if (stored_scores(args) > 0x1p58) return std::size_t{1} << 62;  // beyond any memory
  return Layout::of<T>(args).total;
}

template <class Exec, class T>
void naive_backward(const Exec& exec, const BackwardArgs& args, Workspace workspace) {
  using Memory = typename Exec::memory_space;
  using Wide = LibraryMatrix<float>;
  const Layout layout = Layout::of<T>(args);
  auto* base = static_cast<std::byte*>(workspace.data);
  const auto floats = [base](std::size_t offset) {
    return reinterpret_cast<float*>(base + offset);
  };
  const std::int64_t m = args.seq_q();
  const std::int64_t n = args.seq_kv();
  const std::int64_t d = args.head_dim();
  const std::int64_t group = args.heads() / args.kv_heads();

  const auto slice = [](const auto& tensor, std::int64_t b, std::int64_t h) {
    using Element =
        std::conditional_t<std::is_const_v<std::remove_pointer_t<decltype(tensor.data)>>, const T,
                           T>;
    return static_cast<Element*>(tensor.data) + b * tensor.stride[0] + h * tensor.stride[1];
  };
  const auto widen = [&](const ConstTensorRef<4>& tensor, std::int64_t b, std::int64_t h,
                         std::int64_t rows, std::size_t offset) {
    copy_rows(exec, "katt::attention::naive_backward_widen", slice(tensor, b, h), tensor.stride[2],
              floats(offset), d, rows, d);
    return Wide(floats(offset), rows, d);
  };

  for (std::int64_t b = 0; b < args.batch(); ++b) {
    for (std::int64_t h = 0; h < args.heads(); ++h) {
      const bool first_of_group = h % group == 0;
      const Wide q = widen(args.q, b, h, m, layout.q);
      const Wide k = widen(args.k, b, h / group, n, layout.k);
      const Wide v = widen(args.v, b, h / group, n, layout.v);
      const Wide dout = widen(args.dout, b, h, m, layout.dout);
      const Wide s(floats(layout.wide_a), m, n);
      const Wide dp(floats(layout.wide_b), m, n);
      T* p = reinterpret_cast<T*>(base + layout.p) + (b * args.heads() + h) * m * n;
      T* ds = reinterpret_cast<T*>(base + layout.ds) + (b * args.heads() + h) * m * n;
      library_product(exec, {.trans_b = true}, q, k, s);
      library_product(exec, {.trans_b = true}, dout, v, dp);
      Kokkos::parallel_for(
          "katt::attention::naive_backward_rows",
          Kokkos::RangePolicy<Exec, Kokkos::IndexType<std::int64_t>>(exec, 0, m),
          RowGradient<Exec, T>{s.data, dp.data, p, ds, args.out.view<T, Memory>(),
                               args.dout.view<T, Memory>(), args.lse.view<float, Memory>(),
                               Masks(args), Bias<T>(args.mask.bias), args.mask.softcap, args.scale,
                               b, h, n});
      // The stored P and dS, widened again for the library.
      copy_rows(exec, "katt::attention::naive_backward_widen", p, n, s.data, n, m, n);
      copy_rows(exec, "katt::attention::naive_backward_widen", ds, n, dp.data, n, m, n);
      const Wide grad_q(floats(layout.grad_q), m, d);
      const Wide grad_k(floats(layout.grad_k), n, d);
      const Wide grad_v(floats(layout.grad_v), n, d);
      const float keep = first_of_group ? 0.0F : 1.0F;
      library_product(exec, {.trans_a = true, .beta = keep}, s, dout, grad_v);
      library_product(exec, {.trans_a = true, .alpha = args.scale, .beta = keep}, dp, q, grad_k);
      library_product(exec, {.alpha = args.scale}, dp, k, grad_q);
      copy_rows(exec, "katt::attention::naive_backward_round", grad_q.data, d, slice(args.dq, b, h),
                args.dq.stride[2], m, d);
      if (h % group == group - 1) {
        copy_rows(exec, "katt::attention::naive_backward_round", grad_k.data, d,
                  slice(args.dk, b, h / group), args.dk.stride[2], n, d);
        copy_rows(exec, "katt::attention::naive_backward_round", grad_v.data, d,
                  slice(args.dv, b, h / group), args.dv.stride[2], n, d);
      }
    }
  }
}

#define KATT_INSTANTIATE_NAIVE_BACKWARD(Exec, T)                                          \
  template std::size_t naive_backward_workspace_bytes<Exec, T>(const BackwardArgs& args); \
  template void naive_backward<Exec, T>(const Exec&, const BackwardArgs&, Workspace);

KATT_FOR_EACH_EXEC(KATT_INSTANTIATE_NAIVE_BACKWARD, float)
KATT_FOR_EACH_EXEC(KATT_INSTANTIATE_NAIVE_BACKWARD, f16)
KATT_FOR_EACH_EXEC(KATT_INSTANTIATE_NAIVE_BACKWARD, bf16)

}  // namespace katt::attention::impl
