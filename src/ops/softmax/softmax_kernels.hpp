#pragma once

#include <cstdint>

#include <Kokkos_Core.hpp>

#include "core/execution.hpp"
#include "core/views.hpp"
#include "tile/rows/row_softmax.hpp"
#include "tile/rows/stream.hpp"

/// Functors of the softmax, one team a row.
namespace katt::softmax::impl {

/// Calls f(p) with the tile::RowProbabilities of a row of a host.
template <class Exec, class T, class F>
void with_probabilities(const F& f, const T* row, std::int64_t n, const T* weights = nullptr) {
  if (n <= tile::most_kept) {
    f(tile::RowProbabilities<Exec, T, true>(row, n, weights));
  } else {
    f(tile::RowProbabilities<Exec, T, false>(row, n, weights));
  }
}

/// out = softmax(x), rows in cache; may work in place.
template <class Exec, class T, bool stream>
struct FusedForward {
  using Memory = typename Exec::memory_space;

  StridedView<const T, 2, Memory> x;
  StridedView<T, 2, Memory> out;

  template <class Team>
  KOKKOS_INLINE_FUNCTION void operator()(const Team& team, std::int64_t t) const {
    const auto n = static_cast<std::int64_t>(x.extent(1));
    const T* row = &x(t, 0);
    T* target = &out(t, 0);
    if constexpr (is_host_v<Exec>) {
      const auto write = [&](const auto& probabilities) {
        probabilities.each(
            [&](std::int64_t c, const auto& p) { tile::store_all<stream>(target + c, p); });
        if constexpr (stream) tile::stream_fence();
      };
      with_probabilities<Exec>(write, row, n);
    } else {
      const tile::RowStatistics found = tile::row_statistics<Exec>(team, row, n);
      const float inverse = 1.0F / found.sum;
      tile::for_columns<Exec>(team, 0, n, [&]<class V>(std::int64_t c) {
        const V e = tile::exp_below_for<T>(tile::load<V>(row + c), found.max);
        tile::store(target + c, V(e * V(inverse)));
      });
    }
  }
};

/// dx = p ⊙ (dout − Σ dout·p) with p = softmax(x), rows in cache; may work in place.
template <class Exec, class T, bool stream>
struct FusedBackward {
  using Memory = typename Exec::memory_space;

  StridedView<const T, 2, Memory> x, dout;
  StridedView<T, 2, Memory> dx;

  template <class Team>
  KOKKOS_INLINE_FUNCTION void operator()(const Team& team, std::int64_t t) const {
    const auto n = static_cast<std::int64_t>(x.extent(1));
    const T* row = &x(t, 0);
    const T* gradient = &dout(t, 0);
    T* target = &dx(t, 0);
    if constexpr (is_host_v<Exec>) {
      const auto write = [&](const auto& probabilities) {
        float mean = probabilities.product();
        if (!Kokkos::isfinite(mean)) {  // a sum has overflowed: p is smaller than the exponentials
          tile::RowSum<Exec> products;
          probabilities.each([&]<class V, int N>(std::int64_t c, const V(&p)[N]) {
            V g[N];
            tile::load_all(gradient + c, g);
            for (int k = 0; k < N; ++k) products.multiply_add(p[k], g[k]);
          });
          mean = products.mine();
        }
        probabilities.each([&]<class V, int N>(std::int64_t c, V(&p)[N]) {
          V g[N];
          tile::load_all(gradient + c, g);
          for (int k = 0; k < N; ++k) p[k] = p[k] * V(g[k] - V(mean));
          tile::store_all<stream>(target + c, p);
        });
        if constexpr (stream) tile::stream_fence();
      };
      with_probabilities<Exec>(write, row, n, gradient);
    } else {
      const tile::RowStatistics found = tile::row_statistics<Exec>(team, row, n);
      const float inverse = 1.0F / found.sum;
      tile::RowSum<Exec> products;
      tile::for_columns<Exec>(team, 0, n, [&]<class V>(std::int64_t c) {
        products.multiply_add(tile::exp_below_for<T>(tile::load<V>(row + c), found.max),
                              tile::load<V>(gradient + c));
      });
      const float mean = products.total(team) * inverse;
      tile::for_columns<Exec>(team, 0, n, [&]<class V>(std::int64_t c) {
        const V p = V(tile::exp_below_for<T>(tile::load<V>(row + c), found.max) * V(inverse));
        tile::store(target + c, V(p * V(tile::load<V>(gradient + c) - V(mean))));
      });
    }
  }
};

/// largest(t) = max_v x(t, v).
template <class Exec, class T>
struct LargestOfRow {
  using Memory = typename Exec::memory_space;
  using Team = tile::RowTeam<Exec>;
  StridedView<const T, 2, Memory> x;
  float* largest;

  KOKKOS_INLINE_FUNCTION void operator()(const Team& team, std::int64_t t) const {
    tile::RowMax<Exec, tile::column_slots> found(Kokkos::Experimental::finite_min_v<float>);
    tile::for_columns<Exec>(
        team, 0, static_cast<std::int64_t>(x.extent(1)),
        [&]<class V>(std::int64_t c, int slot) { found.add(tile::load<V>(&x(t, c)), slot); });
    const float value = found.total(team);
    if (team.team_rank() == 0) largest[t] = value;
  }
};

/// out = exp(x − largest), rounded to the dtype.
template <class Exec, class T>
struct Exponential {
  using Memory = typename Exec::memory_space;
  using Team = tile::RowTeam<Exec>;
  StridedView<const T, 2, Memory> x;
  const float* largest;
  StridedView<T, 2, Memory> out;

  KOKKOS_INLINE_FUNCTION void operator()(const Team& team, std::int64_t t) const {
    tile::for_columns<Exec>(
        team, 0, static_cast<std::int64_t>(x.extent(1)), [&]<class V>(std::int64_t c) {
          tile::store(&out(t, c), tile::exp_below(tile::load<V>(&x(t, c)), largest[t]));
        });
  }
};

/// sums(t) = Σ_v a(t, v), or Σ_v a·b where there is a b.
template <class Exec, class T>
struct SumOfRow {
  using Memory = typename Exec::memory_space;
  using Team = tile::RowTeam<Exec>;
  StridedView<const T, 2, Memory> a, b;
  float* sums;

  KOKKOS_INLINE_FUNCTION void operator()(const Team& team, std::int64_t t) const {
    tile::RowSum<Exec> sum;
    tile::for_columns<Exec>(team, 0, static_cast<std::int64_t>(a.extent(1)),
                            [&]<class V>(std::int64_t c) {
                              const V value = tile::load<V>(&a(t, c));
                              if (b.data() == nullptr) {
                                sum.add(value);
                              } else {
                                sum.multiply_add(value, tile::load<V>(&b(t, c)));
                              }
                            });
    const float value = sum.total(team);
    if (team.team_rank() == 0) sums[t] = value;
  }
};

/// out = out / sums.
template <class Exec, class T>
struct Divide {
  using Memory = typename Exec::memory_space;
  using Team = tile::RowTeam<Exec>;
  const float* sums;
  StridedView<T, 2, Memory> out;

  KOKKOS_INLINE_FUNCTION void operator()(const Team& team, std::int64_t t) const {
    const float inverse = 1.0F / sums[t];
    tile::for_columns<Exec>(team, 0, static_cast<std::int64_t>(out.extent(1)),
                            [&]<class V>(std::int64_t c) {
                              T* at = &out(t, c);
                              tile::store(at, V(tile::load<V>(at) * V(inverse)));
                            });
  }
};

/// dx = p ⊙ (dout − sums).
template <class Exec, class T>
struct Combine {
  using Memory = typename Exec::memory_space;
  using Team = tile::RowTeam<Exec>;
  StridedView<const T, 2, Memory> p, dout;
  const float* sums;
  StridedView<T, 2, Memory> dx;

  KOKKOS_INLINE_FUNCTION void operator()(const Team& team, std::int64_t t) const {
    tile::for_columns<Exec>(team, 0, static_cast<std::int64_t>(p.extent(1)),
                            [&]<class V>(std::int64_t c) {
                              const V d = V(tile::load<V>(&dout(t, c)) - V(sums[t]));
                              tile::store(&dx(t, c), V(tile::load<V>(&p(t, c)) * d));
                            });
  }
};

}  // namespace katt::softmax::impl
