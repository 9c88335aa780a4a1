#pragma once

#include <cstdint>
#include <cstring>

#include <Kokkos_Core.hpp>

#include "core/views.hpp"
#include "tile/rows/columns.hpp"
#include "tile/rows/elementwise.hpp"

/// Functors of the embedding.
namespace katt::embedding::impl {

inline constexpr float not_a_number = Kokkos::Experimental::quiet_NaN_v<float>;

/// out(t, ·) = weight(ids(t), ·), one team a token.
template <class Exec, class T>
struct GatherRows {
  using Memory = typename Exec::memory_space;

  StridedView<const T, 2, Memory> weight;
  const std::int64_t* ids;
  StridedView<T, 2, Memory> out;

  template <class Team>
  KOKKOS_INLINE_FUNCTION void operator()(const Team& team, std::int64_t t) const {
    const std::int64_t id = ids[t];
    const auto n = static_cast<std::int64_t>(out.extent(1));
    T* target = &out(t, 0);
    if (id < 0 || id >= static_cast<std::int64_t>(weight.extent(0))) {
      tile::for_columns<Exec>(
          team, 0, n, [&]<class V>(std::int64_t c) { tile::store(target + c, V(not_a_number)); });
      return;
    }
    const T* source = &weight(id, 0);
    tile::for_columns<Exec>(team, 0, n, [&]<class V>(std::int64_t c) {
      tile::store(target + c, tile::load<V>(source + c));
    });
  }
};

/// The same for vectors of elements, one id looked up for each.
template <class T>
struct GatherVectors {
  const T* weight;
  std::int64_t weight_stride, vocab;
  const std::int64_t* ids;
  T* out;
  std::int64_t out_stride;

  template <class Vec, class Lanes>
  KOKKOS_INLINE_FUNCTION void operator()(std::int64_t t, std::int64_t c, Lanes lanes) const {
    const std::int64_t id = ids[t];
    const bool known = id >= 0 && id < vocab;
    const Vec value =
        known ? tile::load<Vec>(weight + id * weight_stride + c, lanes) : Vec(not_a_number);
    tile::store(out + t * out_stride + c, value, lanes);
  }
};

/// The tokens of every id as linked lists in ascending order: first[v], then next[t], −1 at the
/// end. A worker makes the lists of its own rows of the table and reads all ids for that, so that
/// the lists do not depend on who works when.
struct LinkTokens {
  const std::int64_t* ids;
  std::int64_t tokens;
  std::int64_t vocab;
  std::int64_t rows;  ///< of the table, of one worker
  std::int32_t* first;
  std::int32_t* next;

  KOKKOS_INLINE_FUNCTION void operator()(std::int64_t worker) const {
    const std::int64_t begin = worker * rows;
    const std::int64_t end = Kokkos::min(begin + rows, vocab);
    for (std::int64_t v = begin; v < end; ++v) first[v] = -1;
    for (std::int64_t t = tokens - 1; t >= 0; --t) {
      const std::int64_t id = ids[t];
      if (id < begin || id >= end) continue;
      next[t] = first[id];
      first[id] = static_cast<std::int32_t>(t);
    }
  }
};

/// dweight(v, ·) from the list of v, one team a row of the table.
template <class Exec, class T>
struct SumLists {
  using Memory = typename Exec::memory_space;
  using Vec = tile::VecOf<Exec>;
  static constexpr int chunk = is_host_v<Exec> ? 8 : 0;  ///< vectors of one walk along the list

  StridedView<const T, 2, Memory> dout;
  const std::int32_t* first;
  const std::int32_t* next;
  StridedView<T, 2, Memory> dweight;

  template <class Team>
  KOKKOS_INLINE_FUNCTION void operator()(const Team& team, std::int64_t v) const {
    const auto n = static_cast<std::int64_t>(dweight.extent(1));
    const std::int32_t head = first[v];
    T* target = &dweight(v, 0);
    if constexpr (is_host_v<Exec> && sizeof(T) < sizeof(float)) {
      // Most rows of a large table. A vector of 16-bit elements fills half a line; memset() fills whole ones.
      if (head < 0) {
        if (team.team_rank() == 0) {
          std::memset(static_cast<void*>(target), 0, static_cast<std::size_t>(n) * sizeof(T));
        }
        return;
      }
    }
    std::int64_t begin = 0;
    if constexpr (chunk > 0) {
      constexpr std::int64_t width = chunk * tile::lanes_v<Exec>;
      const std::int64_t chunks = n / width;
      for (std::int64_t k = team.team_rank(); k < chunks; k += team.team_size()) {
        const std::int64_t c = k * width;
        Vec sums[chunk];
        for (int i = 0; i < chunk; ++i) sums[i] = Vec(0.0F);
        for (std::int32_t t = head; t >= 0; t = next[t]) {
          const T* row = &dout(t, c);
          for (int i = 0; i < chunk; ++i) {
            sums[i] = sums[i] + tile::load<Vec>(row + i * tile::lanes_v<Exec>);
          }
        }
        for (int i = 0; i < chunk; ++i) {
          tile::store(target + c + i * tile::lanes_v<Exec>, sums[i]);
        }
      }
      begin = chunks * width;
    }
    tile::for_columns<Exec>(team, begin, n, [&]<class V>(std::int64_t c) {
      V sum(0.0F);
      for (std::int32_t t = head; t >= 0; t = next[t]) sum = sum + tile::load<V>(&dout(t, c));
      tile::store(target + c, sum);
    });
  }
};

/// sums(row of t, c) += dout(t, c) for a slice of columns and all tokens in order. The row is the
/// token's id or, where there is a `first`, the first token with that id, whose values start the
/// sum.
template <class Exec, class T>
struct ScatterColumns {
  using Memory = typename Exec::memory_space;
  static constexpr std::int64_t columns = is_host_v<Exec> ? 64 : 1;  ///< of a worker

  StridedView<const T, 2, Memory> dout;
  const std::int64_t* ids;
  std::int64_t vocab;
  const std::int32_t* first;
  float* sums;
  std::int64_t stride;

  KOKKOS_INLINE_FUNCTION void operator()(std::int64_t worker) const {
    const std::int64_t begin = worker * columns;
    const std::int64_t end =
        Kokkos::min(begin + columns, static_cast<std::int64_t>(dout.extent(1)));
    for (std::int64_t t = 0; t < static_cast<std::int64_t>(dout.extent(0)); ++t) {
      const std::int64_t id = ids[t];
      if (id < 0 || id >= vocab) continue;
      const std::int64_t row = first == nullptr ? id : first[id];
      const bool starts = first != nullptr && row == t;
      float* sum = sums + row * stride;
      for (std::int64_t c = begin; c < end; ++c) {
        sum[c] = (starts ? 0.0F : sum[c]) + static_cast<float>(dout(t, c));
      }
    }
  }
};

/// dweight(ids(t), ·) = sums(t, ·), rounded, for the tokens that are the first with their id.
template <class T>
struct RoundFirst {
  const float* sums;
  std::int64_t columns;
  const std::int64_t* ids;
  std::int64_t vocab;
  const std::int32_t* first;
  T* out;
  std::int64_t stride;

  template <class Vec, class Lanes>
  KOKKOS_INLINE_FUNCTION void operator()(std::int64_t t, std::int64_t c, Lanes lanes) const {
    const std::int64_t id = ids[t];
    if (id < 0 || id >= vocab || first[id] != t) return;
    tile::store(out + id * stride + c, tile::load<Vec>(sums + t * columns + c, lanes), lanes);
  }
};

}  // namespace katt::embedding::impl
