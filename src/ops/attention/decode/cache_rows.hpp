#pragma once

#include <cstdint>

#include <Kokkos_Core.hpp>

#include "ops/attention/decode/paged.hpp"

namespace katt::attention::impl {

/// The rows of K and V of a cache. Contiguous: a batch entry is one page, of any size.
template <class T, bool Paged>
struct CacheRows {
  const T* k;
  const T* v;
  std::int64_t k_page, k_head, k_key, v_page, v_head, v_key;  ///< strides
  const std::int64_t* block_table = nullptr;
  std::int64_t pages_per_sequence = 0;
  std::uint32_t page_size = 0;

  explicit CacheRows(const ForwardArgs& args) : CacheRows(args.k, args.v) {}
  explicit CacheRows(const PagedArgs& args) : CacheRows(args.k_pages, args.v_pages) {
    block_table = args.block_table;
    pages_per_sequence = args.pages_per_sequence;
    page_size = static_cast<std::uint32_t>(args.page_size());
  }

  /// The page of a key of a batch entry.
  KOKKOS_INLINE_FUNCTION std::int64_t page(int b, int key) const {
    if constexpr (Paged) {
      return block_table[b * pages_per_sequence + static_cast<std::uint32_t>(key) / page_size];
    } else {
      return b;
    }
  }
  /// The place of a key in its page.
  KOKKOS_INLINE_FUNCTION std::int64_t slot(int key) const {
    if constexpr (Paged) {
      return static_cast<std::uint32_t>(key) % page_size;
    } else {
      return key;
    }
  }

 private:
  CacheRows(const ConstTensorRef<4>& keys, const ConstTensorRef<4>& values)
      : k(static_cast<const T*>(keys.data)),
        v(static_cast<const T*>(values.data)),
        k_page(keys.stride[0]),
        k_head(keys.stride[1]),
        k_key(keys.stride[2]),
        v_page(values.stride[0]),
        v_head(values.stride[1]),
        v_key(values.stride[2]) {}
};

}  // namespace katt::attention::impl
