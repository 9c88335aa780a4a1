#pragma once

#include <cstdint>

#include <Kokkos_Core.hpp>

#include "core/views.hpp"
#include "ops/rope/rope.hpp"
#include "tile/rows/pairs.hpp"
#include "tile/rows/rows.hpp"
#include "tile/rows/stream.hpp"
#include "tile/vec/vec.hpp"

namespace katt::rope::impl {

/// Both passes: they turn tensors by the angles of a cache, backwards in the backward pass.
struct Turn {
  ConstTensorRef<4> in[2];
  TensorRef<4> out[2];
  ConstTensorRef<2> cache;
  const std::int64_t* positions;
  std::int64_t first_position;
  bool interleaved;
  bool inverse;

  explicit Turn(const ForwardArgs& args)
      : in{args.x, args.x2},
        out{args.out, args.out2},
        cache(args.cache),
        positions(args.positions),
        first_position(args.first_position),
        interleaved(args.interleaved),
        inverse(false) {}
  explicit Turn(const BackwardArgs& args)
      : in{args.dout, args.dout2},
        out{args.dx, args.dx2},
        cache(args.cache),
        positions(args.positions),
        first_position(args.first_position),
        interleaved(args.interleaved),
        inverse(true) {}

  /// True when there is a tensor t, by its shape.
  bool has(int t) const { return in[t].extent[3] > 0; }
};

/// Row of the cache for a query.
struct Positions {
  const std::int64_t* positions;
  std::int64_t first, seq, rows;

  /// −1 when the cache has no such row.
  KOKKOS_FORCEINLINE_FUNCTION std::int64_t row(std::int64_t b, std::int64_t s) const {
    const std::int64_t position = positions != nullptr ? positions[b * seq + s] : first + s;
    return position >= 0 && position < rows ? position : -1;
  }
};

/// Row r of the cache: cos and sin of head_dim/2 angles (two halves).
template <class Exec>
struct BuildCache {
  float* cache;
  const std::int64_t* positions;
  std::int64_t half;
  bool f32_angles;
  double frequency[max_head_dim / 2];

  template <class Team>
  KOKKOS_INLINE_FUNCTION void operator()(const Team& team, std::int64_t row) const {
    const std::int64_t position = positions != nullptr ? positions[row] : row;
    for (std::int64_t i = team.team_rank(); i < half; i += team.team_size()) {
      const double angle =
          f32_angles
              ? static_cast<double>(static_cast<float>(position) * static_cast<float>(frequency[i]))
              : static_cast<double>(position) * frequency[i];
      cache[row * 2 * half + i] = static_cast<float>(Kokkos::cos(angle));
      cache[(row * 2 + 1) * half + i] = static_cast<float>(Kokkos::sin(angle));
    }
  }
};

/// One pass over the tensors. A work item of a host is some positions of some heads, sized and
/// ordered so that the angles of a position are reused from a cache by every head while the tensor
/// is read in the order in which it is stored:
///   (B, H, S, D)  one head, a block of positions; the next item is the next head there
///   (B, S, H, D)  all heads of a few positions
/// A thread of a device keeps the angles of a part of a position in registers for several heads, of
/// which it loads some together.
template <class Exec, class T, bool Stream>
struct Rotate {
  using Memory = typename Exec::memory_space;
  using Vec = tile::VecOf<Exec>;
  static constexpr int lanes = tile::lanes_v<Exec>;

  StridedView<const T, 4, Memory> in[2];
  StridedView<T, 4, Memory> out[2];
  const float* cache;
  Positions positions;
  std::int64_t half, seq_block, seq_blocks;
  std::int64_t head_block[2], head_blocks[2];
  bool interleaved;
  float sign;  ///< of the angle

  Rotate(const Exec& exec, const Turn& turn)
      : in{turn.in[0].view<T, Memory>(), turn.in[1].view<T, Memory>()},
        out{turn.out[0].view<T, Memory>(), turn.out[1].view<T, Memory>()},
        cache(static_cast<const float*>(turn.cache.data)),
        positions{turn.positions, turn.first_position, turn.in[0].extent[2], turn.cache.extent[0]},
        half(turn.in[0].extent[3] / 2),
        interleaved(turn.interleaved),
        sign(turn.inverse ? -1.0F : 1.0F) {
    constexpr std::int64_t heads_inner_rows = 4;
    const auto heads_inner = [](const ConstTensorRef<4>& x) {
      return is_host_v<Exec> && x.stride[1] < x.stride[2];
    };
    seq_block = heads_inner(turn.in[0]) ? heads_inner_rows : positions_of_item(exec, turn);
    seq_blocks = (positions.seq + seq_block - 1) / seq_block;
    for (int t = 0; t < 2; ++t) {
      const std::int64_t heads = turn.in[t].extent[1];
      head_block[t] = heads_inner(turn.in[t]) ? Kokkos::max<std::int64_t>(heads, 1)
                      : is_host_v<Exec>       ? 1
                                              : device_heads;
      head_blocks[t] = (heads + head_block[t] - 1) / head_block[t];
    }
  }

  /// Heads of an item of a device, and of these the ones that a thread loads together.
  static constexpr int device_heads = 8;
  static constexpr int heads_together = sizeof(T) == 2 ? 4 : 2;

  /// Positions of an item. On a host of one head: as many as leave half of a second-level cache to
  /// their angles, since a long run of memory is read faster than many short ones, but no more than
  /// leave every thread several items. On a device as many as give every thread a chunk.
  static std::int64_t positions_of_item(const Exec& exec, const Turn& turn) {
    const ConstTensorRef<4>& x = turn.in[0];
    if constexpr (!is_host_v<Exec>) {
      const std::int64_t chunks =
          (x.extent[3] / 2 + tile::chunk_elements - 1) / tile::chunk_elements;
      return Kokkos::max<std::int64_t>(1,
                                       tile::row_team_size / Kokkos::max<std::int64_t>(chunks, 1));
    }
    constexpr std::int64_t angle_bytes = 262144;
    constexpr std::int64_t items_a_thread = 8;
    constexpr std::int64_t fewest = 32;
    constexpr std::int64_t most = 512;
    const std::int64_t fitting =
        angle_bytes / (x.extent[3] * static_cast<std::int64_t>(sizeof(float)));
    const std::int64_t rows = x.extent[0] * x.extent[2] * (x.extent[1] + turn.in[1].extent[1]);
    const std::int64_t shared = Kokkos::max(fewest, rows / (exec.concurrency() * items_a_thread));
    return Kokkos::min(Kokkos::min(most, fitting), shared);
  }

  std::int64_t items() const {
    return static_cast<std::int64_t>(in[0].extent(0)) * seq_blocks *
           (head_blocks[0] + head_blocks[1]);
  }

  template <class Team>
  KOKKOS_INLINE_FUNCTION void operator()(const Team& team, std::int64_t item) const {
    // The number of a team of a device is an int, which divides several times faster.
    using Index = std::conditional_t<is_host_v<Exec>, std::int64_t, int>;
    const auto index = static_cast<Index>(item);
    const auto all_blocks = static_cast<Index>(head_blocks[0] + head_blocks[1]);
    const auto all_seq_blocks = static_cast<Index>(seq_blocks);
    const Index block = index % all_blocks;
    const std::int64_t s_begin = index / all_blocks % all_seq_blocks * seq_block;
    const std::int64_t s_end = Kokkos::min(s_begin + seq_block, positions.seq);
    const std::int64_t b = index / all_blocks / all_seq_blocks;
    const int t = block < head_blocks[0] ? 0 : 1;
    const std::int64_t h_begin = (t == 0 ? block : block - head_blocks[0]) * head_block[t];
    const std::int64_t h_end =
        Kokkos::min(h_begin + head_block[t], static_cast<std::int64_t>(in[t].extent(1)));

    if constexpr (is_host_v<Exec>) {
      for (std::int64_t s = s_begin; s < s_end; ++s) {
        for (std::int64_t h = h_begin; h < h_end; ++h) turn_row(t, b, h, s);
      }
      if constexpr (Stream) tile::stream_fence();
    } else {  // the threads share the pairs of all positions of the item, or chunks of them
      constexpr int pairs = tile::is_wide_v<Team> ? tile::chunk_elements : 1;
      const int parts = static_cast<int>(half) / pairs;
      const int all = static_cast<int>(s_end - s_begin) * parts;
      for (int p = team.team_rank(); p < all; p += team.team_size()) {
        const int index = p / parts;
        const int first = (p - index * parts) * pairs;
        const std::int64_t s = s_begin + index;
        const std::int64_t row = positions.row(b, s);
        if constexpr (pairs > 1) {
          const HeadRun run{&in[t](b, h_begin, s, 0), &out[t](b, h_begin, s, 0),
                            static_cast<std::int64_t>(in[t].stride(1)),
                            static_cast<std::int64_t>(out[t].stride(1)),
                            static_cast<int>(h_end - h_begin)};
          turn_chunks(run, row, first);
        } else {
          for (std::int64_t h = h_begin; h < h_end; ++h) {
            turn_pair(&in[t](b, h, s, 0), &out[t](b, h, s, 0), row, first);
          }
        }
      }
    }
  }

  /// True when a WideTeam can work on these tensors.
  static bool is_wide(const Turn& turn) {
    return turn.in[0].extent[3] / 2 % tile::chunk_elements == 0 &&
           tile::are_chunks(turn.in[0], turn.in[1], turn.out[0], turn.out[1], turn.cache);
  }

  KOKKOS_FORCEINLINE_FUNCTION void turn_row(int t, std::int64_t b, std::int64_t h,
                                            std::int64_t s) const {
    const T* x = &in[t](b, h, s, 0);
    T* y = &out[t](b, h, s, 0);
    // The arithmetic of a row fills the window in which a core would find the next misses itself.
    constexpr std::int64_t ahead = 4096 / sizeof(T);
    constexpr std::int64_t line = 64 / sizeof(T);
    for (std::int64_t i = 0; i < 2 * half; i += line) tile::prefetch(x + ahead + i);
    const std::int64_t row = positions.row(b, s);
    std::int64_t i = 0;
    if (row >= 0) {
      const float* cosines = cache + row * 2 * half;
      if (interleaved) {
        i = turn_interleaved(x, y, cosines, cosines + half);
      } else {
        i = turn_halves(x, y, cosines, cosines + half);
      }
    }
    for (; i < half; ++i) turn_pair(x, y, row, i);
  }

  /// A vector of each half of a row, turned.
  template <class V>
  struct Halves {
    V first, second;
  };
  KOKKOS_FORCEINLINE_FUNCTION Halves<Vec> turned(const T* x, const float* cosines,
                                                 const float* sines) const {
    const auto a = tile::load<Vec>(x);
    const auto b = tile::load<Vec>(x + half);
    const auto c = tile::load<Vec>(cosines);
    const Vec s = tile::load<Vec>(sines) * Vec(sign);
    return {tile::fma(a, c, Vec(-(b * s))), tile::fma(b, c, Vec(a * s))};
  }

  /// The whole vectors of a row of half-rotation pairs; returns the number of pairs done.
  KOKKOS_FORCEINLINE_FUNCTION std::int64_t turn_halves(const T* x, T* y, const float* cosines,
                                                       const float* sines) const {
    const auto run = [&]<bool Streamed>() {
      std::int64_t i = 0;
      for (; i + 2 * lanes <= half; i += 2 * lanes) {
        const Halves<Vec> low = turned(x + i, cosines + i, sines + i);
        const Halves<Vec> high = turned(x + i + lanes, cosines + i + lanes, sines + i + lanes);
        tile::store_two_to<Streamed>(y + i, low.first, high.first);
        tile::store_two_to<Streamed>(y + half + i, low.second, high.second);
      }
      for (; i + lanes <= half; i += lanes) {
        const Halves<Vec> one = turned(x + i, cosines + i, sines + i);
        tile::store_to<Streamed>(y + i, one.first);
        tile::store_to<Streamed>(y + half + i, one.second);
      }
      return i;
    };
    if constexpr (Stream) {
      if (tile::is_streamable(y) && tile::is_streamable(y + half)) {
        return run.template operator()<true>();
      }
    }
    return run.template operator()<false>();
  }

  /// The same for interleaved pairs.
  KOKKOS_FORCEINLINE_FUNCTION std::int64_t turn_interleaved(const T* x, T* y, const float* cosines,
                                                            const float* sines) const {
    const auto run = [&]<bool Streamed>() {
      std::int64_t i = 0;
      for (; i + lanes <= half; i += lanes) {
        Vec a;
        Vec b;
        tile::load_pairs(x + 2 * i, a, b);
        const auto c = tile::load<Vec>(cosines + i);
        const Vec s = tile::load<Vec>(sines + i) * Vec(sign);
        tile::store_pairs<Streamed>(y + 2 * i, tile::fma(a, c, Vec(-(b * s))),
                                    tile::fma(b, c, Vec(a * s)));
      }
      return i;
    };
    if constexpr (Stream) {
      if (tile::is_streamable(y)) return run.template operator()<true>();
    }
    return run.template operator()<false>();
  }

  /// Rows of one position of several heads.
  struct HeadRun {
    const T* x;
    T* y;
    std::int64_t x_stride, y_stride;
    int heads;
  };
  using Chunk = tile::Pack<1>;
  /// A chunk of each half of a row; of interleaved pairs two chunks side by side.
  struct Chunks {
    Chunk low, high;
  };

  /// The pairs i … i + chunk_elements − 1 of some heads, of a device. All loads of the heads that
  /// it takes together come before their stores.
  KOKKOS_FORCEINLINE_FUNCTION void turn_chunks(const HeadRun& run, std::int64_t row, int i) const {
    const std::int64_t low = interleaved ? 2 * i : i;
    const std::int64_t high = interleaved ? 2 * i + tile::chunk_elements : i + half;
    if (row < 0) {
      const Chunk nothing(Kokkos::Experimental::quiet_NaN_v<float>);
      for (int h = 0; h < run.heads; ++h) {
        tile::store(run.y + h * run.y_stride + low, nothing);
        tile::store(run.y + h * run.y_stride + high, nothing);
      }
      return;
    }
    const auto c = tile::load<Chunk>(cache + row * 2 * half + i);
    const Chunk s = tile::load<Chunk>(cache + (row * 2 + 1) * half + i) * Chunk(sign);
    const auto turn = [&]<int Together>(int h) {
      tile::RawChunk<T> loaded[Together][2];
      KATT_UNROLL
      for (int k = 0; k < Together; ++k) {
        const T* x = run.x + (h + k) * run.x_stride;
        loaded[k][0] = tile::load_raw(x + low);
        loaded[k][1] = tile::load_raw(x + high);
      }
      KATT_UNROLL
      for (int k = 0; k < Together; ++k) {
        Chunks chunks;
        tile::widen(loaded[k][0], chunks.low.lane);
        tile::widen(loaded[k][1], chunks.high.lane);
        const Chunks made = turned(chunks, c, s);
        T* y = run.y + (h + k) * run.y_stride;
        tile::store(y + low, made.low);
        tile::store(y + high, made.high);
      }
    };
    int h = 0;
    for (; h + heads_together <= run.heads; h += heads_together) {
      turn.template operator()<heads_together>(h);
    }
    for (; h < run.heads; ++h) turn.template operator()<1>(h);
  }

  KOKKOS_FORCEINLINE_FUNCTION Chunks turned(const Chunks& x, const Chunk& c, const Chunk& s) const {
    if (!interleaved) {
      return {tile::fma(x.low, c, -(x.high * s)), tile::fma(x.high, c, x.low * s)};
    }
    constexpr int n = tile::chunk_elements;
    Chunk even;
    Chunk odd;
    KATT_UNROLL
    for (int k = 0; k < n; ++k) {
      const Chunk& from = 2 * k < n ? x.low : x.high;
      even.lane[k] = from.lane[2 * k % n];
      odd.lane[k] = from.lane[2 * k % n + 1];
    }
    const Chunk first = tile::fma(even, c, -(odd * s));
    const Chunk second = tile::fma(odd, c, even * s);
    Chunks made;
    KATT_UNROLL
    for (int k = 0; k < n; ++k) {
      Chunk& to = 2 * k < n ? made.low : made.high;
      to.lane[2 * k % n] = first.lane[k];
      to.lane[2 * k % n + 1] = second.lane[k];
    }
    return made;
  }

  KOKKOS_FORCEINLINE_FUNCTION void turn_pair(const T* x, T* y, std::int64_t row,
                                             std::int64_t i) const {
    const std::int64_t first = interleaved ? 2 * i : i;
    const std::int64_t second = interleaved ? 2 * i + 1 : i + half;
    if (row < 0) {
      y[first] = T(Kokkos::Experimental::quiet_NaN_v<float>);
      y[second] = T(Kokkos::Experimental::quiet_NaN_v<float>);
      return;
    }
    const float c = cache[row * 2 * half + i];
    const float s = cache[(row * 2 + 1) * half + i] * sign;
    const auto a = static_cast<float>(x[first]);
    const auto b = static_cast<float>(x[second]);
    y[first] = T(Kokkos::fma(a, c, -(b * s)));
    y[second] = T(Kokkos::fma(b, c, a * s));
  }
};

}  // namespace katt::rope::impl
