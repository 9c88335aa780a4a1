#pragma once

#include <cstdint>

#include <Kokkos_Core.hpp>

#include "ops/rmsnorm/rmsnorm.hpp"
#include "ops/rmsnorm/rmsnorm_rows.hpp"
#include "tile/rows.hpp"
#include "tile/stream.hpp"

/// The fused backward pass. A row comes from memory once, for its statistics, and from cache after
/// that.
namespace katt::rmsnorm::impl {

/// Rows that share one partial sum of dweight. The partition depends on the shape alone, so that
/// the sums are the same bits with any number of threads.
struct Partition {
  std::int64_t rows;  ///< per block
  std::int64_t blocks;

  static Partition of(std::int64_t tokens) {
    constexpr std::int64_t least_rows = 16;
    constexpr std::int64_t most_blocks = 256;
    const auto divided = [](std::int64_t n, std::int64_t d) { return (n + d - 1) / d; };
    const std::int64_t rows = Kokkos::max(least_rows, divided(tokens, most_blocks));
    return {rows, divided(tokens, rows)};
  }
};

/// Backward pass of a block of rows: dx, and the block's sum of dout · x̂ in f32.
///   visit 1 of a row   Σ x²,  Σ g · x
///   visit 2            dx, partial += dout · x̂
template <class Exec, class T, bool Stream>
struct Backward {
  using Vec = tile::VecOf<Exec>;

  Matrix<const T> dout, x, dresidual;
  const T* weight;
  Matrix<T> dx;
  Matrix<float> partial;  ///< (blocks, hidden)
  std::int64_t tokens, hidden, block_rows;
  float eps;

  Backward(const BackwardArgs& args, float* partial_sums)
      : dout(args.dout),
        x(args.x),
        dresidual(args.dresidual_out),
        weight(static_cast<const T*>(args.weight.data)),
        dx(args.dx),
        partial(partial_sums, args.hidden()),
        tokens(args.tokens()),
        hidden(args.hidden()),
        block_rows(Partition::of(args.tokens()).rows),
        eps(args.eps) {}

  template <class Team>
  KOKKOS_INLINE_FUNCTION void operator()(const Team& team, std::int64_t block) const {
    const std::int64_t begin = block * block_rows;
    const std::int64_t end = Kokkos::min(begin + block_rows, tokens);
    for (std::int64_t row = begin; row < end; ++row) {
      const bool streamed = Stream && tile::is_streamable(dx.row(row));
      streamed ? differentiate<Stream>(team, row, partial.row(block), row == begin)
               : differentiate<false>(team, row, partial.row(block), row == begin);
    }
    if constexpr (Stream) tile::stream_fence();
  }

  /// Statistics of a row in one visit: Σ (scale · x)² and Σ g · scale · x.
  struct Sums {
    float squares, products;
  };
  template <class Team>
  KOKKOS_FORCEINLINE_FUNCTION Sums sums_of(const Team& team, const T* h, const T* d,
                                           float scale) const {
    Vec squares[tile::row_unroll] = {Vec(0.0F), Vec(0.0F), Vec(0.0F), Vec(0.0F)};
    Vec products[tile::row_unroll] = {Vec(0.0F), Vec(0.0F), Vec(0.0F), Vec(0.0F)};
    float square_tail = 0.0F;
    float product_tail = 0.0F;
    const T* w = weight;
    tile::for_row<Exec>(
        team, hidden,
        [&](std::int64_t i, int slot) {
          const Vec value = tile::load<Vec>(h + i) * Vec(scale);
          const Vec g = tile::load<Vec>(d + i) * tile::load<Vec>(w + i);
          squares[slot] = tile::fma(value, value, squares[slot]);
          products[slot] = tile::fma(g, value, products[slot]);
        },
        [&](std::int64_t i) {
          const float value = static_cast<float>(h[i]) * scale;
          square_tail += value * value;
          product_tail += static_cast<float>(d[i]) * static_cast<float>(w[i]) * value;
        });
    return {tile::sum_over(team, squares, square_tail),
            tile::sum_over(team, products, product_tail)};
  }

  template <bool Streamed, class Team>
  KOKKOS_FORCEINLINE_FUNCTION void differentiate(const Team& team, std::int64_t row, float* sum,
                                                 bool first) const {
    const T* h = x.row(row);
    const T* d = dout.row(row);
    const T* w = weight;
    const T* added = dresidual.row(row);
    T* to = dx.row(row);
    const auto n = static_cast<float>(hidden);

    float factor = 1.0F;
    Sums sums = sums_of(team, h, d, factor);
    if (!RowScale::is_plain(sums.squares, eps * n)) {
      factor = RowScale::rescue(sums.squares);
      sums = sums_of(team, h, d, factor);
    }
    const RowScale scale = RowScale::of(factor, sums.squares, n, eps);
    const float mean = sums.products * scale.rstd / n;  // of g · x̂

    tile::for_row<Exec>(
        team, hidden,
        [&](std::int64_t i, int) {
          const Vec normal = scale.apply(tile::load<Vec>(h + i));
          const auto dy = tile::load<Vec>(d + i);
          const Vec g = dy * tile::load<Vec>(w + i);
          Vec gradient = scale.apply(Vec(tile::fma(normal, Vec(-mean), g)));
          if (added != nullptr) gradient = gradient + tile::load<Vec>(added + i);
          tile::store_to<Streamed>(to + i, gradient);
          const Vec before = first ? Vec(0.0F) : tile::load<Vec>(sum + i);
          tile::store(sum + i, tile::fma(dy, normal, before));
        },
        [&](std::int64_t i) {
          const float normal = scale.apply(static_cast<float>(h[i]));
          const auto dy = static_cast<float>(d[i]);
          float gradient = scale.apply(Kokkos::fma(normal, -mean, dy * static_cast<float>(w[i])));
          if (added != nullptr) gradient += static_cast<float>(added[i]);
          to[i] = static_cast<T>(gradient);
          sum[i] = Kokkos::fma(dy, normal, first ? 0.0F : sum[i]);
        });
  }
};

/// dweight = Σ partial, a chunk of columns at a time, blocks in order.
template <class Exec, class T>
struct SumPartials {
  using Vec = tile::VecOf<Exec>;
  static constexpr std::int64_t columns = is_host_v<Exec> ? 64 : tile::row_team_size;

  const float* partial;
  std::int64_t blocks, hidden;
  T* dweight;

  std::int64_t chunks() const { return (hidden + columns - 1) / columns; }

  template <class Team>
  KOKKOS_INLINE_FUNCTION void operator()(const Team& team, std::int64_t chunk) const {
    const std::int64_t begin = chunk * columns;
    const float* from = partial + begin;
    T* to = dweight + begin;
    tile::for_row<Exec>(
        team, Kokkos::min(std::int64_t{columns}, hidden - begin),
        [&](std::int64_t i, int) {
          Vec sum(0.0F);
          for (std::int64_t b = 0; b < blocks; ++b)
            sum = sum + tile::load<Vec>(from + b * hidden + i);
          tile::store(to + i, sum);
        },
        [&](std::int64_t i) {
          float sum = 0.0F;
          for (std::int64_t b = 0; b < blocks; ++b) sum += from[b * hidden + i];
          to[i] = static_cast<T>(sum);
        });
  }
};

/// Launches SumPartials under a label.
template <class Exec, class T>
void sum_partials(const char* label, const Exec& exec, const float* partial, std::int64_t blocks,
                  std::int64_t hidden, const TensorRef<1>& dweight) {
  const SumPartials<Exec, T> sum{partial, blocks, hidden, static_cast<T*>(dweight.data)};
  tile::for_each_row(label, exec, sum.chunks(), sum);
}

}  // namespace katt::rmsnorm::impl
