#pragma once

#include <cstdint>
#include <type_traits>

#include <Kokkos_Core.hpp>

#include "core/tensor.hpp"
#include "tile/cuda/fragments.hpp"
#include "tile/cuda/narrow.hpp"
#include "tile/vec/vec.hpp"

/// The elements that a thread of a device handles at once when rows are aligned for moves of 16
/// bytes.
///
/// The speed of a memory-bound kernel is proportional to its bytes in flight (Little's law). A load
/// of two bytes costs as much as a load of 16: one instruction and one place among the outstanding
/// loads. A store delays the loads after it, since the compiler cannot know that the addresses
/// differ. So a thread takes several chunks of eight elements at once, and loads all before it
/// stores any.
namespace katt::tile {

/// Threads of a device's team that works on a row.
inline constexpr int row_team_size = 128;

/// Elements of a chunk: 16 bytes of 16-bit elements, twice 16 of f32.
inline constexpr int chunk_elements = 8;

/// Distance of the chunks of a thread: neighbouring threads have the chunks between.
inline constexpr std::int64_t chunk_stride = std::int64_t{row_team_size} * chunk_elements;

/// A vector of f32 like VecOf, whose elements are `Chunks` chunks of a row, chunk_stride apart.
/// Its loads and stores need elements at multiples of 16 bytes (are_chunks()).
template <int Chunks>
struct Pack {
  static constexpr int chunks = Chunks;
  static constexpr int lanes = Chunks * chunk_elements;
  static constexpr int size() { return lanes; }

  float lane[lanes];

  Pack() = default;
  KOKKOS_FORCEINLINE_FUNCTION explicit Pack(float value) {
    KATT_UNROLL
    for (int i = 0; i < lanes; ++i) lane[i] = value;
  }

  /// f of every lane of packs.
  template <class F, class... Packs>
  KOKKOS_FORCEINLINE_FUNCTION static Pack map(const F& f, const Packs&... packs) {
    Pack made;
    KATT_UNROLL
    for (int i = 0; i < lanes; ++i) made.lane[i] = f(packs.lane[i]...);
    return made;
  }
  /// All lanes combined by f: chunks side by side, so that their chains overlap.
  template <class F>
  KOKKOS_FORCEINLINE_FUNCTION float reduce(const F& f) const {
    float of_chunk[Chunks];
    KATT_UNROLL
    for (int k = 0; k < Chunks; ++k) {
      const float* c = lane + k * chunk_elements;
      of_chunk[k] = f(f(f(c[0], c[1]), f(c[2], c[3])), f(f(c[4], c[5]), f(c[6], c[7])));
    }
    float all = of_chunk[0];
    KATT_UNROLL
    for (int k = 1; k < Chunks; ++k) all = f(all, of_chunk[k]);
    return all;
  }

  friend KOKKOS_FORCEINLINE_FUNCTION Pack operator+(const Pack& a, const Pack& b) {
    return map([](float x, float y) { return x + y; }, a, b);
  }
  KOKKOS_FORCEINLINE_FUNCTION Pack& operator+=(const Pack& other) { return *this = *this + other; }
  friend KOKKOS_FORCEINLINE_FUNCTION Pack operator-(const Pack& a, const Pack& b) {
    return map([](float x, float y) { return x - y; }, a, b);
  }
  friend KOKKOS_FORCEINLINE_FUNCTION Pack operator*(const Pack& a, const Pack& b) {
    return map([](float x, float y) { return x * y; }, a, b);
  }
  friend KOKKOS_FORCEINLINE_FUNCTION Pack operator/(const Pack& a, const Pack& b) {
    return map([](float x, float y) { return x / y; }, a, b);
  }
  friend KOKKOS_FORCEINLINE_FUNCTION Pack operator-(const Pack& a) {
    return map([](float x) { return -x; }, a);
  }
};

namespace impl {

template <class V>
inline constexpr bool is_pack_v = false;
template <int Chunks>
inline constexpr bool is_pack_v<Pack<Chunks>> = true;

/// 16 bytes that one instruction moves.
struct alignas(16) Words {
  std::uint32_t at[4];
};

}  // namespace impl

template <class V>
concept PackVector = impl::is_pack_v<V>;

/// A chunk as it lies in memory, in registers.
template <class T>
struct RawChunk {
  impl::Words words[sizeof(T) / 2];
};

template <class T>
KOKKOS_FORCEINLINE_FUNCTION RawChunk<T> load_raw(const T* source) {
  const auto* words = reinterpret_cast<const impl::Words*>(source);
  RawChunk<T> chunk;
  KATT_UNROLL
  for (std::size_t k = 0; k < sizeof(T) / 2; ++k) chunk.words[k] = words[k];
  return chunk;
}

template <class T>
KOKKOS_FORCEINLINE_FUNCTION void widen(const RawChunk<T>& chunk, float* lane) {
  if constexpr (std::is_same_v<T, float>) {
    KATT_UNROLL
    for (int i = 0; i < chunk_elements; ++i) {
      lane[i] = std::bit_cast<float>(chunk.words[i / 4].at[i % 4]);
    }
  } else {
    KATT_UNROLL
    for (int i = 0; i < 4; ++i) {
      lane[2 * i] = widen_lower<T>(chunk.words[0].at[i]);
      lane[2 * i + 1] = widen_upper<T>(chunk.words[0].at[i]);
    }
  }
}

/// Makes the compiler widen a chunk again instead of keeping its f32 in twice as many registers.
template <class T>
KOKKOS_FORCEINLINE_FUNCTION void forget_widened(RawChunk<T>& chunk) {
  for (auto& words : chunk.words) {
    for (std::uint32_t& word : words.at) {
      KOKKOS_IF_ON_DEVICE((asm volatile("" : "+r"(word));))
      (void)word;
    }
  }
}

/// A chunk from contiguous elements, widened to f32.
template <class T>
KOKKOS_FORCEINLINE_FUNCTION void load_chunk(const T* source, float* lane) {
  widen(load_raw(source), lane);
}

/// A chunk to contiguous elements, rounded to nearest even.
template <class T>
KOKKOS_FORCEINLINE_FUNCTION void store_chunk(T* target, const float* lane) {
  auto* words = reinterpret_cast<impl::Words*>(target);
  if constexpr (std::is_same_v<T, float>) {
    impl::Words low;
    impl::Words high;
    KATT_UNROLL
    for (int i = 0; i < 4; ++i) {
      low.at[i] = std::bit_cast<std::uint32_t>(lane[i]);
      high.at[i] = std::bit_cast<std::uint32_t>(lane[4 + i]);
    }
    words[0] = low;
    words[1] = high;
  } else {
    impl::Words all;
    KATT_UNROLL
    for (int i = 0; i < 4; ++i) all.at[i] = narrow_two<T>(lane[2 * i], lane[2 * i + 1]);
    words[0] = all;
  }
}

// The operations that vec.hpp has for other vectors.

template <PackVector V, class T>
KOKKOS_FORCEINLINE_FUNCTION V load(const T* source) {
  V value;
  KATT_UNROLL
  for (int k = 0; k < V::chunks; ++k) {
    load_chunk(source + k * chunk_stride, value.lane + k * chunk_elements);
  }
  return value;
}
/// Prefetches what load<V>() of a pack would load into the last cache; nothing for another V.
template <class V, class T>
KOKKOS_FORCEINLINE_FUNCTION void prefetch_pack(const T* source) {
  if constexpr (PackVector<V>) {
    for (int k = 0; k < V::chunks; ++k) {
      KOKKOS_IF_ON_DEVICE(
          (asm volatile("prefetch.global.L2 [%0];" ::"l"(source + k * chunk_stride));))
    }
  }
  (void)source;
}
template <int Chunks, class T>
KOKKOS_FORCEINLINE_FUNCTION void store(T* target, const Pack<Chunks>& value) {
  KATT_UNROLL
  for (int k = 0; k < Chunks; ++k) {
    store_chunk(target + k * chunk_stride, value.lane + k * chunk_elements);
  }
}
template <class T, int Chunks>
KOKKOS_FORCEINLINE_FUNCTION Pack<Chunks> rounded(const Pack<Chunks>& value) {
  if constexpr (std::is_same_v<T, float>) {
    return value;
  } else {
    Pack<Chunks> made;
    KATT_UNROLL
    for (int i = 0; i < made.lanes; i += 2) {
      const std::uint32_t pair = narrow_two<T>(value.lane[i], value.lane[i + 1]);
      made.lane[i] = widen_lower<T>(pair);
      made.lane[i + 1] = widen_upper<T>(pair);
    }
    return made;
  }
}
template <int Chunks>
KOKKOS_FORCEINLINE_FUNCTION Pack<Chunks> fma(const Pack<Chunks>& a, const Pack<Chunks>& b,
                                             const Pack<Chunks>& c) {
  return Pack<Chunks>::map([](float x, float y, float z) { return Kokkos::fma(x, y, z); }, a, b, c);
}
template <int Chunks>
KOKKOS_FORCEINLINE_FUNCTION Pack<Chunks> max(const Pack<Chunks>& a, const Pack<Chunks>& b) {
  return Pack<Chunks>::map([](float x, float y) { return x > y ? x : y; }, a, b);
}
template <int Chunks>
KOKKOS_FORCEINLINE_FUNCTION float reduce_sum(const Pack<Chunks>& value) {
  return value.reduce([](float x, float y) { return x + y; });
}
template <int Chunks>
KOKKOS_FORCEINLINE_FUNCTION float reduce_max(const Pack<Chunks>& value) {
  return value.reduce([](float x, float y) { return x > y ? x : y; });
}
template <int Chunks>
KOKKOS_FORCEINLINE_FUNCTION Pack<Chunks> exp2(const Pack<Chunks>& x) {
  return Pack<Chunks>::map([](float one) { return impl::ScalarOps::exp2(one); }, x);
}
template <int Chunks>
KOKKOS_FORCEINLINE_FUNCTION Pack<Chunks> exp2_of_16_bits(const Pack<Chunks>& x) {
  return Pack<Chunks>::map([](float one) { return impl::ScalarOps::exp2_of_16_bits(one); }, x);
}

/// sum += a·b, lane by lane, or over the lanes of packs.
template <class Sum, class V>
KOKKOS_FORCEINLINE_FUNCTION void add_product(Sum& sum, const V& a, const V& b) {
  if constexpr (PackVector<V> && !PackVector<Sum>) {
    sum += reduce_sum(V(a * b));
  } else {
    sum = fma(a, b, sum);
  }
}

/// True when every row of a tensor consists of whole chunks at multiples of 16 bytes; also for an
/// absent tensor.
template <int Rank, bool Const>
bool are_chunks(const BasicTensorRef<Rank, Const>& tensor) {
  if (tensor.data == nullptr) return true;
  const auto size = static_cast<std::int64_t>(size_of(tensor.dtype));
  bool fits = reinterpret_cast<std::uintptr_t>(tensor.data) % 16 == 0 &&
              tensor.extent[Rank - 1] % chunk_elements == 0;
  for (int axis = 0; axis + 1 < Rank; ++axis) {
    fits = fits && (tensor.extent[axis] <= 1 || tensor.stride[axis] * size % 16 == 0);
  }
  return fits;
}
template <class First, class Second, class... More>
bool are_chunks(const First& first, const Second& second, const More&... more) {
  return are_chunks(first) && are_chunks(second, more...);
}

}  // namespace katt::tile

/// For sums of packs over a team.
template <int Chunks>
struct Kokkos::reduction_identity<katt::tile::Pack<Chunks>> {
  KOKKOS_FORCEINLINE_FUNCTION static katt::tile::Pack<Chunks> sum() {
    return katt::tile::Pack<Chunks>(0.0F);
  }
};
