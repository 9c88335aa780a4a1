#pragma once

#include <cstdint>
#include <type_traits>

#include <Kokkos_Core.hpp>

#include "core/views.hpp"
#include "tile/columns.hpp"
#include "tile/stream.hpp"

/// The functor of layer normalisation. A row comes from memory once in a launch, and from cache in
/// its later loops, which ask for the next row.
namespace katt::layernorm::impl {

/// Of a row: mean and 1/√(variance + eps); backward also mean(g) and mean(g · x̂).
struct Statistics {
  float mean, rstd, mean_g, mean_gx;
};

/// What a launch computes: the statistics; from stored ones the sums over rows, or out or dx; or all
/// at once.
enum class Step : std::uint8_t { statistics, sums, rows, all };

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
  float* partial;      ///< (blocks, 2, hidden): sums of dweight and dbias

  template <class Team>
  KOKKOS_INLINE_FUNCTION void operator()(const Team& team, std::int64_t block) const {
    const auto tokens = static_cast<std::int64_t>(x.extent(0));
    const std::int64_t begin = block * block_rows;
    for (std::int64_t t = begin; t < begin + block_rows && t < tokens; ++t) {
      constexpr bool read = step == Step::rows || step == Step::sums;
      const Statistics row = read ? stored[t] : statistics(team, t, t + 1 < tokens);
      if constexpr (step == Step::statistics) {
        if (team.team_rank() == 0) stored[t] = row;
      } else {
        write(team, t, row, partial + block * 2 * columns(), t == begin);
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
    const auto n = static_cast<float>(columns());
    const auto ask = [&](const auto& tensor, std::int64_t i) {
      if (is_host_v<Exec> && more) tile::prefetch(&tensor(t + 1, i));
    };
    Statistics row{};
    const auto values = tile::row_sums<Exec, 1>(
        team, columns(),
        [&]<class V>(std::int64_t i, V(&terms)[1]) { terms[0] = load<V>(x, t, i); });
    row.mean = values.of[0] / n;
    const auto squares =
        tile::row_sums<Exec, 1>(team, columns(), [&]<class V>(std::int64_t i, V(&terms)[1]) {
          ask(x, i);
          const V away = load<V>(x, t, i) - V(row.mean);
          terms[0] = away * away;
        });
    row.rstd = 1.0F / Kokkos::sqrt(squares.of[0] / n + eps);
    if constexpr (backward) {
      const auto sums =
          tile::row_sums<Exec, 2>(team, columns(), [&]<class V>(std::int64_t i, V(&terms)[2]) {
            ask(dout, i);
            terms[0] = load<V>(dout, t, i) * tile::load<V>(weight + i);
            terms[1] = terms[0] * V(load<V>(x, t, i) - V(row.mean));
          });
      row.mean_g = sums.of[0] / n;
      row.mean_gx = sums.of[1] * row.rstd / n;
    }
    return row;
  }

  /// out of a row; or dx, and its part of the sums.
  template <class Team>
  KOKKOS_FORCEINLINE_FUNCTION void write(const Team& team, std::int64_t t, const Statistics& row,
                                         float* sums, bool first) const {
    tile::for_columns<Exec>(team, 0, columns(), [&]<class V>(std::int64_t i) {
      const V hat = V(load<V>(x, t, i) - V(row.mean)) * V(row.rstd);
      if constexpr (!backward) {
        put(t, i, tile::fma(hat, tile::load<V>(weight + i), tile::load<V>(bias + i)));
        return;
      }
      const V dy = load<V>(dout, t, i);
      if constexpr (step != Step::rows) {
        float* to[2] = {sums + i, sums + columns() + i};
        const V dweight = first ? V(0.0F) : tile::load<V>(to[0]);
        const V dbias = first ? V(0.0F) : tile::load<V>(to[1]);
        tile::store(to[0], tile::fma(dy, hat, dweight));
        tile::store(to[1], V(dbias + dy));
      }
      if constexpr (step != Step::sums) {
        const V g = V(dy * tile::load<V>(weight + i)) - V(row.mean_g);
        put(t, i, V(tile::fma(hat, V(-row.mean_gx), g) * V(row.rstd)));
      }
    });
  }

  template <class V>
  KOKKOS_FORCEINLINE_FUNCTION static V load(const StridedView<const T, 2, Memory>& tensor,
                                            std::int64_t t, std::int64_t i) {
    return tile::load<V>(&tensor(t, i));
  }
  template <class V>
  KOKKOS_FORCEINLINE_FUNCTION void put(std::int64_t t, std::int64_t i, const V& value) const {
    tile::store_to<(stream && !std::is_same_v<V, float>)>(&out(t, i), value);
  }
};

}  // namespace katt::layernorm::impl
