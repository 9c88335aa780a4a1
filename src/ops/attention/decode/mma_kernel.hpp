#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

#include <Kokkos_Core.hpp>

#include "core/parts.hpp"
#include "ops/attention/decode/cache_rows.hpp"
#include "ops/attention/decode/merge_kernel.hpp"
#include "ops/attention/decode/share.hpp"
#include "ops/attention/tensor_cores/kernels/frame.hpp"
#include "tile/cuda/fragments.hpp"

/// Decoding with warp-wide matrix instructions, sm_80 and later: up to sixteen packed query rows of
/// a K/V head are the rows of m16n8k16, and the keys are divided among the blocks of a grid, and
/// within a block among its warps (flash-decoding: Dao, Haziza, Massa & Sizov 2023; equal shares as
/// in stream-K: Osama et al. 2023, arXiv:2301.03598).
///
///   block: for every piece (row tile, keys) of its share:
///     warp: for every tile of its keys, `stages` of them on their way at a time:
///       S = Q·Kᵀ,  P, m, l = online softmax,  O = O·α + P·V
///     (m, l, O) of the piece = merge over the warps, in shared memory
///     the whole row tile: out = O / l
///     else (m, l, O) to memory; the last block of a row tile merges its pieces, in order
///
/// No two warps wait for each other before the merge. A block is the kernel's only view of the
/// machine: tile::MmaBlock on a device, the emulator of the tests on the host.
namespace katt::attention::impl {

/// How a block of DecodeMma is made.
template <int WarpKeys, int Stages, int Warps, int Blocks>
struct DecodeShape {
  static constexpr int warp_keys = WarpKeys;  ///< keys of a tile of a warp
  static constexpr int stages = Stages;       ///< tiles of a warp in shared memory
  static constexpr int warps = Warps;
  static constexpr int blocks = Blocks;  ///< of a multiprocessor
};

/// The parts of a workspace, in bytes: partial results of the pieces, their sums, counters.
struct PieceBytes {
  std::size_t parts, sums, counters;

  PieceBytes(const DecodeGrid& grid, int padded_head_dim) {
    const auto rows = static_cast<std::size_t>(grid.slots() * DecodeGrid::tile_rows);
    parts = aligned_bytes(rows * static_cast<std::size_t>(padded_head_dim) * sizeof(float), 128);
    sums = aligned_bytes(rows * sizeof(PartSum), 128);
    counters = static_cast<std::size_t>(grid.all_tiles()) * sizeof(std::uint64_t);
  }
  std::size_t all() const { return parts + sums + counters; }
};

template <class T, int HeadDim, bool Paged, class Shape, class Rule = NoRule>
struct DecodeMma {
  static constexpr int tile_rows = DecodeGrid::tile_rows;
  static constexpr int warp_keys = Shape::warp_keys;
  static constexpr int warps = Shape::warps;
  static constexpr int stages = Shape::stages;
  static constexpr int threads = warps * static_cast<int>(tile::warp_size);
  static constexpr int blocks_per_multiprocessor = Shape::blocks;
  static constexpr unsigned v_offset = warp_keys * HeadDim * 2;  ///< of V in a stage, in bytes
  static constexpr unsigned stage_bytes = 2 * v_offset;
  static constexpr unsigned ring_bytes = stages * stage_bytes;  ///< of a warp
  static constexpr unsigned sums_offset = warps * ring_bytes;
  static constexpr unsigned q_offset = sums_offset + warps * tile_rows * sizeof(PartSum);
  /// Operands of 256 columns would spill: they lie in shared memory.
  static constexpr bool queries_in_registers = HeadDim <= 128;
  static constexpr int shared_bytes =
      static_cast<int>(q_offset) + (queries_in_registers ? 0 : tile_rows * HeadDim * 2);
  static_assert(q_offset % 128 == 0);
  static_assert(sizeof(T) == 2 && warp_keys % 16 == 0);
  static_assert(ring_bytes >= tile_rows * HeadDim * sizeof(float));
  using Softmax = FragmentSoftmax<T, Rule>;
  using Packed = PackedRowsOf<std::uint32_t>;
  using Queries = std::uint32_t[queries_in_registers ? HeadDim / 16 : 1][4];

  HeadRows<const T> q;
  CacheRows<T, Paged> cache;
  Scores<T, Rule> scores;
  HeadRows<T> out;
  RowValues<float> lse;
  DecodeGrid grid;
  int group;  ///< query heads per K/V head
  int head_dim;
  float* parts;             ///< (slots of pieces, tile_rows, HeadDim)
  PartSum* sums;            ///< (slots, tile_rows)
  std::uint64_t* counters;  ///< (row tiles) pieces that are done; see PieceCounter
  std::uint64_t epoch;

  /// See PieceCounter for the epoch. The workspace holds PieceBytes.
  template <class Args>
  DecodeMma(const Args& args, const Rule& rule, const DecodeGrid& extents, std::uint64_t launch,
            Workspace workspace)
      : q(args.q),
        cache(args),
        scores(args, rule),
        out(args.out),
        lse(args.lse),
        grid(extents),
        group(static_cast<int>(args.heads() / args.kv_heads())),
        head_dim(static_cast<int>(args.head_dim())),
        epoch(launch) {
    const PieceBytes bytes(grid, HeadDim);
    auto* const memory = static_cast<std::byte*>(workspace.data);
    parts = reinterpret_cast<float*>(memory);
    sums = reinterpret_cast<PartSum*>(memory + bytes.parts);
    counters = reinterpret_cast<std::uint64_t*>(memory + bytes.parts + bytes.sums);
  }

  /// Block `index` of the grid.
  template <class Block>
  KOKKOS_INLINE_FUNCTION void run(Block& block, std::int64_t index) const {
    DecodeShare share(block, grid, scores.masks, static_cast<unsigned>(index));
    for (; share.valid(); share.next(scores.masks)) {
      attend(block, share);
      block.barrier();  // nobody reads shared memory any more
    }
  }

 private:
  template <class Block>
  KOKKOS_INLINE_FUNCTION void attend(Block& block, const DecodeShare& share) const {
    const int b = share.entry();
    const EntryScores<T, Rule> entry = scores.of(b);
    const int rows = grid.rows_of_tile(share.row_tile());
    const Packed packed{share.kv_head(), static_cast<std::uint32_t>(group),
                        static_cast<std::uint32_t>(share.row_tile() * tile_rows)};
    const PieceCounter counter{counters + share.row(), epoch, share.pieces()};

    const unsigned lane = block.thread() % tile::warp_size;
    Softmax softmax(entry, packed, static_cast<int>(lane / 4), rows, lane);
    float o[HeadDim / 8][4];
    clear(o);
    attend_keys(block, share, entry, packed, rows, counter, softmax, o);
    softmax.finish(block);
    put(block, o, softmax, rows);
    block.barrier();
    if (share.is_whole()) return write(block, packed, b, rows);
    write_part(block, share.slot(), rows);
    if (!arrives_last(block, counter)) return;
    merge_pieces(block, share, rows);
    block.barrier();
    write(block, packed, b, rows);
  }

  /// The tiles of a warp's keys.
  template <class Block>
  KOKKOS_INLINE_FUNCTION void attend_keys(Block& block, const DecodeShare& share,
                                          const EntryScores<T, Rule>& entry, const Packed& packed,
                                          int rows, const PieceCounter& counter, Softmax& softmax,
                                          float (&o)[HeadDim / 8][4]) const {
    const unsigned lane = block.thread() % tile::warp_size;
    const unsigned warp = block.thread() / tile::warp_size;
    const unsigned ring = warp * ring_bytes;
    LiveKeys<int> tiles(entry.mask, packed.query(0), packed.query(rows - 1), warp_keys,
                        share.key_begin(), share.key_end(), static_cast<int>(warp), warps);
    LiveKeys<int> ahead = tiles;
    if constexpr (!queries_in_registers) copy_queries(block, share.entry(), packed, rows);
    std::int64_t pages[warp_keys / 16];
    find_pages(pages, share.entry(), ahead);
    KATT_NO_UNROLL for (int n = 0; n < stages; ++n) {
      load(block, ring + static_cast<unsigned>(n) * stage_bytes, share.kv_head(), ahead, pages);
      if (ahead.valid()) ahead.next();
      find_pages(pages, share.entry(), ahead);
    }
    Queries query;
    if constexpr (queries_in_registers) {
      load_queries(query, share.entry(), packed, rows, lane);
    } else {
      block.template wait<stages - 1>();
      block.barrier();  // the queries are here for all warps
    }
    if (!share.is_whole() && block.thread() == 0) counter.prepare(block);

    unsigned stage = ring;
    for (; tiles.valid(); tiles.next()) {
      block.template wait<stages - 1>();
      block.sync_warp();
      float s[warp_keys / 8][4];
      multiply(block, s, query, stage, lane);
      softmax.mask(s, tiles.state(), tiles.key(), tiles.columns());
      float rescale[2];
      softmax.probabilities(block, s, rescale);
      multiply_rows(o, rescale);
      accumulate<T, HeadDim>(block, o, s, stage + v_offset, lane);
      load(block, stage, share.kv_head(), ahead, pages);
      if (ahead.valid()) ahead.next();
      find_pages(pages, share.entry(), ahead);
      stage = stage + stage_bytes == ring + ring_bytes ? ring : stage + stage_bytes;
    }
  }

  /// The pages of a tile, asked for one tile before its rows.
  KOKKOS_INLINE_FUNCTION void find_pages(std::int64_t (&pages)[warp_keys / 16], int b,
                                         const LiveKeys<int>& tiles) const {
    KATT_UNROLL for (int n = 0; n < warp_keys / 16; ++n) {
      pages[n] = n * 16 < tiles.columns() ? cache.page(b, tiles.key() + n * 16) : 0;
    }
  }

  /// Begins to copy the rows of a tile, by one warp, as one group of copies; sixteen rows lie in
  /// one page. Rows that no key has are zero. The stage may hold a tile that lanes still read.
  template <class Block>
  KOKKOS_INLINE_FUNCTION void load(Block& block, unsigned stage, int kv_head,
                                   const LiveKeys<int>& tiles,
                                   const std::int64_t (&pages)[warp_keys / 16]) const {
    block.sync_warp();
    if (tiles.valid()) {
      constexpr int chunks = HeadDim / 8;
      constexpr int step = static_cast<int>(tile::warp_size) / chunks;  // rows of a warp's copy
      const unsigned lane = block.thread() % tile::warp_size;
      const unsigned column = lane % chunks * 8;
      const unsigned first = lane / chunks;
      const int live = static_cast<int>(column) < head_dim ? tiles.columns() : 0;
      KATT_UNROLL for (int n = 0; n < warp_keys / 16; ++n) {
        const std::int64_t slot = cache.slot(tiles.key() + n * 16) + first;
        const T* k = cache.k + pages[n] * cache.k_page + kv_head * cache.k_head +
                     slot * cache.k_key + column;
        const T* v = cache.v + pages[n] * cache.v_page + kv_head * cache.v_head +
                     slot * cache.v_key + column;
        KATT_UNROLL for (int i = 0; i < 16; i += step) {
          const unsigned r = first + static_cast<unsigned>(n * 16 + i);
          const bool is_live = static_cast<int>(r) < live;
          const unsigned place = stage + tile::swizzled(warp_keys, r, column);
          block.copy_async(place, is_live ? k : cache.k, is_live);
          block.copy_async(place + v_offset, is_live ? v : cache.v, is_live);
          k += step * cache.k_key;
          v += step * cache.v_key;
        }
      }
    }
    block.commit();
  }

  /// Begins to copy the query rows to shared memory, in the group of copies of a warp's first tile.
  template <class Block>
  KOKKOS_INLINE_FUNCTION void copy_queries(Block& block, int b, const Packed& packed,
                                           int rows) const {
    RowCopies<T, HeadDim>::template load<threads, tile_rows>(
        block, block.thread(), q_offset, head_dim, rows, q.data,
        [&](int r) { return r < rows ? q.row(b, packed.head(r), packed.query(r)) : q.data; });
  }

  /// The operand A of all products with K: rows that do not exist, and columns from head_dim on,
  /// are zero.
  KOKKOS_INLINE_FUNCTION void load_queries(Queries& query, int b, const Packed& packed, int rows,
                                           unsigned lane) const {
    KATT_UNROLL for (int half = 0; half < 2; ++half) {
      const int r = static_cast<int>(lane / 4) + 8 * half;
      const T* row = r < rows ? q.row(b, packed.head(r), packed.query(r)) : nullptr;
      KATT_UNROLL for (int d = 0; d < HeadDim; d += 8) {
        const int column = d + static_cast<int>(lane % 4) * 2;
        const bool exists = row != nullptr && column < head_dim;
        query[d / 16][half + d % 16 / 8 * 2] =
            exists ? *reinterpret_cast<const std::uint32_t*>(row + column) : 0;
      }
    }
  }

  /// S = Q·Kᵀ for the keys of a tile.
  template <class Block>
  KOKKOS_INLINE_FUNCTION static void multiply(Block& block, float (&s)[warp_keys / 8][4],
                                              const Queries& query, unsigned stage, unsigned lane) {
    clear(s);
    const tile::SwizzledLane keys(stage, tile::b_source_by_columns(lane));
    const tile::SwizzledLane queries(q_offset, tile::a_source(lane));
    KATT_UNROLL for (int d = 0; d < HeadDim; d += 16) {
      std::uint32_t a[4];
      if constexpr (queries_in_registers) {
        KATT_UNROLL for (int i = 0; i < 4; ++i) a[i] = query[d / 16][i];
      } else {
        block.load_matrices(a, queries.at(tile_rows, 0, d));
      }
      KATT_UNROLL for (int j = 0; j < warp_keys / 8; j += 2) {
        std::uint32_t pair[4];
        block.load_matrices(pair, keys.at(warp_keys, j * 8, d));
        block.template mma<T>(s[j], a, pair[0], pair[1]);
        block.template mma<T>(s[j + 1], a, pair[2], pair[3]);
      }
    }
  }

  /// The byte of element (r, column) of a warp's O in shared memory: eight rows of a column lie in
  /// different banks, four columns together.
  KOKKOS_INLINE_FUNCTION static unsigned place_of(unsigned warp, int r, int column) {
    const auto row = static_cast<unsigned>(r);
    return warp * ring_bytes +
           (row * HeadDim + (static_cast<unsigned>(column) ^ row % 8 * 8)) * sizeof(float);
  }
  KOKKOS_INLINE_FUNCTION static unsigned place_of_sum(unsigned warp, int r) {
    return sums_offset +
           (warp * tile_rows + static_cast<unsigned>(r)) * static_cast<unsigned>(sizeof(PartSum));
  }
  template <class Block>
  KOKKOS_INLINE_FUNCTION static void put_sum(Block& block, unsigned warp, int r, PartSum sum) {
    block.store_pair(place_of_sum(warp, r), std::bit_cast<std::uint32_t>(sum.max));
    block.store_pair(place_of_sum(warp, r) + 4, std::bit_cast<std::uint32_t>(sum.sum));
  }

  /// A warp's (m, l, O) to shared memory, in place of its tiles.
  template <class Block>
  KOKKOS_INLINE_FUNCTION static void put(Block& block, const float (&o)[HeadDim / 8][4],
                                         const Softmax& softmax, int rows) {
    const unsigned lane = block.thread() % tile::warp_size;
    const unsigned warp = block.thread() / tile::warp_size;
    KATT_UNROLL for (int half = 0; half < 2; ++half) {
      const tile::Position at = tile::accumulator_position(lane, 2 * half);
      const int r = static_cast<int>(at.row);
      if (r >= rows) continue;
      KATT_UNROLL for (int n = 0; n < HeadDim / 8; ++n) {
        const unsigned place = place_of(warp, r, 8 * n + static_cast<int>(at.column));
        block.store_pair(place, std::bit_cast<std::uint32_t>(o[n][2 * half]));
        block.store_pair(place + 4, std::bit_cast<std::uint32_t>(o[n][2 * half + 1]));
      }
      if (lane % 4 == 0) put_sum(block, warp, r, {softmax.largest(half), softmax.sum(half)});
    }
  }

  struct alignas(16) Four {
    float at[4];
  };
  static constexpr int fours = HeadDim / 4;  ///< of a row

  /// Merges what the warps have put, for all elements of the rows: f(row, column, four values,
  /// sums).
  template <class Block, class F>
  KOKKOS_INLINE_FUNCTION void merge_warps(Block& block, int rows, const F& f) const {
    const float factor = scores.factor();
    for (int i = static_cast<int>(block.thread()); i < rows * fours; i += threads) {
      const int r = i / fours;
      const int column = i % fours * 4;
      PartSum of_warp[warps];
      PartSum merged{tile::lowest_score, 0.0F};
      KATT_UNROLL for (int w = 0; w < warps; ++w) {
        of_warp[w].max = std::bit_cast<float>(block.load_word(place_of_sum(w, r)));
        of_warp[w].sum = std::bit_cast<float>(block.load_word(place_of_sum(w, r) + 4));
        merged.max = tile::max(merged.max, of_warp[w].max);
      }
      Four values{};
      KATT_UNROLL for (int w = 0; w < warps; ++w) {
        const float weight = Block::exp2((of_warp[w].max - merged.max) * factor);
        merged.sum = Kokkos::fma(weight, of_warp[w].sum, merged.sum);
        const Four own = block.template load_chunk<Four>(place_of(w, r, column));
        KATT_UNROLL for (int n = 0; n < 4; ++n) {
          values.at[n] = Kokkos::fma(weight, own.at[n], values.at[n]);
        }
      }
      f(r, column, values, merged);
    }
  }

  /// out = O / l and lse.
  template <class Block>
  KOKKOS_INLINE_FUNCTION void write(Block& block, const Packed& packed, int b, int rows) const {
    const ScoreUnit unit = scores.unit();
    merge_warps(block, rows, [&](int r, int column, const Four& o, const PartSum& sum) {
      const std::int64_t head = packed.head(r);
      const std::int64_t i = packed.query(r);
      if (column == 0 && lse) lse(b, head, i) = unit.lse(sum.max, sum.sum);
      if (column >= head_dim) return;
      const float inverse = sum.sum == 0.0F ? 0.0F : 1.0F / sum.sum;
      struct alignas(8) Pairs {
        std::uint32_t pair[2];
      };
      *reinterpret_cast<Pairs*>(out.row(b, head, i) + column) = {
          Block::template pack<T>(o.at[0] * inverse, o.at[1] * inverse),
          Block::template pack<T>(o.at[2] * inverse, o.at[3] * inverse)};
    });
  }

  template <class Block>
  KOKKOS_INLINE_FUNCTION void write_part(Block& block, unsigned slot, int rows) const {
    merge_warps(block, rows, [&](int r, int column, const Four& o, const PartSum& sum) {
      const std::size_t row = std::size_t{slot} * tile_rows + static_cast<std::size_t>(r);
      *reinterpret_cast<Four*>(parts + row * HeadDim + column) = o;
      if (column == 0) sums[row] = sum;
    });
  }

  /// Tells the other blocks that a piece is in memory. True when theirs are as well.
  template <class Block>
  KOKKOS_INLINE_FUNCTION static bool arrives_last(Block& block, const PieceCounter& counter) {
    block.fence_device();
    block.barrier();  // all threads have written
    const bool is_last = block.barrier_any(block.thread() == 0 && counter.arrive(block));
    block.fence_device();
    return is_last;
  }

  /// Merges the pieces of a row tile: every warp some of them, in their order, as its (m, l, O).
  /// Sixteen loads of a thread are on their way together.
  template <class Block>
  KOKKOS_INLINE_FUNCTION void merge_pieces(Block& block, const DecodeShare& share, int rows) const {
    constexpr int together = 4;  ///< pieces, and elements of each
    constexpr int lanes = static_cast<int>(tile::warp_size);
    const int warp = static_cast<int>(block.thread() / tile::warp_size);
    const int lane = static_cast<int>(block.thread() % tile::warp_size);
    const int last = rows * fours - 1;
    for (int first = lane; first <= last; first += together * lanes) {
      Four values[together] = {};
      PartSum merged[together];
      KATT_UNROLL for (int k = 0; k < together; ++k) merged[k] = {tile::lowest_score, 0.0F};
      for (int p = warp; p < static_cast<int>(share.pieces()); p += together * warps) {
        merge_some<Block>(share, p, first, last, values, merged);
      }
      KATT_UNROLL for (int k = 0; k < together; ++k) {
        const int i = first + k * lanes;
        if (i > last) continue;
        const int r = i / fours;
        const int column = i % fours * 4;
        KATT_UNROLL for (int n = 0; n < 4; ++n) {
          block.store_pair(place_of(static_cast<unsigned>(warp), r, column + n),
                           std::bit_cast<std::uint32_t>(values[k].at[n]));
        }
        if (column == 0) put_sum(block, static_cast<unsigned>(warp), r, merged[k]);
      }
    }
  }

  /// Adds pieces p, p + warps, … to elements i, i + 32, …
  template <class Block, int Together>
  KOKKOS_INLINE_FUNCTION void merge_some(const DecodeShare& share, int p, int i, int last,
                                         Four (&values)[Together],
                                         PartSum (&merged)[Together]) const {
    const float factor = scores.factor();
    const int pieces = static_cast<int>(share.pieces());
    PartSum sum[Together][Together];
    Four part[Together][Together];
    KATT_UNROLL for (int n = 0; n < Together; ++n) {
      const unsigned slot =
          share.slot_of(static_cast<unsigned>(Kokkos::min(p + n * warps, pieces - 1)));
      KATT_UNROLL for (int k = 0; k < Together; ++k) {
        const int element = Kokkos::min(i + k * static_cast<int>(tile::warp_size), last);
        const std::size_t row =
            std::size_t{slot} * tile_rows + static_cast<std::size_t>(element / fours);
        sum[n][k] = sums[row];
        part[n][k] = *reinterpret_cast<const Four*>(parts + row * HeadDim + element % fours * 4);
      }
    }
    KATT_UNROLL for (int k = 0; k < Together; ++k) {
      float high = merged[k].max;
      KATT_UNROLL for (int n = 0; n < Together; ++n) high = tile::max(high, sum[n][k].max);
      const float before = Block::exp2((merged[k].max - high) * factor);
      merged[k] = {high, merged[k].sum * before};
      KATT_UNROLL for (int c = 0; c < 4; ++c) values[k].at[c] *= before;
      KATT_UNROLL for (int n = 0; n < Together; ++n) {
        if (p + n * warps >= pieces) continue;
        const float weight = Block::exp2((sum[n][k].max - high) * factor);
        merged[k].sum = Kokkos::fma(weight, sum[n][k].sum, merged[k].sum);
        KATT_UNROLL for (int c = 0; c < 4; ++c) {
          values[k].at[c] = Kokkos::fma(weight, part[n][k].at[c], values[k].at[c]);
        }
      }
    }
  }
};

}  // namespace katt::attention::impl
