#pragma once

#include <cstddef>
#include <cstdint>

#include <Kokkos_Core.hpp>

#include "ops/rmsnorm/rmsnorm.hpp"
#include "ops/rmsnorm/rmsnorm_rows.hpp"
#include "tile/rows.hpp"
#include "tile/stream.hpp"

/// The fused kernels. A row comes from memory once, for its statistics, and from cache after that;
/// all that is written is written in the last visit.
namespace katt::rmsnorm::impl {

/// Forward pass of one row:
///   visit 0   residual_out, where there is a residual; h is read back from there. Streaming stores
///             leave nothing to read back: then it is a row of scratch until visit 3
///   visit 1   Σ h²
///   visit 2   max |out|, where out_q is wanted
///   visit 3   out, out_q
template <class Exec, class T, bool Stream>
struct Forward {
  using Vec = tile::VecOf<Exec>;
  /// Whether two vectors at a time are loaded and stored in fewer instructions than one by one.
  static constexpr bool paired = std::is_same_v<T, bf16>;
  /// Of a row of scratch, on the stack of a host's thread.
  static constexpr std::int64_t scratch_bytes = 32768;

  Matrix<const T> x, residual;
  const T* weight;
  Matrix<T> out, residual_out;
  Matrix<std::int8_t> out_q;
  float* out_q_scale;
  std::int64_t hidden;
  float eps;

  explicit Forward(const ForwardArgs& args)
      : x(args.x),
        residual(args.residual),
        weight(static_cast<const T*>(args.weight.data)),
        out(args.out),
        residual_out(args.residual_out),
        out_q(args.out_q, args.hidden()),
        out_q_scale(args.out_q_scale),
        hidden(args.hidden()),
        eps(args.eps) {}

  template <class Team>
  KOKKOS_INLINE_FUNCTION void operator()(const Team& team, std::int64_t row) const {
    const bool added = residual.data != nullptr;
    const bool streamed =
        Stream && tile::is_streamable(out.row(row)) && tile::is_streamable(residual_out.row(row)) &&
        (!added || hidden * static_cast<std::int64_t>(sizeof(T)) <= scratch_bytes);
    T* sum = residual_out.row(row);
    if (!streamed) {
      if (added) add_residual(team, row, sum);
      normalise<false>(team, row, added ? sum : x.row(row), nullptr);
    } else if (!added) {
      normalise<Stream>(team, row, x.row(row), nullptr);
    } else {
      alignas(64) std::byte bytes[Stream ? scratch_bytes : 1];  // not T: its constructor clears it
      T* scratch = reinterpret_cast<T*>(bytes);
      add_residual(team, row, scratch);
      normalise<Stream>(team, row, scratch, sum);
    }
  }

  /// sum = x + residual. Every thread reads back what it wrote itself.
  template <class Team>
  KOKKOS_FORCEINLINE_FUNCTION void add_residual(const Team& team, std::int64_t row, T* sum) const {
    const T* from = x.row(row);
    const T* added = residual.row(row);
    tile::for_row_pairs<Exec, paired>(
        team, hidden,
        [=](std::int64_t i, int) {
          Vec a[2];
          Vec b[2];
          tile::load_two(from + i, a[0], a[1]);
          tile::load_two(added + i, b[0], b[1]);
          tile::store_two<false>(sum + i, Vec(a[0] + b[0]), Vec(a[1] + b[1]));
        },
        [&](std::int64_t i, int) {
          tile::store(sum + i, Vec(tile::load<Vec>(from + i) + tile::load<Vec>(added + i)));
        },
        [&](std::int64_t i) {
          sum[i] = static_cast<T>(static_cast<float>(from[i]) + static_cast<float>(added[i]));
        });
  }

  /// Asks for what the next row will read, so that memory is read while results are written.
  KOKKOS_FORCEINLINE_FUNCTION void prefetch(std::int64_t row, std::int64_t i) const {
    tile::prefetch(x.row(row) + i);
    if (residual.data != nullptr) tile::prefetch(residual.row(row) + i);
  }

  /// The visits from the first on, of the row h, which goes to `copy` too where there is one.
  template <bool Streamed, class Team>
  KOKKOS_FORCEINLINE_FUNCTION void normalise(const Team& team, std::int64_t row, const T* h,
                                             T* copy) const {
    const auto vector = [=](std::int64_t i) { return tile::load<Vec>(h + i); };
    const auto scalar = [=](std::int64_t i) { return static_cast<float>(h[i]); };
    const RowScale scale = row_scale<Exec, paired>(
        team, hidden, eps, [=](std::int64_t i, Vec& a, Vec& b) { tile::load_two(h + i, a, b); },
        vector, scalar);
    const auto normal = [=, w = weight](std::int64_t i) {
      return Vec(scale.apply(vector(i)) * tile::load<Vec>(w + i));
    };
    const auto normal_scalar = [=, w = weight](std::int64_t i) {
      return scale.apply(scalar(i)) * static_cast<float>(w[i]);
    };

    std::int8_t* quantised = out_q.row(row);
    float step = 0.0F;
    if (quantised != nullptr) {
      Vec largest(0.0F);
      float tail = 0.0F;
      tile::for_row<Exec>(
          team, hidden,
          [&](std::int64_t i, int) { largest = tile::max(Vec(Kokkos::abs(normal(i))), largest); },
          [&](std::int64_t i) { tail = tile::max(Kokkos::abs(normal_scalar(i)), tail); });
      // Rounding keeps the order: the largest of the rounded values is the largest one, rounded.
      float most = tile::rounded<T>(tile::max(tile::reduce_max(largest), tail));
      team.team_reduce(Kokkos::Max<float>(most));
      step = 127.0F / tile::max(most, 1e-5F);
      if (team.team_rank() == 0) out_q_scale[row] = step;
    }

    T* to = out.row(row);
    const auto write = [=](std::int64_t i, int /*slot*/) {
      const Vec y = normal(i);
      if (copy != nullptr) tile::store(copy + i, vector(i));
      if (to != nullptr) tile::store(to + i, y);
      if (quantised != nullptr) store_int8(quantised + i, Vec(tile::rounded<T>(y) * Vec(step)));
    };
    tile::for_row_pairs<Exec>(
        team, hidden,
        [=, this, w = weight](std::int64_t i, int) {
          constexpr int lanes = tile::lanes_v<Exec>;
          for (std::int64_t line = i; line < i + 2 * lanes; line += 64 / sizeof(T)) {
            prefetch(row + 1, line);
          }
          if (quantised != nullptr) {
            write(i, 0);
            write(i + lanes, 0);
            return;
          }
          Vec first;
          Vec second;
          if constexpr (paired) {
            Vec gain[2];
            tile::load_two(h + i, first, second);
            tile::load_two(w + i, gain[0], gain[1]);
            first = scale.apply(first) * gain[0];
            second = scale.apply(second) * gain[1];
          } else {
            first = normal(i);
            second = normal(i + lanes);
          }
          if constexpr (Streamed) {
            if (copy != nullptr) tile::stream_copy_two<Vec>(h + i, copy + i);
          }
          tile::store_two<Streamed>(to + i, first, second);
        },
        write,
        [=](std::int64_t i) {
          const float y = normal_scalar(i);
          if (copy != nullptr) copy[i] = h[i];
          if (to != nullptr) to[i] = static_cast<T>(y);
          if (quantised != nullptr) quantised[i] = to_int8(tile::rounded<T>(y) * step);
        });
    if constexpr (Streamed) tile::stream_fence();
  }
};

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
