#pragma once

#include <cstdint>

#include <Kokkos_Core.hpp>

#include "core/execution.hpp"
#include "core/views.hpp"
#include "tile/rows/row_softmax.hpp"
#include "tile/rows/stream.hpp"

/// Functors of the softmax, one team a row.
namespace katt::softmax::impl {

/// True when a thread keeps the exponentials of a row: of tensors in a cache, where they take longest. Beside the
/// memory's traffic they cost nothing twice, and what is kept does.
template <class Exec, class View>
KOKKOS_FORCEINLINE_FUNCTION bool are_kept(const View& x) {
  constexpr auto size = static_cast<std::int64_t>(sizeof(typename View::value_type));
  const auto columns = static_cast<std::int64_t>(x.extent(1));
  return columns <= tile::KeptExponentials<Exec>::most &&
         static_cast<std::int64_t>(x.extent(0)) * columns * size < tile::streaming_bytes / 4;
}

/// out = softmax(x), rows in cache; may work in place.
template <class Exec, class T>
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
      if (are_kept<Exec>(x)) {
        tile::KeptExponentials<Exec> kept;
        const tile::RowStatistics found = kept.keep(team, row, n);
        kept.each(team, found, [&](std::int64_t c, const auto& p) { tile::store(target + c, p); });
        return;
      }
    }
    const tile::RowStatistics found = tile::row_statistics<Exec>(team, row, n);
    const float inverse = 1.0F / found.sum;
    tile::for_columns<Exec>(team, 0, n, [&]<class V>(std::int64_t c) {
      const V e = tile::exp_below_for<T>(tile::load<V>(row + c), found.max);
      tile::store(target + c, V(e * V(inverse)));
    });
  }
};

/// dx = p ⊙ (dout − Σ dout·p) with p = softmax(x), rows in cache; may work in place.
template <class Exec, class T>
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
      if (are_kept<Exec>(x)) {
        tile::KeptExponentials<Exec> kept;
        const tile::RowStatistics found = kept.keep(team, row, n);
        tile::RowSum<Exec> products;
        kept.each(team, found, [&]<class V>(std::int64_t c, const V& p) {
          products.multiply_add(p, tile::load<V>(gradient + c));
        });
        const float mean = products.mine();
        kept.each(team, found, [&]<class V>(std::int64_t c, const V& p) {
          tile::store(target + c, V(p * V(tile::load<V>(gradient + c) - V(mean))));
        });
        return;
      }
    }
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
