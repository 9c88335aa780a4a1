#pragma once

#include <cstdint>

#include <Kokkos_Core.hpp>

#include "ops/attention/gpus.hpp"
#include "ops/attention/tensor_cores/frame.hpp"
#include "tile/cuda/fragments.hpp"

/// Flash attention, forward, with the matrix instructions of a warpgroup (Shah et al. 2024,
/// FlashAttention-3, arXiv:2407.08608): one warpgroup loads keys and values, the others compute, 64
/// query rows each, and the softmax of one tile overlaps with P·V of the tile before it.
///
///   loading:    for every live tile n: wait until its stage is free; K(n), V(n) into the stage
///   computing:  S = Q·K(0)ᵀ; softmax
///               for n = 1 …: begin S = Q·K(n)ᵀ;  begin O += P·V(n − 1);  softmax of S when it is
///                            there;  O = O·α when that is there
///               O += P·V(last);  out = O / l
///
/// A block is the kernel's only view of the machine: tile::WgmmaBlock on a device, the emulator of
/// the tests on the host.
namespace katt::attention::impl {

/// The resources of a block of compute capability 9.0 (ops/attention/gpus.hpp).
inline constexpr int hopper_block_shared_bytes = find_gpu("h100")->block_shared_bytes;

template <class T, int HeadDim, int TileQ, int TileKv, class Rule = NoRule>
struct FlashWgmma : TensorCoreForward<T, HeadDim, TileQ, Rule> {
  static_assert(TileQ % 64 == 0 && (TileKv == 64 || TileKv == 128));
  using Frame = TensorCoreForward<T, HeadDim, TileQ, Rule>;
  using typename Frame::QueryTile;
  using Frame::Frame;

  static constexpr int group_threads = 128;  ///< of a warpgroup
  static constexpr int computing_groups = TileQ / 64;
  static constexpr int threads = (1 + computing_groups) * group_threads;
  static constexpr int q_bytes = TileQ * HeadDim * 2;
  static constexpr int kv_bytes = TileKv * HeadDim * 2;
  /// As many as fit a block, two to four; supports() refuses the tile when two do not fit. The
  /// kernel announces a stage after the copy after next has begun, which needs a free stage: with
  /// three stages that is not the stage whose products are in progress.
  static constexpr int fitting_stages =
      (hopper_block_shared_bytes - q_bytes - 256) / (2 * kv_bytes);
  static constexpr int stages = Kokkos::min(Kokkos::max(fitting_stages, 2), 4);
  static constexpr int barrier_bytes = 4 * stages * 8;
  static constexpr int shared_bytes = q_bytes + 2 * stages * kv_bytes + barrier_bytes;
  static constexpr int blocks_per_multiprocessor = 1;

  /// Block `index` of the grid.
  template <class Block>
  KOKKOS_INLINE_FUNCTION void run(Block& block, std::int64_t index) const {
    if (block.thread() == 0) {
      for (unsigned stage = 0; stage < stages; ++stage) {
        for (const Part part : {Part::k, Part::v}) {
          block.barrier_init(full(part, stage), group_threads);
          block.barrier_init(empty(part, stage), computing_groups * 4);  // one lane a warp
        }
      }
    }
    block.barrier();
    const QueryTile item = this->query_tile(index);
    const EntryScores<T, Rule> scores = this->scores.of(item.batch);
    LiveKeys<int> tiles(scores.mask, item.first(), item.last(), TileKv);
    // 128 · 56 + 256 · 224 registers are those that 384 threads start with, 168 each.
    if (block.thread() < group_threads) {
      if constexpr (computing_groups == 2) block.template decrease_registers<56>();
      load(block, item, tiles);
    } else {
      if constexpr (computing_groups == 2) block.template increase_registers<224>();
      compute(block, item, scores, tiles);
    }
  }

 private:
  enum class Part : unsigned { k, v };

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

  /// The loading warpgroup. Copies are begun in the order K(0) with Q, V(0), K(1), V(1), …; the
  /// one before the last is waited for after each, so that two are always on their way.
  template <class Block>
  KOKKOS_INLINE_FUNCTION void load(Block& block, const QueryTile& item,
                                   LiveKeys<int>& tiles) const {
    const unsigned thread = block.thread();
    const auto announce = [&](unsigned copy) {  // 2·n is K(n), 2·n + 1 is V(n)
      block.fence_async_proxy();
      block.barrier_arrive(full(static_cast<Part>(copy % 2), copy / 2 % stages));
    };
    unsigned n = 0;
    for (; tiles.valid(); tiles.next(), ++n) {
      const unsigned stage = n % stages;
      KATT_NO_UNROLL for (unsigned part = 0; part < 2; ++part) {
        if (n >= stages) {
          block.barrier_wait(empty(static_cast<Part>(part), stage), (n / stages - 1) % 2);
        }
        this->template load_keys<group_threads, TileKv>(block, thread,
                                                        kv_tile(static_cast<Part>(part), stage),
                                                        part == 0 ? this->k : this->v, item, tiles);
        if (n == 0 && part == 0) {
          this->template load_queries<group_threads>(block, thread, q_tile, item);
        }
        block.commit();
        if (2 * n + part >= 2) {
          block.template wait<2>();
          announce(2 * n + part - 2);
        }
      }
    }
    if (n == 0) return;
    block.template wait<1>();
    announce(2 * n - 2);
    block.template wait<0>();
    announce(2 * n - 1);
  }

  /// A computing warpgroup: the rows of the tile from 64 times its number on.
  template <class Block>
  KOKKOS_INLINE_FUNCTION void compute(Block& block, const QueryTile& item,
                                      const EntryScores<T, Rule>& scores,
                                      LiveKeys<int>& tiles) const {
    const unsigned thread = block.thread() - group_threads;
    const unsigned lane = thread % tile::warp_size;
    const unsigned group_row = thread / group_threads * 64;
    const unsigned first_row = thread / tile::warp_size * 16;  // of the warp
    const int row = static_cast<int>(first_row + tile::accumulator_position(lane, 0).row);

    typename Frame::Softmax softmax(scores, item.packed, row, item.rows, lane);
    float o[HeadDim / 8][4];
    float s[TileKv / 8][4];
    std::uint32_t p[TileKv / 16][4];
    float rescale[2];
    clear(o);
    clear(s);

    const Turns turns{static_cast<int>(group_row / 64)};
    const auto release = [&](Part part, unsigned n) {
      if (lane == 0) block.barrier_arrive(empty(part, n % stages));
    };
    if (tiles.valid()) {
      turns.wait(block, 0);
      begin_scores(block, s, group_row, 0);
      turns.pass(block);
      block.template wgmma_wait<0>();
      block.hold(s);
      release(Part::k, 0);
      softmax.mask(s, tiles.state(), tiles.key(), tiles.columns());
      softmax.probabilities(block, s, rescale);  // O is still 0
      round(block, p, s);
      unsigned n = 0;
      for (tiles.next(); tiles.valid(); tiles.next()) {
        ++n;
        turns.wait(block, n);
        begin_scores(block, s, group_row, n);
        begin_values(block, o, p, n - 1);
        turns.pass(block);
        block.template wgmma_wait<1>();
        block.hold(s);
        release(Part::k, n);
        softmax.mask(s, tiles.state(), tiles.key(), tiles.columns());
        softmax.probabilities(block, s, rescale);
        // Over already, and so no wait: its branch keeps the compiler from moving the wait below
        // to before the softmax, which is to run beside P·V.
        block.barrier_wait(full(Part::v, (n - 1) % stages), (n - 1) / stages % 2);
        block.template wgmma_wait<0>();
        block.hold(o);
        block.hold(p);
        release(Part::v, n - 1);
        multiply_rows(o, rescale);
        round(block, p, s);
      }
      begin_values(block, o, p, n);
      block.template wgmma_wait<0>();
      block.hold(o);
      block.hold(p);
      turns.end(block);
    }
    // No warp of the group reads its queries any more.
    block.barrier_group(1 + static_cast<int>(group_row / 64), group_threads);
    softmax.finish(block);
    this->write(block, o, softmax, q_tile, first_row, item);
  }

  /// Two computing warpgroups begin their products alternately, 0, 1, 0, 1, …, so that the softmax
  /// of one runs beside the products of the other (ping-pong; Shah et al. 2024, FlashAttention-3,
  /// arXiv:2407.08608, section 3.1). A turn is one phase of a barrier that one group waits at and
  /// the other only arrives at; barriers 1 and 2 are those of the groups alone.
  struct Turns {
    int group;
    static constexpr bool taken = computing_groups == 2;

    /// For the turn of tile n; group 0 begins.
    template <class Block>
    KOKKOS_INLINE_FUNCTION void wait(const Block& block, unsigned n) const {
      if (taken && (group == 1 || n > 0)) block.barrier_group(3 + group, 2 * group_threads);
    }
    template <class Block>
    KOKKOS_INLINE_FUNCTION void pass(const Block& block) const {
      if (taken) block.barrier_group_arrive(4 - group, 2 * group_threads);
    }
    /// Takes the last turn that group 1 passed on: no barrier is left with arrivals.
    template <class Block>
    KOKKOS_INLINE_FUNCTION void end(const Block& block) const {
      if (taken && group == 0) block.barrier_group(3, 2 * group_threads);
    }
  };

  /// Begins S = Q·K(n)ᵀ.
  template <class Block>
  KOKKOS_INLINE_FUNCTION static void begin_scores(Block& block, float (&s)[TileKv / 8][4],
                                                  unsigned group_row, unsigned n) {
    block.barrier_wait(full(Part::k, n % stages), n / stages % 2);
    block.wgmma_fence();
    const unsigned q_row = Block::computed_here(group_row);
    KATT_UNROLL for (int d = 0; d < HeadDim; d += 16) {
      block.template wgmma<T, TileKv>(
          s, tile::row_major_descriptor(q_tile, TileQ, q_row, d),
          tile::row_major_descriptor(kv_tile(Part::k, n % stages), TileKv, 0, d), d > 0);
    }
    block.wgmma_commit();
  }

  /// Begins O += P·V(n).
  template <class Block>
  KOKKOS_INLINE_FUNCTION static void begin_values(Block& block, float (&o)[HeadDim / 8][4],
                                                  const std::uint32_t (&p)[TileKv / 16][4],
                                                  unsigned n) {
    constexpr int columns = HeadDim == 64 ? 64 : 128;
    static_assert(HeadDim % columns == 0 && HeadDim <= 256);
    const unsigned v_tile = kv_tile(Part::v, n % stages);
    block.barrier_wait(full(Part::v, n % stages), n / stages % 2);
    block.wgmma_fence();
    KATT_UNROLL for (int j = 0; j < TileKv; j += 16) {
      block.template wgmma<T, columns, 0>(
          o, p[j / 16], tile::column_major_descriptor(v_tile, TileKv, j, 0), true);
      if constexpr (HeadDim > columns) {
        block.template wgmma<T, columns, columns / 8>(
            o, p[j / 16], tile::column_major_descriptor(v_tile, TileKv, j, columns), true);
      }
    }
    block.wgmma_commit();
  }

  /// P in 16 bits, as the operand A of wgmma.
  template <class Block>
  KOKKOS_INLINE_FUNCTION static void round(const Block&, std::uint32_t (&p)[TileKv / 16][4],
                                           const float (&s)[TileKv / 8][4]) {
    KATT_UNROLL for (int j = 0; j < TileKv / 16; ++j) {
      KATT_UNROLL for (int i = 0; i < 4; ++i) p[j][i] = operand_a<T, Block>(s, j, i);
    }
  }
};

}  // namespace katt::attention::impl
