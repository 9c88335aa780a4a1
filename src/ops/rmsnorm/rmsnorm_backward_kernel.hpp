#pragma once

#include <cstdint>

#include <Kokkos_Core.hpp>

#include "ops/rmsnorm/rmsnorm.hpp"
#include "ops/rmsnorm/rmsnorm_rows.hpp"
#include "tile/rows/column_sums.hpp"
#include "tile/rows/rows.hpp"
#include "tile/rows/stream.hpp"

/// The fused backward pass. A row comes from memory once, for its statistics, and from cache after
/// that.
namespace katt::rmsnorm::impl {

/// Backward pass of a block of rows: dx, and the block's sum of dout · x̂ in f32. Every row is read
/// once for its statistics, Σ x² and Σ g · x, and once more, from cache, for the outputs. A thread
/// of a host writes a row while it reads the next one, as in the forward pass.
template <class Exec, class T, bool Stream>
struct Backward {
  using Vec = tile::VecOf<Exec>;

  Matrix<const T> dout, x, dresidual;
  const T* weight;
  Matrix<T> dx;
  Matrix<float> partial;  ///< (blocks, hidden), in tile::Order::loaded
  std::int64_t tokens, hidden, block_rows;
  float eps;

  Backward(const BackwardArgs& args, const tile::RowBlocks& blocks, float* partial_sums)
      : dout(args.dout),
        x(args.x),
        dresidual(args.dresidual_out),
        weight(static_cast<const T*>(args.weight.data)),
        dx(args.dx),
        partial(partial_sums, args.hidden()),
        tokens(args.tokens()),
        hidden(args.hidden()),
        block_rows(blocks.rows),
        eps(args.eps) {}

  /// True when a WideTeam can work on these arguments.
  static bool is_wide(const BackwardArgs& args) {
    return tile::are_chunks(args.dout, args.x, args.weight, args.dresidual_out, args.dx);
  }

  template <class Team>
  KOKKOS_INLINE_FUNCTION void operator()(const Team& team, std::int64_t block) const {
    const std::int64_t begin = block * block_rows;
    const std::int64_t end = Kokkos::min(begin + block_rows, tokens);
    const auto source = [&](std::int64_t row) { return Source{x.row(row), dout.row(row)}; };
    Source current = source(begin);
    Statistics statistics = statistics_of(team, current, visit<true, false>(team, current, Sink{}));
    for (std::int64_t row = begin; row < end; ++row) {
      const Sink sink{current,      dresidual.row(row), dx.row(row), partial.row(block),
                      row == begin, statistics};
      const bool more = row + 1 < end;
      const Source next = more ? source(row + 1) : current;
      Sums sums;
      if (is_host_v<Exec> && more && statistics.scale.is_plain()) {
        sums = visit<true, true>(team, next, sink);
      } else {
        visit<false, true>(team, Source{}, sink);
        if (more) sums = visit<true, false>(team, next, Sink{});
      }
      if (more) statistics = statistics_of(team, next, sums);
      current = next;
    }
    if constexpr (Stream) tile::stream_fence();
  }

 private:
  struct Sums {
    float squares = 0.0F;   ///< Σ x²
    float products = 0.0F;  ///< Σ g · x
  };
  struct Statistics {
    RowScale scale;
    float mean = 0.0F;  ///< of g · x̂
  };
  /// A row that is read.
  struct Source {
    const T* x = nullptr;
    const T* dout = nullptr;
  };
  /// A row that is written.
  struct Sink {
    Source source;
    const T* dresidual = nullptr;
    T* dx = nullptr;
    float* sum = nullptr;  ///< of the block
    bool first = false;    ///< of the block: the sum begins
    Statistics statistics;
  };

  /// Reads a row, writes another, or both; returns the sums of the one that is read.
  template <bool Read, bool Write, class Team>
  KOKKOS_FORCEINLINE_FUNCTION Sums visit(const Team& team, const Source& source,
                                         const Sink& sink) const {
    Vec squares[tile::column_slots] = {Vec(0.0F), Vec(0.0F), Vec(0.0F), Vec(0.0F)};
    Vec products[tile::column_slots] = {Vec(0.0F), Vec(0.0F), Vec(0.0F), Vec(0.0F)};
    Sums tail;
    constexpr int chunks = Write ? 1 : 2;  // of six tensors, or three
    tile::for_column_pairs<Exec, chunks>(
        team, hidden,
        [&](std::int64_t i, int slot) __attribute__((always_inline)) {
          if constexpr (Read) read<2, Vec>(source, i, &squares[2 * slot], &products[2 * slot]);
          if constexpr (Write) write<Read, 2, Vec>(sink, i);
        },
        [&]<class V = Vec>(std::int64_t i, int slot) {
          if constexpr (Read) read<1, V>(source, i, &squares[slot], &products[slot]);
          if constexpr (Write) write<Read, 1, V>(sink, i);
        },
        [&](std::int64_t i) {
          if constexpr (Read) read<1, float>(source, i, &tail.squares, &tail.products);
          if constexpr (Write) write<Read, 1, float>(sink, i);
        });
    if constexpr (!Read) return {};
    return {tile::sum_over(team, squares, tail.squares),
            tile::sum_over(team, products, tail.products)};
  }

  /// Adds x² and g · x of N vectors, or an element, to squares[0] … [N − 1] and products.
  template <int N, class V, class Sum>
  KOKKOS_FORCEINLINE_FUNCTION void read(const Source& row, std::int64_t i, Sum* squares,
                                        Sum* products) const {
    V h[N];
    V g[N];
    V gain[N];
    load_ahead(row.x + i, h);
    load_ahead(row.dout + i, g);
    tile::load_all(weight + i, gain);
    for (int k = 0; k < N; ++k) {
      tile::add_product(squares[k], h[k], h[k]);
      tile::add_product(products[k], V(g[k] * gain[k]), h[k]);
    }
  }

  /// dx of N vectors, or an element, and their part of the sum. Plain where the scale is plain. All
  /// loads come before all stores, see Forward::step().
  template <bool Plain, int N, class V>
  KOKKOS_FORCEINLINE_FUNCTION void write(const Sink& row, std::int64_t i) const {
    constexpr int lanes = tile::width_v<V>;
    const auto& [scale, mean] = row.statistics;
    V normal[N];
    V dy[N];
    V gain[N];
    V gradient[N];
    V sum[N];
    tile::load_all(row.source.x + i, normal);
    tile::load_all(row.source.dout + i, dy);
    tile::load_all(weight + i, gain);
    if (row.dresidual != nullptr) load_ahead(row.dresidual + i, gradient);
    for (int k = 0; k < N; ++k) {
      normal[k] = scale.template apply<Plain>(normal[k]);
      const V own =
          scale.template apply<Plain>(V(tile::fma(normal[k], V(-mean), V(dy[k] * gain[k]))));
      gradient[k] = row.dresidual != nullptr ? V(own + gradient[k]) : own;
      const V before = row.first ? V(0.0F) : tile::load<V>(row.sum + i + k * lanes);
      sum[k] = tile::fma(dy[k], normal[k], before);
    }
    tile::store_all<Stream>(row.dx + i, gradient);
    for (int k = 0; k < N; ++k) tile::store(row.sum + i + k * lanes, sum[k]);
  }

  /// The statistics of a row from its sums, which are summed once more where f32 could not hold Σ
  /// x².
  template <class Team>
  KOKKOS_FORCEINLINE_FUNCTION Statistics statistics_of(const Team& team, const Source& row,
                                                       Sums sums) const {
    const auto n = static_cast<float>(hidden);
    float factor = 1.0F;
    if (!RowScale::is_plain(sums.squares, eps * n)) {
      factor = RowScale::rescue(sums.squares);
      const auto g_and_x = [=, w = weight]<class V>(std::int64_t i, V& g, V& value) {
        g = tile::load<V>(row.dout + i) * tile::load<V>(w + i);
        value = tile::load<V>(row.x + i) * V(factor);
      };
      sums = {sum_of_squares<Exec>(team, row.x, hidden, factor),
              sum_of_products<Exec>(team, hidden, g_and_x)};
    }
    const RowScale scale = RowScale::of(factor, sums.squares, n, eps);
    return {scale, sums.products * scale.rstd / n};
  }
};

}  // namespace katt::rmsnorm::impl
