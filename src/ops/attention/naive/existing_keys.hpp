#pragma once

#include <cstddef>
#include <cstdint>

#include <Kokkos_Core.hpp>

#include "core/parts.hpp"
#include "op/variants.hpp"
#include "ops/attention/problem.hpp"

/// K and V for library products, which read all rows: rows behind the length of a sequence may hold
/// any value, also NaN, and are zeros in the copies in the workspace.
namespace katt::attention::impl::naive {

/// Copies of rows (batch, kv_heads, seq_kv), eight elements an item.
template <class T>
struct ExistingRows {
  static constexpr int width = 8;  // head_dim is a multiple of it
  HeadRows<const T> from;
  T* to;
  Masks masks;
  std::int64_t kv_heads, seq_kv, pieces;

  KOKKOS_INLINE_FUNCTION void operator()(std::int64_t item) const {
    const std::int64_t piece = item % pieces * width;
    const std::int64_t row = item / pieces;
    const std::int64_t j = row % seq_kv;
    const std::int64_t head = row / seq_kv;
    const std::int64_t b = head / kv_heads;
    const bool exists = j < masks.of(b).interval.keys;
    const T* source = from.row(b, head % kv_heads, j) + piece;
    T* target = to + row * pieces * width + piece;
    for (int d = 0; d < width; ++d) target[d] = exists ? source[d] : T(0.0F);
  }
};

/// Bytes of one of the two copies.
template <class Args>
std::size_t copied_bytes(const Args& args) {
  if (args.mask.kv_len == nullptr) return 0;
  const std::int64_t rows = args.batch() * args.kv_heads() * args.seq_kv();
  return aligned_bytes(static_cast<std::size_t>(rows * args.head_dim()) * size_of(args.q.dtype));
}

/// The arguments with the copies in place of K and V; the workspace then begins behind the copies.
/// Without lengths the arguments stay unchanged.
template <class Exec, class T, class Args>
Args with_existing_keys(const Exec& exec, Args args, Workspace& workspace) {
  const std::size_t bytes = copied_bytes(args);
  if (bytes == 0) return args;
  const Masks masks(args);
  for (ConstTensorRef<4>* tensor : {&args.k, &args.v}) {
    const std::int64_t pieces = args.head_dim() / ExistingRows<T>::width;
    const ExistingRows<T> copy{HeadRows<const T>(*tensor),
                               static_cast<T*>(workspace.data),
                               masks,
                               args.kv_heads(),
                               args.seq_kv(),
                               pieces};
    Kokkos::parallel_for(
        "katt::attention::naive_existing_keys",
        Kokkos::RangePolicy<Exec, Kokkos::IndexType<std::int64_t>>(exec, 0, tensor->size() / 8),
        copy);
    *tensor = ConstTensorRef<4>(workspace.data, tensor->dtype, tensor->extent);
    workspace = {static_cast<std::byte*>(workspace.data) + bytes, workspace.bytes - bytes};
  }
  return args;
}

}  // namespace katt::attention::impl::naive
