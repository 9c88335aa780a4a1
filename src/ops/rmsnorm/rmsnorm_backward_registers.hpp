#pragma once

#include <cstdint>

#include <Kokkos_Core.hpp>

#include "ops/rmsnorm/rmsnorm.hpp"
#include "ops/rmsnorm/rmsnorm_rows.hpp"
#include "tile/rows/column_sums.hpp"
#include "tile/rows/pack.hpp"

/// The fused backward pass of a device. A row lies in the registers of a thread block between its
/// statistics and its outputs, and the columns' sums of dout · x̂ lie there over all rows of the
/// block.
namespace katt::rmsnorm::impl {

/// Two sums over the columns of a row, reduced together.
struct RowSums {
  float squares = 0.0F;   ///< Σ x²
  float products = 0.0F;  ///< Σ g · x, g = dout · weight

  KOKKOS_FORCEINLINE_FUNCTION RowSums& operator+=(const RowSums& other) {
    squares += other.squares;
    products += other.products;
    return *this;
  }
};

}  // namespace katt::rmsnorm::impl

template <>
struct Kokkos::reduction_identity<katt::rmsnorm::impl::RowSums> {
  KOKKOS_FORCEINLINE_FUNCTION static katt::rmsnorm::impl::RowSums sum() { return {}; }
};

namespace katt::rmsnorm::impl {

/// Threads of a multiprocessor that hold rows, so that a thread has 128 registers.
inline constexpr int most_register_threads = 512;

/// Backward pass of rows block, block + blocks, …: dx, and their sum of dout · x̂ in f32. Thread t of
/// n has chunks t, t + n, … of a row.
template <class T>
struct RegisterBackward {
  static constexpr int elements = tile::chunk_elements;
  static constexpr int chunks = sizeof(T) == 2 ? 4 : 2;

  Matrix<const T> dout, x, dresidual;
  const T* weight;
  Matrix<T> dx;
  Matrix<float> partial;  ///< (blocks, hidden)
  int tokens, blocks;
  int hidden;
  float eps;

  RegisterBackward(const BackwardArgs& args, std::int64_t count, float* partial_sums)
      : dout(args.dout),
        x(args.x),
        dresidual(args.dresidual_out),
        weight(static_cast<const T*>(args.weight.data)),
        dx(args.dx),
        partial(partial_sums, args.hidden()),
        tokens(static_cast<int>(args.tokens())),
        blocks(static_cast<int>(count)),
        hidden(static_cast<int>(args.hidden())),
        eps(args.eps) {}

  /// Threads that hold a row: whole warps.
  static std::int64_t threads_for(const BackwardArgs& args) {
    constexpr std::int64_t of_warp = tile::warp_size * chunks * elements;
    return (args.hidden() + of_warp - 1) / of_warp * tile::warp_size;
  }

  template <class Member>
  KOKKOS_INLINE_FUNCTION void operator()(const Member& team) const {
    const Columns columns{team.team_rank() * elements, team.team_size() * elements};
    float sums[chunks][elements] = {};
    for (int r = team.league_rank(); r < tokens; r += blocks) {
      Row row = load(columns, r);
      const auto n = static_cast<float>(hidden);
      float factor = 1.0F;
      RowSums found;
      while (true) {  // once more where f32 cannot hold Σ x²
        found = sums_of(columns, row, factor);
        KATT_UNROLL
        for (int k = 0; k < chunks; ++k) {
          tile::forget_widened(row.x[k]);
          tile::forget_widened(row.dout[k]);
        }
        team.team_reduce(Kokkos::Sum<RowSums>(found));
        if (factor != 1.0F || RowScale::is_plain(found.squares, eps * n)) break;
        factor = RowScale::rescue(found.squares);
      }
      const RowScale scale = RowScale::of(factor, found.squares, n, eps);
      write(columns, r, row, scale, found.products * scale.rstd / n, sums);
    }
    KATT_UNROLL
    for (int k = 0; k < chunks; ++k) {
      if (columns[k] < hidden)
        tile::store_chunk(partial.row(team.league_rank()) + columns[k], sums[k]);
    }
  }

 private:
  using Chunk = tile::RawChunk<T>;

  /// The columns at which a thread's chunks begin.
  struct Columns {
    int first, step;
    KOKKOS_FORCEINLINE_FUNCTION int operator[](int k) const { return first + k * step; }
  };

  /// A thread's chunks of a row, as they lie in memory.
  struct Row {
    Chunk x[chunks];
    Chunk dout[chunks];
  };

  /// A chunk of a row, zeros beyond its end. There is no branch, so that all loads of a row are in
  /// flight together.
  KOKKOS_FORCEINLINE_FUNCTION Chunk chunk_of(const T* row, int column) const {
    const bool inside = column < hidden;
    Chunk chunk = tile::load_raw(row + (inside ? column : 0));
    if (!inside) chunk = Chunk{};
    return chunk;
  }

  KOKKOS_FORCEINLINE_FUNCTION Row load(const Columns& columns, int r) const {
    Row row;
    KATT_UNROLL
    for (int k = 0; k < chunks; ++k) {
      row.x[k] = chunk_of(x.row(r), columns[k]);
      row.dout[k] = chunk_of(dout.row(r), columns[k]);
    }
    return row;
  }

  /// This thread's part of the sums of factor · x.
  KOKKOS_FORCEINLINE_FUNCTION RowSums sums_of(const Columns& columns, const Row& row,
                                              float factor) const {
    RowSums sums;
    KATT_UNROLL
    for (int k = 0; k < chunks; ++k) {
      float h[elements];
      float g[elements];
      float gain[elements];
      tile::widen(row.x[k], h);
      tile::widen(row.dout[k], g);
      tile::widen(chunk_of(weight, columns[k]), gain);
      KATT_UNROLL
      for (int i = 0; i < elements; ++i) {
        const float scaled = h[i] * factor;
        sums.squares = Kokkos::fma(scaled, scaled, sums.squares);
        sums.products = Kokkos::fma(g[i] * gain[i], scaled, sums.products);
      }
    }
    return sums;
  }

  /// dx of a row, and its part of the sums. The gradients that are added are loaded two chunks at a
  /// time: all at once would take more registers than there are.
  KOKKOS_FORCEINLINE_FUNCTION void write(const Columns& columns, int r, const Row& row,
                                         const RowScale& scale, float mean,
                                         float (&sums)[chunks][elements]) const {
    const bool adds = dresidual.data != nullptr;
    constexpr int together = 2;
    KATT_UNROLL
    for (int first = 0; first < chunks; first += together) {
      Chunk added[together] = {};
      if (adds) {
        KATT_UNROLL
        for (int k = 0; k < together; ++k) {
          added[k] = chunk_of(dresidual.row(r), columns[first + k]);
        }
      }
      KATT_UNROLL
      for (int k = 0; k < together; ++k) {
        const int column = columns[first + k];
        float h[elements];
        float g[elements];
        float gain[elements];
        float gradient[elements];
        tile::widen(row.x[first + k], h);
        tile::widen(row.dout[first + k], g);
        tile::widen(chunk_of(weight, column), gain);
        tile::widen(added[k], gradient);
        KATT_UNROLL
        for (int i = 0; i < elements; ++i) {
          const float normal = scale.template apply<false>(h[i]);
          const float own = scale.template apply<false>(Kokkos::fma(normal, -mean, g[i] * gain[i]));
          sums[first + k][i] = Kokkos::fma(g[i], normal, sums[first + k][i]);
          gradient[i] = adds ? own + gradient[i] : own;
        }
        if (column < hidden) tile::store_chunk(dx.row(r) + column, gradient);
      }
    }
  }
};

#if defined(KATT_HAS_CUDA)

/// Threads that hold a row of these arguments.
inline std::int64_t register_threads(const BackwardArgs& args) {
  return visit_dtype(args.x.dtype,
                     [&]<class T>() { return RegisterBackward<T>::threads_for(args); });
}

/// True when backward_in_registers() takes these arguments: chunks, and rows that a thread block
/// can hold.
inline bool fits_registers(const BackwardArgs& args) {
  return args.hidden() > 0 && args.tokens() <= 0x40000000 &&
         tile::are_chunks(args.dout, args.x, args.weight, args.dresidual_out, args.dx) &&
         register_threads(args) <= most_register_threads;
}

/// Blocks that fill the device; 0 where a block cannot hold a row.
inline std::int64_t register_blocks(const Kokkos::Cuda& exec, const BackwardArgs& args) {
  const std::int64_t resident =
      most_register_threads / Kokkos::max<std::int64_t>(1, register_threads(args));
  return Kokkos::min(args.tokens(), exec.cuda_device_prop().multiProcessorCount * resident);
}

/// `partial`: (register_blocks(), hidden).
inline void backward_in_registers(const Kokkos::Cuda& exec, const BackwardArgs& args,
                                  float* partial) {
  using Policy = Kokkos::TeamPolicy<Kokkos::Cuda, Kokkos::LaunchBounds<most_register_threads, 1>>;
  const std::int64_t blocks = register_blocks(exec, args);
  if (blocks > 0) {
    const Policy policy(exec, static_cast<int>(blocks), static_cast<int>(register_threads(args)));
    visit_dtype(args.x.dtype, [&]<class T>() {
      Kokkos::parallel_for("katt::rmsnorm::backward", policy,
                           RegisterBackward<T>(args, blocks, partial));
    });
  }
  visit_dtype(args.x.dtype, [&]<class T>() {
    tile::sum_partials<T, tile::Order::natural>(exec, "katt::rmsnorm::weight_gradient", partial,
                                                blocks, args.hidden(), args.dweight);
  });
}

#endif

}  // namespace katt::rmsnorm::impl
