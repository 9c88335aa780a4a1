#pragma once

#include <cstdint>

#include <Kokkos_Core.hpp>

#include "core/views.hpp"
#include "tile/rows/row_pairs.hpp"
#include "tile/rows/stream.hpp"

/// The functor of layer normalisation. A row comes from memory once in a launch, and from cache in
/// its later loops. The last of them asks for the next row: where it writes, reads and writes overlap.
namespace katt::layernorm::impl {

/// Statistics of a row, multiplied by `scale` first: mean and 1/√(variance + scale² · eps); backward also mean(g)
/// and mean(g · x̂). The scale is 1 except for rows whose squares f32 cannot hold.
struct Statistics {
  float mean, rstd, mean_g, mean_gx, scale;
};

/// The result of a launch: the statistics, the outputs from stored statistics, or both.
enum class Step : std::uint8_t { statistics, results, all };

/// A pass over blocks of rows, one team a block.
template <class Exec, class T, bool backward, Step step, bool stream>
struct Pass {
  using Memory = typename Exec::memory_space;

  StridedView<const T, 2, Memory> x, dout;
  const T *weight, *bias;
  StridedView<T, 2, Memory> out;  ///< or dx
  float eps;
  std::int64_t block_rows;
  Statistics* stored;  ///< (tokens); not of all
  float* partial;      ///< (blocks, 2, hidden), tile::Order::loaded: sums of dweight and dbias

  template <class Team>
  KOKKOS_INLINE_FUNCTION void operator()(const Team& team, std::int64_t block) const {
    const auto tokens = static_cast<std::int64_t>(x.extent(0));
    const std::int64_t begin = block * block_rows;
    for (std::int64_t t = begin; t < begin + block_rows && t < tokens; ++t) {
      const bool more = t + 1 < tokens;
      const Statistics row = step == Step::results ? stored[t] : statistics(team, t, more);
      if constexpr (step == Step::statistics) {
        if (team.team_rank() == 0) stored[t] = row;
      } else {
        write(team, t, row, backward ? partial + block * 2 * columns() : nullptr, t == begin, more);
      }
    }
    if constexpr (stream) tile::stream_fence();
  }

 private:
  KOKKOS_FORCEINLINE_FUNCTION std::int64_t columns() const {
    return static_cast<std::int64_t>(x.extent(1));
  }

  template <class Team>
  KOKKOS_FORCEINLINE_FUNCTION Statistics statistics(const Team& team, std::int64_t t,
                                                    bool more) const {
    Statistics row = moments<true>(team, t, more);
    if (!(row.rstd > 0.0F)) row = moments<false>(team, t, false);  // a sum has overflowed
    if constexpr (backward) {
      const auto n = static_cast<float>(columns());
      const auto sums = tile::pair_sums<Exec, 2>(
          team, columns(), [&]<class V, int N>(std::int64_t i, V(&terms)[2][N]) {
            if (step == Step::statistics) ask<V, N>(dout, t, i, more);
            V gain[N], value[N];
            tile::load_all(&dout(t, i), terms[0]);
            tile::load_all(weight + i, gain);
            tile::load_all(&x(t, i), value);
            for (int k = 0; k < N; ++k) {
              terms[0][k] = terms[0][k] * gain[k];
              terms[1][k] = terms[0][k] * tile::fma(value[k], V(row.scale), V(-row.mean));
            }
          });
      row.mean_g = sums.of[0] / n;
      row.mean_gx = sums.of[1] * row.rstd / n;
    }
    return row;
  }

  /// Mean and rstd of a row as it is, or, unless Plain, of one that is too large for that: x · 2^-80 is
  /// at most 2^48.
  template <bool Plain, class Team>
  KOKKOS_FORCEINLINE_FUNCTION Statistics moments(const Team& team, std::int64_t t,
                                                 bool more) const {
    constexpr float scale = Plain ? 1.0F : 0x1p-80F;
    const auto n = static_cast<float>(columns());
    const auto load = [&]<class V, int N>(std::int64_t i, V(&values)[N]) {
      tile::load_all(&x(t, i), values);
      for (int k = 0; !Plain && k < N; ++k) values[k] = values[k] * V(scale);
    };
    Statistics row{};
    row.scale = scale;
    const auto values = tile::pair_sums<Exec, 1>(
        team, columns(),
        [&]<class V, int N>(std::int64_t i, V(&terms)[1][N]) { load(i, terms[0]); });
    // The sum of large values is rounded by more than small deviations; the sum of these is not.
    const float rough = values.of[0] / n;
    const auto sums = tile::pair_sums<Exec, 2>(
        team, columns(), [&]<class V, int N>(std::int64_t i, V(&terms)[2][N]) {
          if (step == Step::statistics) ask<V, N>(x, t, i, more);
          load(i, terms[0]);
          for (int k = 0; k < N; ++k) {
            terms[0][k] = terms[0][k] - V(rough);
            terms[1][k] = terms[0][k] * terms[0][k];
          }
        });
    const float correction = sums.of[0] / n;
    row.mean = rough + correction;
    const float variance = Kokkos::fma(-correction, correction, sums.of[1] / n);
    row.rstd = 1.0F / Kokkos::sqrt(tile::max(0.0F, variance) + eps * scale * scale);
    return row;
  }

  /// Asks for N vectors of the next row, if there is one.
  template <class V, int N>
  KOKKOS_FORCEINLINE_FUNCTION static void ask(const StridedView<const T, 2, Memory>& tensor,
                                              std::int64_t t, std::int64_t i, bool more) {
    if constexpr (is_host_v<Exec>) {
      constexpr int line = 64 / sizeof(T);
      for (int k = 0; more && k < N * tile::width_v<V>; k += line) {
        tile::prefetch(&tensor(t + 1, i + k));
      }
    }
  }

  /// out of a row; or dx, and its part of the sums.
  template <class Team>
  KOKKOS_FORCEINLINE_FUNCTION void write(const Team& team, std::int64_t t, const Statistics& row,
                                         float* sums, bool first, bool more) const {
    using Vec = tile::VecOf<Exec>;
    constexpr int chunks = backward ? 1 : 2;  // of five tensors, or three
    // The forward pass has no sums.
    const auto sums_at = [=](std::int64_t i) { return backward ? sums + i : nullptr; };
    tile::for_column_pairs<Exec, chunks>(
        team, columns(),
        [&](std::int64_t i, int) { put<2, Vec>(t, i, row, sums_at(i), first, more); },
        [&]<class V = Vec>(std::int64_t i, int) { put<1, V>(t, i, row, sums_at(i), first, more); },
        [&](std::int64_t i) { put<1, float>(t, i, row, sums_at(i), first, more); });
  }

  /// The same of N vectors, or an element: all loads, then all stores.
  template <int N, class V>
  KOKKOS_FORCEINLINE_FUNCTION void put(std::int64_t t, std::int64_t i, const Statistics& row,
                                       float* sums, bool first, bool more) const {
    V hat[N], gain[N], other[N], value[N];
    if (step == Step::all) {
      ask<V, N>(x, t, i, more);
      if (backward) ask<V, N>(dout, t, i, more);
    }
    tile::load_all(&x(t, i), hat);
    tile::load_all(weight + i, gain);
    tile::load_all(backward ? &dout(t, i) : bias + i, other);
    for (int k = 0; k < N; ++k) {
      hat[k] = tile::fma(hat[k], V(row.scale), V(-row.mean)) * V(row.rstd);
      if constexpr (backward) {
        const V g = V(other[k] * gain[k]) - V(row.mean_g);
        value[k] = tile::fma(hat[k], V(-row.mean_gx), g) * V(row.scale * row.rstd);
        float* dweight = sums + k * tile::width_v<V>;
        float* dbias = dweight + columns();
        const V w = first ? V(0.0F) : tile::load<V>(dweight);
        const V b = first ? V(0.0F) : tile::load<V>(dbias);
        tile::store(dweight, tile::fma(other[k], hat[k], w));
        tile::store(dbias, V(b + other[k]));
      } else {
        value[k] = tile::fma(hat[k], gain[k], other[k]);
      }
    }
    tile::store_all<stream>(&out(t, i), value);
  }
};

}  // namespace katt::layernorm::impl
