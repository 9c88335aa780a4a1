#pragma once

#include <cstdint>

#include <Kokkos_Core.hpp>

#include "ops/attention/gpus.hpp"
#include "ops/attention/tensor_cores/kernels/frame.hpp"
#include "ops/attention/tensor_cores/kernels/longest_first.hpp"
#include "ops/attention/tensor_cores/kernels/turns.hpp"
#include "tile/cuda/fragments.hpp"
#include "tile/cuda/tensor_map.hpp"

/// Flash attention, forward, with the matrix instructions of a warpgroup (Shah et al. 2024,
/// FlashAttention-3, arXiv:2407.08608): one warp loads, warpgroups compute, 64 query rows each, and
/// the softmax of one tile overlaps with P·V of the tile before it. Blocks are persistent: the
/// loads of the next tile of rows run beside the end of this one.
///
///   loading:    for every tile of rows, for every live tile n: wait until its stage is free;
///                 K(n), Q before the first V, V(n) into the stage
///   computing:  for every tile of rows:
///                 S = Q·K(0)ᵀ; softmax
///                 for n = 1 …: begin S = Q·K(n)ᵀ;  begin O += P·V(n − 1);  softmax of S when it
///                              is there;  O = O·α when that is there
///                 O += P·V(last);  out = O / l
///
/// A block is the kernel's only view of the machine: tile::WgmmaBlock on a device, the emulator of
/// the tests on the host.
namespace katt::attention::impl {

/// The resources of a block of compute capability 9.0 (ops/attention/gpus.hpp).
inline constexpr Gpu hopper_gpu = *find_gpu("h100");

template <class T, int HeadDim, int TileQ, int TileKv, class Rule = NoRule>
struct FlashWgmma : TensorCoreForward<T, HeadDim, TileQ, Rule> {
  static_assert(TileQ % 64 == 0 && TileQ <= 192 && tile::wgmma_takes(TileKv));
  using Frame = TensorCoreForward<T, HeadDim, TileQ, Rule>;
  using typename Frame::QueryTile;

  static constexpr int group_threads = 128;  ///< of a warpgroup
  static constexpr int computing_groups = TileQ / 64;
  static constexpr int threads = (1 + computing_groups) * group_threads;
  /// Registers of a computing and of a loading thread, of 65536 in all.
  static constexpr int registers = computing_groups == 3 ? 160 : 232;
  static constexpr int loader_registers = computing_groups == 3 ? 32 : 40;
  static constexpr int q_bytes = TileQ * stored_columns(HeadDim) * 2;
  static constexpr int kv_bytes = TileKv * stored_columns(HeadDim) * 2;
  /// As many as fit a block, two to four; supports() refuses the tile when two do not fit.
  static constexpr int fitting_stages =
      (hopper_gpu.block_shared_bytes - q_bytes - 256) / (2 * kv_bytes);
  static constexpr int stages = Kokkos::min(Kokkos::max(fitting_stages, 2), 4);
  static constexpr int barrier_bytes = (4 * stages + 2) * 8;
  static constexpr int shared_bytes = q_bytes + 2 * stages * kv_bytes + barrier_bytes;
  static constexpr int blocks_per_multiprocessor = 1;

  LongestFirst order;
  /// The boxes of a tile; the host encodes them for a device. Rows that no boxes describe are
  /// copied one by one: of queries, where the query heads of a K/V head are no power of two.
  tile::TensorMap q_map, k_map, v_map;
  bool has_q_map, has_kv_maps;

  explicit FlashWgmma(const ForwardArgs& args, const Rule& rule = {},
                      int multiprocessors = hopper_gpu.multiprocessors)
      : Frame(args, rule),
        order(this->heads(), this->row_tiles(TileQ),
              args.mask.causal ? this->heads() : LongestFirst::cached(4 * this->seq_kv * HeadDim),
              static_cast<std::uint32_t>(multiprocessors)) {
    this->blocks = order.blocks();
    const tile::TensorBoxes q_boxes = query_boxes(args);
    const tile::TensorBoxes k_boxes = key_boxes(args.k);
    const tile::TensorBoxes v_boxes = key_boxes(args.v);
    has_q_map = this->group <= 64 && 64 % this->group == 0 && q_boxes.are_encodable();
    has_kv_maps = k_boxes.are_encodable() && v_boxes.are_encodable();
    q_map = tile::TensorMap(q_boxes);
    k_map = tile::TensorMap(k_boxes);
    v_map = tile::TensorMap(v_boxes);
  }

  /// Calls f for every map that is there.
  template <class F>
  void for_each_map(const F& f) {
    if (has_q_map) f(q_map);
    if (has_kv_maps) f(k_map), f(v_map);
  }

  /// Block `index` of the grid.
  template <class Block>
  KOKKOS_INLINE_FUNCTION void run(Block& block, std::int64_t index) const {
    if (block.thread() == 0) {
      for (unsigned stage = 0; stage < stages; ++stage) {
        for (const Part part : {Part::k, Part::v}) {
          block.barrier_init(full(part, stage), 1);
          block.barrier_init(empty(part, stage), computing_groups * 4);  // one lane a warp
        }
      }
      block.barrier_init(q_full, 1);
      block.barrier_init(q_empty, computing_groups * 4);
      block.fence_async_proxy();
    }
    block.barrier();
    if (block.thread() < group_threads) {
      if constexpr (computing_groups > 1) block.template decrease_registers<loader_registers>();
      if (block.thread() < tile::warp_size) load(block, static_cast<std::uint32_t>(index));
    } else {
      if constexpr (computing_groups > 1) block.template increase_registers<registers>();
      compute(block, static_cast<std::uint32_t>(index));
    }
  }

 private:
  enum class Part : unsigned { k, v };

  /// A stage of keys and values, and how often all of them were filled before, modulo 2.
  struct Ring {
    unsigned stage = 0;
    unsigned phase = 0;
    KOKKOS_INLINE_FUNCTION void next() {
      if (++stage == stages) {
        stage = 0;
        phase ^= 1;
      }
    }
  };

  // Offsets in shared memory, in bytes.
  static constexpr unsigned q_tile = 0;
  KOKKOS_INLINE_FUNCTION static constexpr unsigned kv_tile(Part part, unsigned stage) {
    return q_bytes + (static_cast<unsigned>(part) * stages + stage) * kv_bytes;
  }
  KOKKOS_INLINE_FUNCTION static constexpr unsigned full(Part part, unsigned stage) {
    return q_bytes + 2 * stages * kv_bytes + (static_cast<unsigned>(part) * stages + stage) * 8;
  }
  KOKKOS_INLINE_FUNCTION static constexpr unsigned empty(Part part, unsigned stage) {
    return full(part, stage) + 2 * stages * 8;
  }
  static constexpr unsigned q_full = q_bytes + 2 * stages * kv_bytes + 4 * stages * 8;
  static constexpr unsigned q_empty = q_full + 8;

  /// Packed rows of a K/V head, 64 a box: those of a query follow each other.
  static tile::TensorBoxes query_boxes(const ForwardArgs& args) {
    const ConstTensorRef<4>& q = args.q;
    const std::int64_t group = args.heads() / Kokkos::max<std::int64_t>(args.kv_heads(), 1);
    tile::TensorBoxes boxes;
    boxes.data = q.data;
    boxes.extent = {q.extent[3], group, q.extent[2], args.kv_heads(), q.extent[0]};
    boxes.stride = {1, q.stride[1], q.stride[2], group * q.stride[1], q.stride[0]};
    const int heads = static_cast<int>(Kokkos::min<std::int64_t>(group, 64));
    boxes.box = {64, heads, 64 / Kokkos::max(heads, 1), 1, 1};
    return without_unused_strides(boxes);
  }
  static tile::TensorBoxes key_boxes(const ConstTensorRef<4>& k) {
    tile::TensorBoxes boxes;
    boxes.data = k.data;
    boxes.extent = {k.extent[3], k.extent[2], k.extent[1], k.extent[0], 1};
    boxes.stride = {1, k.stride[2], k.stride[1], k.stride[0], 8};
    boxes.box = {64, TileKv, 1, 1, 1};
    return without_unused_strides(boxes);
  }
  static tile::TensorBoxes without_unused_strides(tile::TensorBoxes boxes) {
    for (std::size_t d = 1; d < boxes.stride.size(); ++d) {
      if (boxes.extent[d] == 1) boxes.stride[d] = 8;
    }
    return boxes;
  }

  /// The loading warp.
  template <class Block>
  KOKKOS_INLINE_FUNCTION void load(Block& block, std::uint32_t index) const {
    Ring ring;
    unsigned q_phase = 0;
    for (std::uint32_t round = 0, place; (place = order.place(index, round)) < order.tiles();
         ++round) {
      const LongestFirst::Tile at = order.at(place);
      const QueryTile item = this->query_tile(at.head, at.row_tile);
      const Mask mask = this->scores.masks.of(item.batch);
      bool first = true;
      for (LiveKeys<int> tiles(mask, item.first(), item.last(), TileKv); tiles.valid();
           tiles.next()) {
        KATT_NO_UNROLL for (unsigned part = 0; part < 2; ++part) {
          if (part == 1 && first) {
            first = false;
            block.barrier_wait(q_empty, q_phase ^ 1);
            q_phase ^= 1;
            load_queries(block, item);
          }
          load_keys(block, static_cast<Part>(part), ring, item, mask, tiles);
        }
        ring.next();
      }
    }
  }

  /// A tile of K or V. Rows behind the length of the keys may hold NaN, and 0 · NaN is NaN: where
  /// the tile has some of V, they are cleared.
  template <class Block>
  KOKKOS_INLINE_FUNCTION void load_keys(Block& block, Part part, const Ring& ring,
                                        const QueryTile& item, const Mask& mask,
                                        const LiveKeys<int>& tiles) const {
    const unsigned bar = full(part, ring.stage);
    const unsigned target = kv_tile(part, ring.stage);
    const std::int64_t keys = mask.interval.keys;
    block.barrier_wait(empty(part, ring.stage), ring.phase ^ 1);
    if (has_kv_maps && (part == Part::k || keys == this->seq_kv || tiles.key() + TileKv <= keys)) {
      if (block.thread() != 0) return;
      block.barrier_arrive_expecting(bar, kv_bytes);
      KATT_UNROLL for (int d = 0; d < HeadDim; d += 64) {
        block.load_box(target + d * TileKv * 2, part == Part::k ? k_map : v_map,
                       {d, tiles.key(), static_cast<int>(item.packed.kv_head),
                        static_cast<int>(item.batch), 0},
                       bar);
      }
      return;
    }
    load_keys_of<HeadDim, tile::warp_size, TileKv>(
        block, block.thread(), target, this->head_dim, part == Part::k ? this->k : this->v,
        item.batch, item.packed.kv_head, tiles.key(), tiles.columns());
    finish_copies(block, bar);
  }

  template <class Block>
  KOKKOS_INLINE_FUNCTION void load_queries(Block& block, const QueryTile& item) const {
    if (has_q_map) {
      if (block.thread() != 0) return;
      block.barrier_arrive_expecting(q_full, q_bytes);
      KATT_UNROLL for (int part = 0; part < TileQ; part += 64) {
        const int query = static_cast<int>((item.packed.begin + part) / this->by_group);
        KATT_UNROLL for (int d = 0; d < HeadDim; d += 64) {
          block.load_box(
              q_tile + (d * TileQ + part * 64) * 2, q_map,
              {d, 0, query, static_cast<int>(item.packed.kv_head), static_cast<int>(item.batch)},
              q_full);
        }
      }
      return;
    }
    Frame::template load_queries<tile::warp_size>(block, block.thread(), q_tile, item);
    finish_copies(block, q_full);
  }

  /// Waits for the copies of all lanes, and announces them.
  template <class Block>
  KOKKOS_INLINE_FUNCTION static void finish_copies(Block& block, unsigned bar) {
    block.commit();
    block.template wait<0>();
    block.fence_async_proxy();
    block.sync_warp();
    if (block.thread() == 0) block.barrier_arrive(bar);
  }

  /// A computing warpgroup: the rows of a tile from 64 times its number on.
  template <class Block>
  KOKKOS_INLINE_FUNCTION void compute(Block& block, std::uint32_t index) const {
    const unsigned thread = block.thread() - group_threads;
    const unsigned lane = thread % tile::warp_size;
    const unsigned group_row = thread / group_threads * 64;
    const unsigned first_row = thread / tile::warp_size * 16;  // of the warp
    const int row = static_cast<int>(first_row + tile::accumulator_position(lane, 0).row);

    float o[HeadDim / 8][4];
    float s[TileKv / 8][4];
    std::uint32_t p[TileKv / 16][4];
    float rescale[2];
    clear(s);

    const Turns<computing_groups, 1> turns{static_cast<int>(group_row / 64)};
    bool first_turn = true;
    Ring ring;
    unsigned q_phase = 0;
    const auto release = [&](unsigned bar) {
      if (lane == 0) block.barrier_arrive(bar);
    };
    for (std::uint32_t round = 0, place; (place = order.place(index, round)) < order.tiles();
         ++round) {
      const LongestFirst::Tile at = order.at(place);
      const QueryTile item = this->query_tile(at.head, at.row_tile);
      const EntryScores<T, Rule> scores = this->scores.of(item.batch);
      LiveKeys<int> tiles(scores.mask, item.first(), item.last(), TileKv);
      typename Frame::Softmax softmax(scores, item.packed, row, item.rows, lane);
      clear(o);
      if (tiles.valid()) {
        block.barrier_wait(q_full, q_phase);
        q_phase ^= 1;
        turns.wait(block, first_turn);
        first_turn = false;
        begin_scores(block, s, group_row, ring);
        turns.pass(block);
        block.template wgmma_wait<0>();
        block.hold(s);
        release(empty(Part::k, ring.stage));
        softmax.mask(s, tiles.state(), tiles.key(), tiles.columns());
        softmax.probabilities(block, s, rescale);  // O is still 0
        round_to(block, p, s);
        Ring values = ring;
        for (tiles.next(); tiles.valid(); tiles.next()) {
          ring.next();
          turns.wait(block, false);
          begin_scores(block, s, group_row, ring);
          begin_values(block, o, p, values);
          turns.pass(block);
          block.template wgmma_wait<1>();
          block.hold(s);
          release(empty(Part::k, ring.stage));
          softmax.template compute_rows_here<Block>();
          softmax.mask(s, tiles.state(), tiles.key(), tiles.columns());
          softmax.probabilities(block, s, rescale);
          keep_below(block, values);
          block.template wgmma_wait<0>();
          block.hold(o);
          block.hold(p);
          release(empty(Part::v, values.stage));
          multiply_rows(o, rescale);
          round_to(block, p, s);
          values = ring;
        }
        release(q_empty);
        begin_values(block, o, p, values);
        block.template wgmma_wait<0>();
        block.hold(o);
        block.hold(p);
        release(empty(Part::v, values.stage));
        ring.next();
      }
      softmax.finish(block);
      this->write(block, o, softmax, first_row, item);
    }
    if (!first_turn) turns.end(block);
  }

  /// Keeps the compiler from moving the wait that follows to before the softmax, which is to run
  /// beside P·V: a wait for the phase in which V came, which is over, is a branch and no wait.
  template <class Block>
  KOKKOS_INLINE_FUNCTION static void keep_below(Block& block, const Ring& values) {
    block.barrier_wait(full(Part::v, values.stage), values.phase);
  }

  /// Begins S = Q·Kᵀ.
  template <class Block>
  KOKKOS_INLINE_FUNCTION static void begin_scores(Block& block, float (&s)[TileKv / 8][4],
                                                  unsigned group_row, const Ring& ring) {
    block.barrier_wait(full(Part::k, ring.stage), ring.phase);
    block.wgmma_fence();
    const unsigned q_row = Block::computed_here(group_row);
    KATT_UNROLL for (int d = 0; d < HeadDim; d += 16) {
      block.template wgmma<T, TileKv>(
          s, tile::row_major_descriptor(q_tile, TileQ, q_row, d),
          tile::row_major_descriptor(kv_tile(Part::k, ring.stage), TileKv, 0, d), d > 0);
    }
    block.wgmma_commit();
  }

  /// Begins O += P·V.
  template <class Block>
  KOKKOS_INLINE_FUNCTION static void begin_values(Block& block, float (&o)[HeadDim / 8][4],
                                                  const std::uint32_t (&p)[TileKv / 16][4],
                                                  const Ring& ring) {
    block.barrier_wait(full(Part::v, ring.stage), ring.phase);
    block.wgmma_fence();
    constexpr int whole = HeadDim / tile::stripe_columns * tile::stripe_columns;
    KATT_UNROLL for (int j = 0; j < TileKv; j += 16) {
      const unsigned tile = kv_tile(Part::v, ring.stage);
      block.template wgmma<T, whole, 0>(o, p[j / 16],
                                        tile::column_major_descriptor(tile, TileKv, j, 0), true);
      if constexpr (whole < HeadDim) {
        block.template wgmma<T, HeadDim - whole, whole / 8>(
            o, p[j / 16], tile::column_major_descriptor(tile, TileKv, j, whole), true);
      }
    }
    block.wgmma_commit();
  }

  /// P in 16 bits, as the operand A of wgmma.
  template <class Block>
  KOKKOS_INLINE_FUNCTION static void round_to(const Block&, std::uint32_t (&p)[TileKv / 16][4],
                                              const float (&s)[TileKv / 8][4]) {
    KATT_UNROLL for (int j = 0; j < TileKv / 16; ++j) {
      KATT_UNROLL for (int i = 0; i < 4; ++i) p[j][i] = operand_a<T, Block>(s, j, i);
    }
  }
};

}  // namespace katt::attention::impl
