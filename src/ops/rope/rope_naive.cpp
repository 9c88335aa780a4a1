#include "ops/rope/rope_naive.hpp"

#include <algorithm>
#include <cstdint>

#include "core/views.hpp"
#include "tile/rows/columns.hpp"
#include "tile/rows/pairs.hpp"

namespace katt::rope::impl {

namespace {

/// A row of head_dim angles' cosines and one of their sines for every (batch, seq), each angle at
/// both elements of its pair.
template <class Exec, class T>
struct Gather {
  const float* cache;
  Positions positions;
  std::int64_t half;
  bool interleaved;
  float sign;
  T* cosines;
  T* sines;

  template <class Team>
  KOKKOS_INLINE_FUNCTION void operator()(const Team& team, std::int64_t item) const {
    const std::int64_t row = positions.row(item / positions.seq, item % positions.seq);
    const float nan = Kokkos::Experimental::quiet_NaN_v<float>;
    for (std::int64_t i = team.team_rank(); i < half; i += team.team_size()) {
      const auto c = T(row < 0 ? nan : cache[row * 2 * half + i]);
      const auto s = T(row < 0 ? nan : cache[(row * 2 + 1) * half + i] * sign);
      const std::int64_t first = item * 2 * half + (interleaved ? 2 * i : i);
      const std::int64_t second = first + (interleaved ? 1 : half);
      cosines[first] = cosines[second] = c;
      sines[first] = sines[second] = s;
    }
  }
};

/// The place of row `item` of (batch, heads, seq) rows.
struct RowIndex {
  std::int64_t heads, seq;
  KOKKOS_FORCEINLINE_FUNCTION std::int64_t b(std::int64_t item) const { return item / seq / heads; }
  KOKKOS_FORCEINLINE_FUNCTION std::int64_t h(std::int64_t item) const { return item / seq % heads; }
  KOKKOS_FORCEINLINE_FUNCTION std::int64_t s(std::int64_t item) const { return item % seq; }
  /// Index of the row's angles, which every head shares.
  KOKKOS_FORCEINLINE_FUNCTION std::int64_t angles(std::int64_t item) const {
    return b(item) * seq + s(item);
  }
};

/// rotated = (−x_b, x_a)
template <class Exec, class T>
struct RotateHalf {
  StridedView<const T, 4, typename Exec::memory_space> x;
  RowIndex index;
  std::int64_t half;
  bool interleaved;
  T* rotated;

  template <class Team>
  KOKKOS_INLINE_FUNCTION void operator()(const Team& team, std::int64_t item) const {
    const T* from = &x(index.b(item), index.h(item), index.s(item), 0);
    T* to = rotated + item * 2 * half;
    if (interleaved) {
      tile::for_columns<Exec>(team, 0, half, [&]<class V>(std::int64_t i, int) {
        V even;
        V odd;
        tile::load_pairs(from + 2 * i, even, odd);
        tile::store_pairs<false>(to + 2 * i, V(-odd), even);
      });
      return;
    }
    tile::for_columns<Exec>(team, 0, half, [&]<class V>(std::int64_t i, int) {
      tile::store(to + i, V(-tile::load<V>(from + half + i)));
      tile::store(to + half + i, tile::load<V>(from + i));
    });
  }
};

/// target = x · factor, the factor of a row being that of its (batch, seq).
template <class Exec, class T>
struct Multiply {
  StridedView<const T, 4, typename Exec::memory_space> x;
  RowIndex index;
  const T* factor;
  T* target;

  template <class Team>
  KOKKOS_INLINE_FUNCTION void operator()(const Team& team, std::int64_t item) const {
    const auto d = static_cast<std::int64_t>(x.extent(3));
    const T* from = &x(index.b(item), index.h(item), index.s(item), 0);
    const T* by = factor + index.angles(item) * d;
    T* to = target + item * d;
    tile::for_columns<Exec>(team, 0, d, [&]<class V>(std::int64_t i, int) {
      tile::store(to + i, V(tile::load<V>(from + i) * tile::load<V>(by + i)));
    });
  }
};

/// out = a + b
template <class Exec, class T>
struct Add {
  const T* a;
  const T* b;
  RowIndex index;
  StridedView<T, 4, typename Exec::memory_space> out;

  template <class Team>
  KOKKOS_INLINE_FUNCTION void operator()(const Team& team, std::int64_t item) const {
    const auto d = static_cast<std::int64_t>(out.extent(3));
    const T* first = a + item * d;
    const T* second = b + item * d;
    T* to = &out(index.b(item), index.h(item), index.s(item), 0);
    tile::for_columns<Exec>(team, 0, d, [&]<class V>(std::int64_t i, int) {
      tile::store(to + i, V(tile::load<V>(first + i) + tile::load<V>(second + i)));
    });
  }
};

/// Elements of cos or sin, and of one of the two stored tensors.
struct Sizes {
  std::size_t angles, tensor;
  explicit Sizes(const Turn& turn) {
    const auto rounded = [](std::int64_t n) {
      return (static_cast<std::size_t>(n) + 63) / 64 * 64;
    };
    const auto& x = turn.in[0];
    angles = rounded(x.extent[0] * x.extent[2] * x.extent[3]);
    tensor = rounded(std::max(x.size(), turn.in[1].size()));
  }
};

}  // namespace

template <class T>
std::size_t naive_workspace_bytes(const Turn& turn) {
  const Sizes sizes(turn);
  return 2 * (sizes.angles + sizes.tensor) * sizeof(T);
}

template <class Exec, class T>
void naive_turn(const Exec& exec, const Turn& turn, Workspace workspace) {
  using Memory = typename Exec::memory_space;
  const Sizes sizes(turn);
  T* cosines = static_cast<T*>(workspace.data);
  T* sines = cosines + sizes.angles;
  T* rotated = sines + sizes.angles;
  T* product = rotated + sizes.tensor;
  const std::int64_t batch = turn.in[0].extent[0];
  const std::int64_t seq = turn.in[0].extent[2];
  const std::int64_t half = turn.in[0].extent[3] / 2;
  tile::for_each_row(
      exec, "katt::rope::naive_gather", batch * seq,
      Gather<Exec, T>{static_cast<const float*>(turn.cache.data),
                      {turn.positions, turn.first_position, seq, turn.cache.extent[0]},
                      half,
                      turn.interleaved,
                      turn.inverse ? -1.0F : 1.0F,
                      cosines,
                      sines});
  for (int t = 0; t < 2; ++t) {
    if (!turn.has(t)) continue;
    const RowIndex index{turn.in[t].extent[1], seq};
    const std::int64_t rows = batch * index.heads * seq;
    const auto x = turn.in[t].template view<T, Memory>();
    const ConstTensorRef<4> stored(rotated, dtype_of<T>, turn.in[t].extent);
    tile::for_each_row(exec, "katt::rope::naive_rotate_half", rows,
                       RotateHalf<Exec, T>{x, index, half, turn.interleaved, rotated});
    tile::for_each_row(exec, "katt::rope::naive_multiply_cos", rows,
                       Multiply<Exec, T>{x, index, cosines, product});
    tile::for_each_row(exec, "katt::rope::naive_multiply_sin", rows,
                       Multiply<Exec, T>{stored.template view<T, Memory>(), index, sines, rotated});
    tile::for_each_row(
        exec, "katt::rope::naive_add", rows,
        Add<Exec, T>{product, rotated, index, turn.out[t].template view<T, Memory>()});
  }
}

#define KATT_INSTANTIATE_ROPE_NAIVE(Exec, T) \
  template void naive_turn<Exec, T>(const Exec&, const Turn&, Workspace);

KATT_FOR_EACH_EXEC(KATT_INSTANTIATE_ROPE_NAIVE, float)
KATT_FOR_EACH_EXEC(KATT_INSTANTIATE_ROPE_NAIVE, f16)
KATT_FOR_EACH_EXEC(KATT_INSTANTIATE_ROPE_NAIVE, bf16)
template std::size_t naive_workspace_bytes<float>(const Turn&);
template std::size_t naive_workspace_bytes<f16>(const Turn&);
template std::size_t naive_workspace_bytes<bf16>(const Turn&);

}  // namespace katt::rope::impl
