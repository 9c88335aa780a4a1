#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>

#include "core/parts.hpp"
#include "ops/attention/naive/device_products.hpp"
#include "ops/attention/naive/device_rows.hpp"
#include "ops/linear/linear_kernels.hpp"
#include "tile/engines/teams.hpp"

#if defined(KATT_HAS_CUDA)

/// Both passes of the naive variant on a device: every step over all heads at once.
namespace katt::attention::impl::naive {

/// Stored scores of all heads: rows at the distance of whole chunks. In 16 bits inside of rows of f32
/// (`in_f32`) they are twice as far apart.
template <class Args>
HeadMatrices<false> stored_matrices(const Args& args, void* data, Dtype dtype, bool in_f32) {
  const std::int64_t group = args.heads() / args.kv_heads();
  const std::int64_t row =
      padded(args.seq_kv()) * (in_f32 ? std::int64_t{4} / static_cast<int>(size_of(dtype)) : 1);
  TensorRef<2> first(data, dtype, {args.seq_q(), args.seq_kv()});
  first.stride[0] = row;
  const std::int64_t head = args.seq_q() * row;
  return {first, args.heads() * head, group * head, head};
}

template <class Args>
std::size_t stored_bytes(const Args& args, std::size_t element) {
  const auto rows = static_cast<std::size_t>(args.batch() * args.heads() * args.seq_q());
  return aligned_bytes(rows * static_cast<std::size_t>(padded(args.seq_kv())) * element);
}

/// Shapes of the products of one head, which determine their workspace: (queries, keys, head_dim)
/// in this and in another order.
template <class Args>
std::size_t product_bytes(const Kokkos::Cuda& exec, const Args& args, bool sums) {
  const std::int64_t m = args.seq_q();
  const std::int64_t n = args.seq_kv();
  const std::int64_t d = args.head_dim();
  const Dtype dtype = args.q.dtype;
  const auto bytes = [&](const linear::GemmArgs& product) {
    return linear::batched_gemm_workspace_bytes(exec, product);
  };
  const ConstTensorRef<2> rows(nullptr, dtype, {m, d});
  const ConstTensorRef<2> keys(nullptr, dtype, {n, d});
  const TensorRef<2> gradient(nullptr, dtype, {n, d});
  const TensorRef<2> scores(nullptr, dtype, {m, n});
  std::size_t most =
      std::max(bytes({.a = rows, .b = keys, .c = scores, .trans_b = true}),
               bytes({.a = scores, .b = keys, .c = TensorRef<2>(nullptr, dtype, {m, d})}));
  if (sums) most = std::max(most, bytes({.a = scores, .b = rows, .c = gradient, .trans_a = true}));
  return most;
}

inline std::size_t device_workspace_bytes(const Kokkos::Cuda& exec, const ForwardArgs& args) {
  return stored_bytes(args, size_of(args.q.dtype)) + product_bytes(exec, args, false);
}

/// S of all heads in the dtype, scaled in 16 bits; P in its place; out.
template <class T, class Rule>
void run_on_device(const Kokkos::Cuda& exec, const ForwardArgs& args, const Rule& rule,
                   Workspace workspace) {
  const std::size_t stored = stored_bytes(args, sizeof(T));
  auto* const base = static_cast<std::byte*>(workspace.data);
  const HeadCounts heads(args);
  const HeadProducts products{exec, heads, {base + stored, workspace.bytes - stored}};
  const auto scores = stored_matrices(args, base, args.q.dtype, false);
  products.rows(HeadMatrices<true>::of_queries(args.q, heads), HeadMatrices<true>::of_keys(args.k),
                scores, true, std::is_same_v<T, float> ? 1.0F : args.scale,
                "katt::attention::naive_scores");
  const DeviceSoftmax<T, Rule> softmax(args, rule, static_cast<T*>(workspace.data));
  tile::launch_teams(exec, "katt::attention::naive_softmax",
                     args.batch() * args.heads() * args.seq_q(), softmax.scratch.bytes, nullptr,
                     softmax);
  products.rows(scores, HeadMatrices<true>::of_keys(args.v),
                HeadMatrices<false>::of_queries(args.out, heads), false, 1.0F,
                "katt::attention::naive_output");
}

/// Offsets of the parts of the backward pass' workspace, in bytes: Q·Kᵀ and dO·Vᵀ of all heads in
/// f32, in whose places P and dS follow; then dK and dV in f32 when products of 16 bits are summed.
struct DeviceWorkspaceParts {
  std::size_t s, dp, dk, dv, rest;
  bool sums;

  explicit DeviceWorkspaceParts(const BackwardArgs& args)
      : sums(args.q.dtype != Dtype::f32 && args.heads() > args.kv_heads()) {
    const std::size_t stored = stored_bytes(args, sizeof(float));
    const auto keys = static_cast<std::size_t>(args.batch() * args.kv_heads() * args.seq_kv());
    const std::size_t sum =
        sums ? aligned_bytes(keys * static_cast<std::size_t>(args.head_dim()) * sizeof(float)) : 0;
    s = 0;
    dp = stored;
    dk = 2 * stored;
    dv = dk + sum;
    rest = dv + sum;
  }
};

inline std::size_t device_workspace_bytes(const Kokkos::Cuda& exec, const BackwardArgs& args) {
  return DeviceWorkspaceParts(args).rest + product_bytes(exec, args, true);
}

/// Rounds sums of f32, dense, to a gradient (batch, kv_heads, rows, columns).
template <class T>
void round_heads(const Kokkos::Cuda& exec, const float* sums, const TensorRef<4>& target) {
  const std::int64_t rows = target.extent[2];
  const std::int64_t columns = target.extent[3];
  for (std::int64_t b = 0; b < target.extent[0]; ++b) {
    for (std::int64_t h = 0; h < target.extent[1]; ++h) {
      const TensorRef<2> head = rows_of(target, b, h);
      tile::for_each_vector(
          exec, "katt::attention::naive_backward_round", rows, columns,
          linear::impl::Convert<float, T>{sums + (b * target.extent[1] + h) * rows * columns,
                                          columns, static_cast<T*>(head.data), head.stride[0]});
    }
  }
}

template <class T, class Rule>
void run_on_device(const Kokkos::Cuda& exec, const BackwardArgs& args, const Rule& rule,
                   Workspace workspace) {
  const DeviceWorkspaceParts at(args);
  auto* const base = static_cast<std::byte*>(workspace.data);
  const HeadCounts heads(args);
  const HeadProducts products{exec, heads, {base + at.rest, workspace.bytes - at.rest}};
  const auto q = HeadMatrices<true>::of_queries(args.q, heads);
  const auto k = HeadMatrices<true>::of_keys(args.k);
  const auto dout = HeadMatrices<true>::of_queries(args.dout, heads);
  products.rows(q, k, stored_matrices(args, base + at.s, Dtype::f32, false), true, 1.0F,
                "katt::attention::naive_backward_scores");
  products.rows(dout, HeadMatrices<true>::of_keys(args.v),
                stored_matrices(args, base + at.dp, Dtype::f32, false), true, 1.0F,
                "katt::attention::naive_backward_dp");
  const DeviceGradient<T, Rule> gradient(args, rule, reinterpret_cast<float*>(base + at.s),
                                         reinterpret_cast<float*>(base + at.dp));
  tile::launch_teams(exec, "katt::attention::naive_backward_rows",
                     args.batch() * args.heads() * args.seq_q(), gradient.scratch.bytes, nullptr,
                     gradient);

  const auto p = stored_matrices(args, base + at.s, args.q.dtype, true);
  const auto ds = stored_matrices(args, base + at.dp, args.q.dtype, true);
  // Summed products are not rounded in between.
  const auto sum = [&](const HeadMatrices<true>& a, const HeadMatrices<true>& b,
                       const TensorRef<4>& target, std::size_t place, float alpha,
                       const char* label) {
    if (!at.sums || (a.stacks() && b.stacks())) {
      return products.sums(a, b, HeadMatrices<false>::of_keys(target), alpha, label);
    }
    auto* const wide = reinterpret_cast<float*>(base + place);
    products.sums(a, b, HeadMatrices<false>::of_keys(TensorRef<4>(wide, Dtype::f32, target.extent)),
                  alpha, label);
    round_heads<T>(exec, wide, target);
  };
  sum(p, dout, args.dv, at.dv, 1.0F, "katt::attention::naive_backward_dv");
  sum(ds, q, args.dk, at.dk, args.scale, "katt::attention::naive_backward_dk");
  products.rows(ds, k, HeadMatrices<false>::of_queries(args.dq, heads), false, args.scale,
                "katt::attention::naive_backward_dq");
}

}  // namespace katt::attention::impl::naive

#endif
