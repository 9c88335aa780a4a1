#include "ops/attention/attention_backward_naive.hpp"

#include <algorithm>
#include <cstdint>

#include "core/library_product.hpp"
#include "core/views.hpp"
#include "ops/attention/attention_check.hpp"
#include "ops/attention/attention_mask.hpp"
#include "tile/vec.hpp"

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

/// Turns the raw products of one head into P and dS (both stored in T), row by row.
template <class Exec, class T>
struct RowGradient {
  using Memory = typename Exec::memory_space;
  const float* s;   ///< seq_q × seq_kv: scale · Q·Kᵀ
  const float* dp;  ///< seq_q × seq_kv: dO·Vᵀ
  T* p;
  T* ds;
  StridedView<const T, 4, Memory> out, dout;
  StridedView<const float, 3, Memory> lse;
  Masks masks;
  Bias<T> bias;
  float softcap;
  std::int64_t b, h, seq_kv;

  KOKKOS_INLINE_FUNCTION void operator()(std::int64_t i) const {
    constexpr float infinity = Kokkos::Experimental::infinity_v<float>;
    constexpr float log2e = 1.4426950408889634F;
    float delta = 0;
    for (std::size_t d = 0; d < out.extent(3); ++d) {
      delta += static_cast<float>(out(b, h, i, d)) * static_cast<float>(dout(b, h, i, d));
    }
    const float row_lse = lse(b, h, i);
    const Mask mask = masks.of(b);
    const T* added = bias ? bias.row(b, h, i) : nullptr;
    const std::int64_t begin = Kokkos::min(mask.interval.begin(i), seq_kv);
    const std::int64_t end = Kokkos::max(begin, mask.interval.end(i));
    const auto at = [&](std::int64_t j) { return i * seq_kv + j; };
    for (std::int64_t j = 0; j < begin; ++j) p[at(j)] = ds[at(j)] = T(0.0F);
    for (std::int64_t j = end; j < seq_kv; ++j) p[at(j)] = ds[at(j)] = T(0.0F);

    std::int64_t j = begin;
    if (softcap <= 0.0F && added == nullptr && mask.blocks.blocks == nullptr) {
      using Vec = tile::VecOf<Exec>;
      constexpr int lanes = tile::lanes_v<Exec>;
      const Vec shift(row_lse == -infinity ? -infinity : -row_lse);
      for (; j + lanes <= end; j += lanes) {
        const Vec e = tile::exp2(Vec((tile::load<Vec>(s + at(j)) + shift) * Vec(log2e)));
        tile::store(p + at(j), e);
        tile::store(ds + at(j), Vec(e * (tile::load<Vec>(dp + at(j)) - Vec(delta))));
      }
    }
    for (; j < end; ++j) {
      float score = s[at(j)];
      float slope = 1.0F;
      if (softcap > 0.0F) {
        const float t = Kokkos::tanh(score / softcap);
        score = softcap * t;
        slope = 1.0F - t * t;
      }
      if (added != nullptr) score += static_cast<float>(added[j]);
      const bool seen = mask.blocks.visible(i, j) && row_lse != -infinity;
      const float e = seen ? Kokkos::exp(score - row_lse) : 0.0F;
      p[at(j)] = static_cast<T>(e);
      ds[at(j)] = static_cast<T>(e * (dp[at(j)] - delta) * slope);
    }
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
      library_product(exec, {.trans_b = true, .alpha = args.scale}, q, k, s);
      library_product(exec, {.trans_b = true}, dout, v, dp);
      Kokkos::parallel_for(
          "katt::attention::naive_backward_rows",
          Kokkos::RangePolicy<Exec, Kokkos::IndexType<std::int64_t>>(exec, 0, m),
          RowGradient<Exec, T>{s.data, dp.data, p, ds, args.out.view<T, Memory>(),
                               args.dout.view<T, Memory>(), args.lse.view<float, Memory>(),
                               Masks(args), Bias<T>(args.mask.bias), args.mask.softcap, b, h, n});
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
