#pragma once

#include <cstddef>
#include <cstdint>

#include <Kokkos_Core.hpp>

#include "ops/rmsnorm/rmsnorm.hpp"
#include "ops/rmsnorm/rmsnorm_rows.hpp"
#include "tile/rows/rows.hpp"
#include "tile/rows/stream.hpp"

/// The fused forward pass. A row comes from memory once and from cache after that.
namespace katt::rmsnorm::impl {

/// Forward pass of a block of rows. Every row is read once, for h and Σ h², and written once, out
/// and out_q; in between its largest |out| is found when out_q is requested. A thread of a host
/// writes a row while it reads the next one, element by element, so that its loads and stores of
/// memory never wait for each other; a thread block of a device has one row.
///
/// With a residual, the read pass writes h and the write pass reads it back: from residual_out or,
/// with streaming stores, which leave nothing in the caches, from one of two rows of scratch.
template <class Exec, class T, bool Stream>
struct Forward {
  using Vec = tile::VecOf<Exec>;
  /// Bytes of a row of scratch, on the stack of a host's thread.
  static constexpr std::int64_t scratch_bytes = 32768;
  static constexpr std::int64_t few_tokens = 64;

  Matrix<const T> x, residual;
  const T* weight;
  Matrix<T> out, residual_out;
  Matrix<std::int8_t> out_q;
  float* out_q_scale;
  std::int64_t tokens, hidden, blocks;
  float eps;

  Forward(const Exec& exec, const ForwardArgs& args)
      : x(args.x),
        residual(args.residual),
        weight(static_cast<const T*>(args.weight.data)),
        out(args.out),
        residual_out(args.residual_out),
        out_q(args.out_q, args.hidden()),
        out_q_scale(args.out_q_scale),
        tokens(args.tokens()),
        hidden(args.hidden()),
        blocks(is_host_v<Exec> ? Kokkos::min<std::int64_t>(tokens, exec.concurrency()) : tokens),
        eps(args.eps) {}

  /// True when a WideTeam can work on these arguments.
  static bool is_wide(const ForwardArgs& args) {
    return tile::are_chunks(args.x, args.weight, args.residual, args.out, args.residual_out) &&
           reinterpret_cast<std::uintptr_t>(args.out_q) % 8 == 0;
  }
  /// True when streaming stores can write the outputs of these arguments.
  static bool can_stream(const ForwardArgs& args) {
    return rows_are_streamable<T>(args.out) &&
           (args.residual.data == nullptr ||
            (rows_are_streamable<T>(args.residual_out) &&
             args.hidden() * static_cast<std::int64_t>(sizeof(T)) <= scratch_bytes));
  }

  /// The scale of a row, which is read; with a residual h is written.
  template <class Team>
  KOKKOS_INLINE_FUNCTION RowScale read_row(const Team& team, std::int64_t row) const {
    const Source source{x.row(row), residual.row(row), residual_out.row(row),
                        residual_out.row(row)};
    return scale_of(team, source.h(), visit<true, false>(team, source, {}));
  }

  template <class Team>
  KOKKOS_INLINE_FUNCTION void operator()(const Team& team, std::int64_t block) const {
    constexpr std::int64_t page = 4096;
    alignas(Stream ? page : 1) std::byte
        scratch[Stream ? 2 * (scratch_bytes + page) : 1];  // not of T, which clears itself
    const auto kept = [&](std::int64_t row) {
      if constexpr (Stream) {
        // A row lies there as those of x do in their pages: see step().
        const auto offset = reinterpret_cast<std::uintptr_t>(x.data) % page / 64 * 64;
        return reinterpret_cast<T*>(scratch + row % 2 * (scratch_bytes + page) + offset);
      } else {
        return residual_out.row(row);
      }
    };
    const auto source = [&](std::int64_t row) {
      return Source{x.row(row), residual.row(row), residual_out.row(row), kept(row)};
    };
    const std::int64_t end = is_host_v<Exec> ? tokens * (block + 1) / blocks : block + 1;
    std::int64_t row = is_host_v<Exec> ? tokens * block / blocks : block;
    Source current = source(row);
    RowScale scale = scale_of(team, current.h(), visit<true, false>(team, current, {}));
    for (; is_host_v<Exec> && row + 1 < end; ++row) {
      const Sink sink = sink_of(team, row, current.h(), scale);
      const Source next = source(row + 1);
      float sum = 0.0F;
      if (scale.is_plain()) {
        sum = visit<true, true>(team, next, sink);
      } else {
        visit<false, true>(team, {}, sink);
        sum = visit<true, false>(team, next, {});
      }
      scale = scale_of(team, next.h(), sum);
      current = next;
    }
    visit<false, true>(team, {}, sink_of(team, row, current.h(), scale));
    if constexpr (Stream) tile::stream_fence();
  }

 private:
  /// A row that is read.
  struct Source {
    const T* x = nullptr;
    const T* residual = nullptr;
    T* sum = nullptr;   ///< x + residual, as a result
    T* kept = nullptr;  ///< the same, to be read back; may be `sum`

    KOKKOS_FORCEINLINE_FUNCTION const T* h() const { return residual == nullptr ? x : kept; }
  };
  /// A row that is written.
  struct Sink {
    const T* h = nullptr;
    RowScale scale;
    T* out = nullptr;
    std::int8_t* quantised = nullptr;
    float step = 0.0F;  ///< out_q ≈ out · step
  };

  template <class Team>
  KOKKOS_FORCEINLINE_FUNCTION Sink sink_of(const Team& team, std::int64_t row, const T* h,
                                           const RowScale& scale) const {
    const float step = out_q.data == nullptr ? 0.0F : quantisation_step(team, row, h, scale);
    return {h, scale, out.row(row), out_q.row(row), step};
  }

  /// Reads a row, writes another, or both; returns Σ h² of the one that is read. Every thread reads
  /// back what it wrote itself.
  template <bool Read, bool Write, class Team>
  KOKKOS_FORCEINLINE_FUNCTION float visit(const Team& team, const Source& source,
                                          const Sink& sink) const {
    Vec sums[tile::column_slots] = {Vec(0.0F), Vec(0.0F), Vec(0.0F), Vec(0.0F)};
    float tail = 0.0F;
    tile::for_column_pairs<Exec>(
        team, hidden,
        [&](std::int64_t i, int slot) __attribute__((always_inline)) {
          step<Read, Write, 2, Vec>(source, sink, i, &sums[2 * slot]);
        },
        [&]<class V = Vec>(std::int64_t i, int slot) {
          step<Read, Write, 1, V>(source, sink, i, &sums[slot]);
        },
        [&](std::int64_t i) { step<Read, Write, 1, float>(source, sink, i, &tail); });
    if constexpr (!Read) return 0.0F;
    return tile::sum_over(team, sums, tail);
  }

  /// The work of visit() at element i, for N vectors or an element: all loads, then all stores. A
  /// processor holds a load back while a store before it that agrees in the last 12 bits of the
  /// address waits, and rows of different tensors often do.
  template <bool Read, bool Write, int N, class V, class Sum>
  KOKKOS_FORCEINLINE_FUNCTION void step(const Source& source, const Sink& sink, std::int64_t i,
                                        Sum* sums) const {
    V h[N];
    V y[N];
    if constexpr (Read && !is_host_v<Exec>) {
      // The weight of few rows comes from memory: its way overlaps that of the row.
      if (tokens <= few_tokens) tile::prefetch_pack<V>(weight + i);
    }
    if constexpr (Read) load_sum(source, i, h);
    if constexpr (Write) normal<Read>(sink.h, sink.scale, i, y);
    if constexpr (Read) keep(source, i, h, sums);
    if constexpr (Write) write(sink, i, y);
  }

  /// x + residual. Prefetches 4 KiB ahead.
  template <class V, int N>
  KOKKOS_FORCEINLINE_FUNCTION static void load_sum(const Source& row, std::int64_t i, V (&h)[N]) {
    load_ahead(row.x + i, h);
    if (row.residual != nullptr) {
      V added[N];
      load_ahead(row.residual + i, added);
      for (int k = 0; k < N; ++k) h[k] = h[k] + added[k];
    }
  }

  /// Keeps x + residual, rounded, where there is a residual, and adds its squares to sums[0] …
  /// sums[N − 1]. A host reads it back, which is faster than to round and to widen in registers; a
  /// device would wait for its memory.
  template <class V, int N, class Sum>
  KOKKOS_FORCEINLINE_FUNCTION static void keep(const Source& row, std::int64_t i, V (&h)[N],
                                               Sum* sums) {
    if (row.residual != nullptr) {
      tile::store_all<false>(row.kept + i, h);
      if constexpr (Stream) tile::copy_all<Stream, V, N>(row.kept + i, row.sum + i);
      if constexpr (is_host_v<Exec>) {
        tile::load_all(row.kept + i, h);
      } else {
        for (int k = 0; k < N; ++k) h[k] = tile::rounded<T>(h[k]);
      }
    }
    for (int k = 0; k < N; ++k) tile::add_product(sums[k], h[k], h[k]);
  }

  /// h · rstd · weight of N vectors, or an element; Plain where the scale is plain.
  template <bool Plain, class V, int N>
  KOKKOS_FORCEINLINE_FUNCTION void normal(const T* h, const RowScale& scale, std::int64_t i,
                                          V (&values)[N]) const {
    V gain[N];
    tile::load_all(h + i, values);
    tile::load_all(weight + i, gain);
    for (int k = 0; k < N; ++k) {
      values[k] = scale.template apply<Plain>(values[k]) * gain[k];
    }
  }

  template <class V, int N>
  KOKKOS_FORCEINLINE_FUNCTION static void write(const Sink& row, std::int64_t i, V (&y)[N]) {
    if (row.out != nullptr) tile::store_all<Stream>(row.out + i, y);
    if (row.quantised != nullptr) {
      for (int k = 0; k < N; ++k) y[k] = tile::rounded<T>(y[k]) * V(row.step);
      store_int8<T>(row.quantised + i, y);
    }
  }

  /// The quantisation_scale() of a row, which goes to out_q_scale too.
  template <class Team>
  KOKKOS_FORCEINLINE_FUNCTION float quantisation_step(const Team& team, std::int64_t row,
                                                      const T* h, const RowScale& scale) const {
    Vec largest(0.0F);
    Vec unknown(0.0F);
    float tail = 0.0F;
    float unknown_tail = 0.0F;
    const auto most_of = [&]<int N, class V>(std::int64_t i, auto& most, auto& none) {
      V y[N];
      normal<false>(h, scale, i, y);
      for (int k = 0; k < N; ++k) {
        tile::add_product(none, y[k], V(0.0F));
        if constexpr (tile::PackVector<V>) {
          most = tile::max(tile::reduce_max(tile::max(y[k], -y[k])), most);
        } else {
          most = tile::max(V(Kokkos::abs(y[k])), most);
        }
      }
    };
    tile::for_column_pairs<Exec>(
        team, hidden,
        [&](std::int64_t i, int) { most_of.template operator()<2, Vec>(i, largest, unknown); },
        [&]<class V = Vec>(std::int64_t i, int) {
          most_of.template operator()<1, V>(i, largest, unknown);
        },
        [&](std::int64_t i) { most_of.template operator()<1, float>(i, tail, unknown_tail); });
    // Rounding keeps the order: the largest of the rounded values is the largest one, rounded.
    float most = tile::rounded<T>(tile::max(tile::reduce_max(largest), tail));
    team.team_reduce(Kokkos::Max<float>(most));
    float none = tile::reduce_sum(unknown) + unknown_tail;
    team.team_reduce(Kokkos::Sum<float>(none));
    const float step = quantisation_scale(most, none);
    if (team.team_rank() == 0) out_q_scale[row] = step;
    return step;
  }

  /// The scale of a row from Σ h², which is summed once more where f32 could not hold it.
  template <class Team>
  KOKKOS_FORCEINLINE_FUNCTION RowScale scale_of(const Team& team, const T* h, float sum) const {
    const auto n = static_cast<float>(hidden);
    if (RowScale::is_plain(sum, eps * n)) return RowScale::of(1.0F, sum, n, eps);
    const float scale = RowScale::rescue(sum);
    return RowScale::of(scale, sum_of_squares<Exec>(team, h, hidden, scale), n, eps);
  }
};

}  // namespace katt::rmsnorm::impl
