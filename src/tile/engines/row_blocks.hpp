#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "tile/engines/engine.hpp"
#include "tile/rows/elementwise.hpp"
#include "tile/rows/pairs.hpp"
#include "tile/vec/vec.hpp"

/// The loops of RowEngine (tile/engines/row_engine.hpp) over its rows, and over the elements of a
/// row.
namespace katt::tile::row_blocks {

/// Two whole vectors side by side.
struct PairOfVectors {};
template <class Part>
inline constexpr int width_of = std::is_same_v<Part, PairOfVectors> ? 2 : 1;

/// Prefetches rows ahead of their use, a cache line a call, in the order of memory: in another
/// order the prefetchers of a processor see no stream. Behind the last row it continues as if there
/// were more.
class RowsAhead {
 public:
  template <class T>
  KOKKOS_FORCEINLINE_FUNCTION RowsAhead(const Rows<T>& rows, int head_dim)
      : at_(reinterpret_cast<const std::byte*>(rows.data)),
        bytes_(head_dim * static_cast<std::int64_t>(sizeof(T))),
        stride_(rows.stride * static_cast<std::int64_t>(sizeof(T))) {
    if (stride_ == bytes_) bytes_ = stride_ = bytes_ * Kokkos::max(rows.count, 1);
    end_ = at_ + bytes_;
  }

  KOKKOS_FORCEINLINE_FUNCTION void operator()() {
    KOKKOS_IF_ON_HOST((prefetch(at_); at_ += 64; if (at_ >= end_) {
      end_ += stride_;
      at_ = end_ - bytes_;
    }))
  }

 private:
  const std::byte* at_;
  const std::byte* end_;
  std::int64_t bytes_, stride_;
};

/// Scores of one query row: score(j) for the columns of the last scores().
struct ScoreRow {
  float* first;
  KOKKOS_INLINE_FUNCTION float& operator()(int column) const { return first[column]; }
};

/// Calls f(d, part) for `count` elements from d on: two vectors at a time with Pairs, then the
/// rest.
template <int Lanes, bool Pairs, class F>
KOKKOS_FORCEINLINE_FUNCTION void for_each_part(int count, const F& f) {
  int d = 0;
  if constexpr (Pairs) {
    for (; d + 2 * Lanes <= count; d += 2 * Lanes) f(d, PairOfVectors{});
  }
  for (; d + Lanes <= count; d += Lanes) f(d, WholeVector{});
  if (d < count) f(d, PartialVector{count - d});
}

/// Calls f.operator()<N>() for the vectors of a part.
template <class Part, class F>
KOKKOS_FORCEINLINE_FUNCTION void for_each_vector_of(Part /*part*/, const F& f) {
  f.template operator()<0>();
  if constexpr (width_of<Part> == 2) f.template operator()<1>();
}

/// Vector N of a part; Interleaved: of two vectors, the even or the odd elements.
template <class Vec, bool Interleaved, int N, class T, class Part>
KOKKOS_FORCEINLINE_FUNCTION Vec load_part(const T* source, Part part) {
  if constexpr (width_of<Part> == 1) {
    return load<Vec>(source, part);
  } else if constexpr (Interleaved) {
    return load_every_other<Vec, N>(source);
  } else {
    return load<Vec>(source + N * width_v<Vec>);
  }
}

template <int R, class F>
KOKKOS_FORCEINLINE_FUNCTION void for_rest(int rows, int rest, const F& f) {
  if constexpr (R > 0) {
    if (rest == R) return f.template operator()<R>(rows - R, 1);
    for_rest<R - 1>(rows, rest, f);
  }
}

/// Calls f.operator()<R>(first, blocks) for the blocks of `Block` rows, and for the remaining rows.
template <int Block, class F>
KOKKOS_FORCEINLINE_FUNCTION void for_each(int rows, const F& f) {
  const int whole = rows / Block;
  if (whole > 0) f.template operator()<Block>(0, whole);
  for_rest<Block - 1>(rows, rows % Block, f);
}

}  // namespace katt::tile::row_blocks
