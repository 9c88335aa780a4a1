#pragma once

#include <cstdint>
#include <vector>

#include <Kokkos_Core.hpp>

#include "core/parts.hpp"
#include "core/tensor.hpp"
#include "ops/linear/gemm/cublas.hpp"

#if defined(KATT_HAS_CUDA)

/// The products of the naive variant on a device: over all heads of all batch entries in one launch,
/// or as few as their strides allow.
namespace katt::attention::impl::naive {

/// The number of products: one for every query head.
struct HeadCounts {
  std::int64_t batch, kv_heads, group;  ///< query heads per K/V head

  template <class Args>
  explicit HeadCounts(const Args& args)
      : batch(args.batch()), kv_heads(args.kv_heads()), group(args.heads() / args.kv_heads()) {}
};

/// A matrix for every query head, or one for the `group` of them that share a K/V head: the first,
/// and the distances in elements.
template <bool Const>
struct HeadMatrices {
  BasicTensorRef<2, Const> first;
  std::int64_t batch = 0;
  std::int64_t kv_head = 0;
  std::int64_t member = 0;  ///< of a group; 0: they share the matrix

  HeadMatrices(const BasicTensorRef<2, Const>& matrix, std::int64_t to_batch,
               std::int64_t to_kv_head, std::int64_t to_member)
      : first(matrix), batch(to_batch), kv_head(to_kv_head), member(to_member) {}
  /// A writable matrix is also a readable one.
  template <bool OtherConst>
  requires(Const && !OtherConst)
      HeadMatrices(const HeadMatrices<OtherConst>& writable)  // NOLINT(google-explicit-constructor)
      : HeadMatrices(writable.first, writable.batch, writable.kv_head, writable.member) {}

  /// The matrices of the query heads of a tensor (batch, heads, rows, columns).
  static HeadMatrices of_queries(const BasicTensorRef<4, Const>& tensor, const HeadCounts& heads) {
    return {rows_of(tensor, 0, 0), tensor.stride[0], heads.group * tensor.stride[1],
            tensor.stride[1]};
  }
  /// The matrices of the K/V heads of a tensor (batch, kv_heads, rows, columns).
  static HeadMatrices of_keys(const BasicTensorRef<4, Const>& tensor) {
    return {rows_of(tensor, 0, 0), tensor.stride[0], tensor.stride[1], 0};
  }

  /// True when the rows of a group lie at one distance, like the rows of one matrix.
  [[nodiscard]] bool stacks() const {
    return first.extent[0] == 1 ? member >= first.extent[1]
                                : member == first.extent[0] * first.stride[0];
  }
  [[nodiscard]] HeadMatrices stacked(std::int64_t group) const {
    HeadMatrices made(*this);
    if (group > 1 && first.extent[0] == 1) made.first.stride[0] = member;
    made.first.extent[0] *= group;
    made.member = 0;
    return made;
  }
};

/// A product of every query head on `exec`, with workspace for one.
struct HeadProducts {
  const Kokkos::Cuda& exec;
  HeadCounts heads;
  Workspace workspace;

  /// C = alpha · A · B, B also transposed: A and C of query heads, B of K/V heads. The rows of a group
  /// are those of one product where they stack.
  void rows(HeadMatrices<true> a, const HeadMatrices<true>& b, HeadMatrices<false> c, bool trans_b,
            float alpha, const char* label) const {
    if (a.stacks() && c.stacks()) {
      a = a.stacked(heads.group);
      c = c.stacked(heads.group);
      launch(a, b, c, 1, {.trans_b = trans_b, .alpha = alpha}, label);
    } else {
      launch(a, b, c, heads.group, {.trans_b = trans_b, .alpha = alpha}, label);
    }
  }

  /// C = alpha · Σ over the group of Aᵀ · B: A and B of query heads, C of K/V heads. The sum is
  /// that of one product where the rows of a group stack, else C accumulates the products.
  void sums(HeadMatrices<true> a, HeadMatrices<true> b, const HeadMatrices<false>& c, float alpha,
            const char* label) const {
    if (a.stacks() && b.stacks()) {
      launch(a.stacked(heads.group), b.stacked(heads.group), c, 1,
             {.trans_a = true, .alpha = alpha}, label);
      return;
    }
    for (std::int64_t g = 0; g < heads.group; ++g) {
      launch(a, b, c, 1, {.trans_a = true, .alpha = alpha, .beta = g == 0 ? 0.0F : 1.0F}, label);
      a.first = katt::impl::from_element(a.first, a.member);
      b.first = katt::impl::from_element(b.first, b.member);
    }
  }

 private:
  /// A product for each of `members` heads of every K/V head.
  void launch(const HeadMatrices<true>& a, const HeadMatrices<true>& b,
              const HeadMatrices<false>& c, std::int64_t members, linear::GemmArgs product,
              const char* label) const {
    product.a = a.first;
    product.b = b.first;
    product.c = c.first;
    linear::batched_gemm(exec, product,
                         {{heads.batch, a.batch, b.batch, c.batch},
                          {heads.kv_heads, a.kv_head, b.kv_head, c.kv_head},
                          {members, a.member, b.member, c.member}},
                         workspace, label);
  }
};

}  // namespace katt::attention::impl::naive

#endif
