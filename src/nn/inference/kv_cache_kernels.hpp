#pragma once

#include <cstdint>
#include <cstring>

#include <Kokkos_Core.hpp>

#include "core/views.hpp"
#include "tile/rows/pack.hpp"
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

/// Copies a chunk by accesses of 16 bytes.
template <class T>
KOKKOS_FORCEINLINE_FUNCTION void copy_chunk(const T* source, T* target) {
  *reinterpret_cast<tile::RawChunk<T>*>(target) = tile::load_raw(source);
}

/// Where the step's tokens lie in the cache.
template <class T>
struct CacheTokens {
  T* keys;
  T* values;
  const std::int64_t* block_table;
  std::int64_t kv_heads, head_dim, pages_per_slot, page_size;

  /// The first element of token `index` of batch entry b. Int counts tokens and heads: a device
  /// divides 64 bits in a function of its own.
  template <class Int>
  KOKKOS_FORCEINLINE_FUNCTION std::int64_t place(Int b, Int head, Int index) const {
    const auto size = static_cast<Int>(page_size);
    const std::int64_t page = block_table[b * pages_per_slot + index / size];
    return ((page * kv_heads + head) * page_size + index % size) * head_dim;
  }
};

/// Copies new rows of K and of V to their places; a work item is (batch entry, head, token), or a
/// chunk of it.
template <class Exec, class T>
struct AppendRows {
  using Memory = typename Exec::memory_space;
  StridedView<const T, 4, Memory> k, v;
  CacheTokens<T> cache;
  const std::int64_t* begin;
  const std::int64_t* count;
  std::int64_t tokens;
  Ring ring;

  KOKKOS_INLINE_FUNCTION void operator()(const tile::RowTeam<Exec>& team, std::int64_t row) const {
    each(row, [&](const T* from_k, const T* from_v, std::int64_t target) {
      copy_row(team, from_k, k.stride(3), cache.keys + target, 1, cache.head_dim);
      copy_row(team, from_v, v.stride(3), cache.values + target, 1, cache.head_dim);
    });
  }
  KOKKOS_INLINE_FUNCTION void chunk(std::uint32_t row, std::uint32_t column) const {
    each(row, [&](const T* from_k, const T* from_v, std::int64_t target) {
      copy_chunk(from_k + column, cache.keys + target + column);
      copy_chunk(from_v + column, cache.values + target + column);
    });
  }

 private:
  template <class Int, class F>
  KOKKOS_FORCEINLINE_FUNCTION void each(Int row, const F& copy) const {
    const auto steps = static_cast<Int>(tokens);
    const auto heads = static_cast<Int>(cache.kv_heads);
    const Int t = row % steps;
    const Int head = row / steps % heads;
    const Int b = row / steps / heads;
    const std::int64_t p = begin[b] + t;
    if (t >= count[b] || !ring.keeps(p, begin[b] + count[b])) return;
    copy(&k(b, head, t, 0), &v(b, head, t, 0),
         cache.place(b, head, static_cast<Int>(ring.index(p))));
  }
};

/// Copies rows of K and of V out of the pages of the first batch entry; a work item is (head, token),
/// or a chunk of it.
template <class Exec, class T>
struct GatherRows {
  using Memory = typename Exec::memory_space;
  CacheTokens<const T> cache;
  StridedView<T, 4, Memory> keys, values;

  KOKKOS_INLINE_FUNCTION void operator()(const tile::RowTeam<Exec>& team, std::int64_t row) const {
    each(row, [&](std::int64_t source, T* k, T* v) {
      copy_row(team, cache.keys + source, 1, k, keys.stride(3), cache.head_dim);
      copy_row(team, cache.values + source, 1, v, values.stride(3), cache.head_dim);
    });
  }
  KOKKOS_INLINE_FUNCTION void chunk(std::uint32_t row, std::uint32_t column) const {
    each(row, [&](std::int64_t source, T* k, T* v) {
      copy_chunk(cache.keys + source + column, k + column);
      copy_chunk(cache.values + source + column, v + column);
    });
  }

 private:
  template <class Int, class F>
  KOKKOS_FORCEINLINE_FUNCTION void each(Int row, const F& copy) const {
    const auto tokens = static_cast<Int>(keys.extent(2));
    const Int p = row % tokens;
    const Int head = row / tokens;
    copy(cache.place(Int{0}, head, p), &keys(0, head, p, 0), &values(0, head, p, 0));
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
/// head of q or of k and v), or two chunks of it, half a head apart.
template <class Exec, class T>
struct TurnAndAppend {
  TokenRows<T> q;
  TokenRows<const T> k, v;
  CacheTokens<T> cache;
  const float* cos_sin;  ///< (positions, head_dim) of rope::build_cache
  const std::int64_t* begin;
  std::int64_t heads, positions;
  Ring ring;

  KOKKOS_INLINE_FUNCTION void operator()(const tile::RowTeam<Exec>& team, std::int64_t item) const {
    each(
        item,
        [&](const T* x, T* y, std::int64_t p) {
          for (std::int64_t i = team.team_rank(); i < half(); i += team.team_size()) {
            float cosine = Kokkos::Experimental::quiet_NaN_v<float>;
            float sine = cosine;
            if (p < positions) {
              cosine = cos_sin[p * cache.head_dim + i];
              sine = cos_sin[p * cache.head_dim + half() + i];
            }
            const auto a = static_cast<float>(x[i]);
            const auto b = static_cast<float>(x[i + half()]);
            y[i] = T(turned_a(a, b, cosine, sine));
            y[i + half()] = T(turned_b(a, b, cosine, sine));
          }
        },
        [&](const T* x, T* y) { copy_row(team, x, 1, y, 1, cache.head_dim); });
  }
  KOKKOS_INLINE_FUNCTION void chunk(std::uint32_t item, std::uint32_t column) const {
    constexpr int size = tile::chunk_elements;
    each(
        item,
        [&](const T* x, T* y, std::int64_t p) {
          float cosine[size], sine[size], a[size], b[size];
          for (int i = 0; i < size; ++i) {
            cosine[i] = sine[i] = Kokkos::Experimental::quiet_NaN_v<float>;
          }
          tile::load_chunk(x + column, a);
          tile::load_chunk(x + half() + column, b);
          if (p < positions) {
            tile::load_chunk(cos_sin + p * cache.head_dim + column, cosine);
            tile::load_chunk(cos_sin + p * cache.head_dim + half() + column, sine);
          }
          float first[size], second[size];
          for (int i = 0; i < size; ++i) {
            first[i] = turned_a(a[i], b[i], cosine[i], sine[i]);
            second[i] = turned_b(a[i], b[i], cosine[i], sine[i]);
          }
          tile::store_chunk(y + column, first);
          tile::store_chunk(y + half() + column, second);
        },
        [&](const T* x, T* y) {
          copy_chunk(x + column, y + column);
          copy_chunk(x + half() + column, y + half() + column);
        });
  }

 private:
  KOKKOS_FORCEINLINE_FUNCTION std::int64_t half() const { return cache.head_dim / 2; }
  KOKKOS_FORCEINLINE_FUNCTION static float turned_a(float a, float b, float cosine, float sine) {
    return Kokkos::fma(a, cosine, -(b * sine));
  }
  KOKKOS_FORCEINLINE_FUNCTION static float turned_b(float a, float b, float cosine, float sine) {
    return Kokkos::fma(b, cosine, a * sine);
  }

  /// turn(from, to, position) for q and k, copy(from, to) for v.
  template <class Int, class Turn, class Copy>
  KOKKOS_FORCEINLINE_FUNCTION void each(Int item, const Turn& turn, const Copy& copy) const {
    const auto all = static_cast<Int>(heads + cache.kv_heads);
    const Int b = item / all;
    const Int head = item % all;
    const std::int64_t p = begin[b];
    if (head < static_cast<Int>(heads)) {
      T* const row = q.row(b, head);
      return turn(row, row, p);
    }
    const Int kv_head = head - static_cast<Int>(heads);
    const std::int64_t target = cache.place(b, kv_head, static_cast<Int>(ring.index(p)));
    turn(k.row(b, kv_head), cache.keys + target, p);
    copy(v.row(b, kv_head), cache.values + target);
  }
};

/// Rows that a device handles a chunk a thread.
template <class Rows>
struct ByChunks {
  Rows rows;
  std::uint32_t chunks;  ///< of a row

  KOKKOS_FUNCTION void operator()(std::uint32_t i) const {
    rows.chunk(i / chunks, i % chunks * tile::chunk_elements);
  }
};

/// Launches rows(team, row) for `items` rows, or on a device rows.chunk() for their `chunks` chunks
/// when `wide`.
template <class Exec, class Rows>
void for_each_cache_row(const Exec& exec, const char* label, std::int64_t items,
                        std::int64_t chunks, const Rows& rows, bool wide) {
  if constexpr (!is_host_v<Exec>) {
    if (wide && items * chunks <= 0x7FFFFFFF) {
      using Policy = Kokkos::RangePolicy<Exec, Kokkos::IndexType<std::uint32_t>>;
      const ByChunks<Rows> kernel{rows, static_cast<std::uint32_t>(chunks)};
      Kokkos::parallel_for(label, Policy(exec, 0, static_cast<std::uint32_t>(items * chunks)),
                           kernel);
      return;
    }
  }
  tile::for_each_row(exec, label, items, rows);
}

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
