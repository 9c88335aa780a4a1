#pragma once

#include <cstdint>
#include <cstring>

#include <Kokkos_Core.hpp>

#include "core/views.hpp"
#include "tile/rows/rows.hpp"

/// The kernels of KvCache.
namespace katt::nn::impl {

/// The place of token p of a sequence in the cache: sinks at their position, the rest in a ring.
struct Ring {
  std::int64_t sinks, window;  ///< window 0: no ring

  KOKKOS_INLINE_FUNCTION std::int64_t index(std::int64_t p) const {
    return window == 0 || p < sinks ? p : sinks + (p - sinks) % window;
  }
  /// True when the cache still keeps token p of a sequence of `length` tokens.
  KOKKOS_INLINE_FUNCTION bool keeps(std::int64_t p, std::int64_t length) const {
    return window == 0 || p < sinks || p >= length - window;
  }
};

/// Copies a row of `count` elements, which lie `stride` and `target_stride` apart: in one piece on
/// a host when both strides are 1.
template <class Team, class T>
KOKKOS_FORCEINLINE_FUNCTION void copy_row(const Team& team, const T* source, std::int64_t stride,
                                          T* target, std::int64_t target_stride,
                                          std::int64_t count) {
  KOKKOS_IF_ON_HOST((if (stride == 1 && target_stride == 1) {
    std::memcpy(target, source, static_cast<std::size_t>(count) * sizeof(T));
    return;
  }))
  for (std::int64_t d = team.team_rank(); d < count; d += team.team_size()) {
    target[d * target_stride] = source[d * stride];
  }
}

/// Copies one new row of K and of V to its place; a work item is (batch entry, head, token).
template <class Exec, class T>
struct AppendRows {
  using Memory = typename Exec::memory_space;
  StridedView<const T, 4, Memory> k, v;
  T* keys;
  T* values;
  const std::int64_t* block_table;
  const std::int64_t* begin;
  const std::int64_t* count;
  std::int64_t pages_per_slot, page_size, tokens;
  Ring ring;

  KOKKOS_INLINE_FUNCTION void operator()(const tile::RowTeam<Exec>& team, std::int64_t row) const {
    const auto heads = static_cast<std::int64_t>(k.extent(1));
    const auto head_dim = static_cast<std::int64_t>(k.extent(3));
    const std::int64_t t = row % tokens;
    const std::int64_t head = row / tokens % heads;
    const std::int64_t b = row / tokens / heads;
    const std::int64_t p = begin[b] + t;
    if (t >= count[b] || !ring.keeps(p, begin[b] + count[b])) return;
    const std::int64_t index = ring.index(p);
    const std::int64_t page = block_table[b * pages_per_slot + index / page_size];
    const std::int64_t target = ((page * heads + head) * page_size + index % page_size) * head_dim;
    copy_row(team, &k(b, head, t, 0), k.stride(3), keys + target, 1, head_dim);
    copy_row(team, &v(b, head, t, 0), v.stride(3), values + target, 1, head_dim);
  }
};

/// Copies rows of K and of V out of the pages of the first batch entry; a work item is (head, token).
template <class Exec, class T>
struct GatherRows {
  using Memory = typename Exec::memory_space;
  const T* from_keys;
  const T* from_values;
  StridedView<T, 4, Memory> keys, values;
  const std::int64_t* block_table;
  std::int64_t page_size;

  KOKKOS_INLINE_FUNCTION void operator()(const tile::RowTeam<Exec>& team, std::int64_t row) const {
    const auto heads = static_cast<std::int64_t>(keys.extent(1));
    const auto tokens = static_cast<std::int64_t>(keys.extent(2));
    const auto head_dim = static_cast<std::int64_t>(keys.extent(3));
    const std::int64_t p = row % tokens;
    const std::int64_t head = row / tokens;
    const std::int64_t page = block_table[p / page_size];
    const std::int64_t source = ((page * heads + head) * page_size + p % page_size) * head_dim;
    copy_row(team, from_keys + source, 1, &keys(0, head, p, 0), keys.stride(3), head_dim);
    copy_row(team, from_values + source, 1, &values(0, head, p, 0), values.stride(3), head_dim);
  }
};

/// Heads of the rows (batch, heads, 1, head_dim) of a matrix.
template <class T>
struct TokenRows {
  T* data;
  std::int64_t stride_batch, stride_head;

  template <bool Const>
  explicit TokenRows(const BasicTensorRef<4, Const>& tensor)
      : data(static_cast<T*>(tensor.data)),
        stride_batch(tensor.stride[0]),
        stride_head(tensor.stride[1]) {}

  KOKKOS_FORCEINLINE_FUNCTION T* row(std::int64_t b, std::int64_t head) const {
    return data + b * stride_batch + head * stride_head;
  }
};

/// Handles one token of each sequence: turns q in place (half-rotation, with the arithmetic of
/// ops/rope), and writes turned k and v to their places in the cache. A work item is (batch entry,
/// head of q or of k and v).
template <class Exec, class T>
struct TurnAndAppend {
  TokenRows<T> q;
  TokenRows<const T> k, v;
  T* keys;
  T* values;
  const float* cos_sin;  ///< (positions, head_dim) of rope::build_cache
  const std::int64_t* block_table;
  const std::int64_t* begin;
  std::int64_t heads, kv_heads, head_dim, positions, pages_per_slot, page_size;
  Ring ring;

  KOKKOS_INLINE_FUNCTION void operator()(const tile::RowTeam<Exec>& team, std::int64_t item) const {
    const std::int64_t b = item / (heads + kv_heads);
    const std::int64_t head = item % (heads + kv_heads);
    const std::int64_t p = begin[b];
    if (head < heads) {
      T* const row = q.row(b, head);
      return turn(team, row, row, p);
    }
    const std::int64_t kv_head = head - heads;
    const std::int64_t index = ring.index(p);
    const std::int64_t page = block_table[b * pages_per_slot + index / page_size];
    const std::int64_t target =
        ((page * kv_heads + kv_head) * page_size + index % page_size) * head_dim;
    turn(team, k.row(b, kv_head), keys + target, p);
    const T* const value = v.row(b, kv_head);
    copy_row(team, value, 1, values + target, 1, head_dim);
  }

  KOKKOS_FORCEINLINE_FUNCTION void turn(const tile::RowTeam<Exec>& team, const T* x, T* y,
                                        std::int64_t p) const {
    const std::int64_t half = head_dim / 2;
    for (std::int64_t i = team.team_rank(); i < half; i += team.team_size()) {
      float cosine = Kokkos::Experimental::quiet_NaN_v<float>;
      float sine = cosine;
      if (p < positions) {
        cosine = cos_sin[p * head_dim + i];
        sine = cos_sin[p * head_dim + half + i];
      }
      const auto a = static_cast<float>(x[i]);
      const auto b = static_cast<float>(x[i + half]);
      y[i] = T(Kokkos::fma(a, cosine, -(b * sine)));
      y[i + half] = T(Kokkos::fma(b, cosine, a * sine));
    }
  }
};

/// Makes every sequence of the step's batch one token longer.
struct AdvanceLengths {
  std::int64_t* begin;
  std::int64_t* kept;
  std::int64_t capacity;

  KOKKOS_FUNCTION void operator()(std::int64_t b) const {
    const std::int64_t length = begin[b] + 1;  // before the step
    begin[b] = length;
    kept[b] = length < capacity ? length + 1 : capacity;
  }
};

}  // namespace katt::nn::impl
