#pragma once

#include <cstdint>

#include <Kokkos_Core.hpp>

#include "ops/attention/mask.hpp"
#include "tile/cuda/fragments.hpp"

/// Divides the keys of all sequences among the blocks of a grid whose size does not depend on the
/// lengths: the blocks read the lengths where they run, so a captured launch fits every length.
namespace katt::attention::impl {

/// Work to divide: row tiles (batch entry, K/V head, sixteen packed query rows), each over
/// the keys that its batch entry sees, in units of `unit_keys`.
struct DecodeGrid {
  static constexpr int tile_rows = 16;

  int batch, kv_heads;
  int rows;       ///< packed query rows of a K/V head
  int row_tiles;  ///< of a K/V head
  int seq_q;
  int unit_keys;
  unsigned blocks;

  /// For `most_blocks` blocks, or fewer where there are never as many units.
  template <class Args>
  DecodeGrid(const Args& args, int keys_of_unit, std::int64_t most_blocks)
      : batch(static_cast<int>(args.batch())),
        kv_heads(static_cast<int>(args.kv_heads())),
        rows(static_cast<int>(args.seq_q() * (args.heads() / args.kv_heads()))),
        row_tiles((rows + tile_rows - 1) / tile_rows),
        seq_q(static_cast<int>(args.seq_q())),
        unit_keys(keys_of_unit),
        blocks(static_cast<unsigned>(Kokkos::min(most_blocks, most_units(args, keys_of_unit)))) {}

  /// Units of sequences of full length. They are counted in 32 bits.
  template <class Args>
  static std::int64_t most_units(const Args& args, int keys_of_unit) {
    const std::int64_t rows = args.seq_q() * (args.heads() / args.kv_heads());
    const std::int64_t units = (args.seq_kv() + keys_of_unit - 1) / keys_of_unit;
    return args.batch() * args.kv_heads() * ((rows + tile_rows - 1) / tile_rows) *
           Kokkos::max<std::int64_t>(1, units);
  }

  /// Row tiles of all batch entries.
  std::int64_t all_tiles() const { return std::int64_t{batch} * kv_heads * row_tiles; }
  /// Places for the partial results of pieces; see DecodeShare::slot().
  std::int64_t slots() const { return std::int64_t{2} * blocks; }

  KOKKOS_INLINE_FUNCTION unsigned tiles_of_entry() const {
    return static_cast<unsigned>(kv_heads * row_tiles);
  }
  KOKKOS_INLINE_FUNCTION int rows_of_tile(int row_tile) const {
    const int rest = rows - row_tile * tile_rows;
    return rest < tile_rows ? rest : tile_rows;
  }
  /// Units of keys of a row tile of batch entry b: one at least, so that every row is written.
  KOKKOS_INLINE_FUNCTION unsigned units(const Masks& masks, int b, unsigned& first) const {
    const IntervalMask mask = masks.of(b).interval;
    const auto unit = static_cast<unsigned>(unit_keys);
    const KeyRange live = mask.live(0, seq_q - 1);
    first = position<unsigned>(live.begin, mask.keys) / unit;
    const unsigned end = (position<unsigned>(live.end, mask.keys) + unit - 1) / unit;
    return end > first ? end - first : 1;
  }
};

/// The share of a block: units [begin, end) of all, row tile after row tile, in pieces of one row
/// tile each. Blocks get equal numbers of units but for one.
class DecodeShare {
 public:
  template <class Block>
  KOKKOS_INLINE_FUNCTION DecodeShare(Block& block, const DecodeGrid& grid, const Masks& masks,
                                     unsigned index)
      : grid_(grid), index_(index) {
    const Scan first(block, grid, masks, 0);
    unsigned all = first.sum;
    for (int b = lanes; b < grid.batch; b += lanes) all += Scan(block, grid, masks, b).sum;
    small_ = all / grid.blocks;
    larger_ = all % grid.blocks;
    at_ = index * small_ + Kokkos::min(index, larger_);
    end_ = at_ + small_ + (index < larger_ ? 1 : 0);
    if (valid()) find(block, masks, first);
  }

  KOKKOS_INLINE_FUNCTION bool valid() const { return at_ < end_; }
  KOKKOS_INLINE_FUNCTION void next(const Masks& masks) {
    at_ += count();
    unit_ = 0;
    if (!valid() || ++tile_ < grid_.tiles_of_entry()) return;
    tile_ = 0;
    units_ = grid_.units(masks, ++entry_, first_unit_);
  }

  KOKKOS_INLINE_FUNCTION int entry() const { return entry_; }
  KOKKOS_INLINE_FUNCTION int kv_head() const { return static_cast<int>(tile_) / grid_.row_tiles; }
  KOKKOS_INLINE_FUNCTION int row_tile() const { return static_cast<int>(tile_) % grid_.row_tiles; }
  /// The row tile among all.
  KOKKOS_INLINE_FUNCTION unsigned row() const {
    return static_cast<unsigned>(entry_) * grid_.tiles_of_entry() + tile_;
  }
  KOKKOS_INLINE_FUNCTION int key_begin() const {
    return static_cast<int>(first_unit_ + unit_) * grid_.unit_keys;
  }
  KOKKOS_INLINE_FUNCTION int key_end() const {
    return key_begin() + static_cast<int>(count()) * grid_.unit_keys;
  }

  /// True when the piece is all of the row tile.
  KOKKOS_INLINE_FUNCTION bool is_whole() const { return count() == units_; }
  /// Pieces of the row tile: one a block.
  KOKKOS_INLINE_FUNCTION unsigned pieces() const {
    return block_of(at_ - unit_ + units_ - 1) - block_of(at_ - unit_) + 1;
  }
  /// The place of this piece among the partial results: a block has two, as its first row tile may
  /// begin before, and its last one end behind its share.
  KOKKOS_INLINE_FUNCTION unsigned slot() const { return 2 * index_ + (unit_ == 0 ? 1 : 0); }
  /// The place of piece p of the row tile.
  KOKKOS_INLINE_FUNCTION unsigned slot_of(unsigned p) const {
    return 2 * (block_of(at_ - unit_) + p) + (p == 0 ? 1 : 0);
  }

 private:
  KOKKOS_INLINE_FUNCTION unsigned count() const { return Kokkos::min(units_ - unit_, end_ - at_); }
  KOKKOS_INLINE_FUNCTION unsigned block_of(unsigned unit) const {
    const unsigned in_larger = larger_ * (small_ + 1);
    return unit < in_larger ? unit / (small_ + 1) : larger_ + (unit - in_larger) / small_;
  }

  static constexpr int lanes = static_cast<int>(tile::warp_size);

  /// Units of a batch entry a lane, from entry `b` on.
  struct Scan {
    unsigned up_to;  ///< of the entries up to the lane's own
    unsigned sum;    ///< of all

    template <class Block>
    KOKKOS_INLINE_FUNCTION Scan(Block& block, const DecodeGrid& grid, const Masks& masks, int b) {
      const int lane = static_cast<int>(block.thread()) % lanes;
      unsigned first;
      const unsigned own =
          b + lane < grid.batch ? grid.units(masks, b + lane, first) * grid.tiles_of_entry() : 0;
      up_to = sum = own;
      for (int mask = 1; mask < lanes; mask *= 2) {
        const unsigned other = block.shuffle_xor(sum, mask);
        if ((lane & mask) != 0) up_to += other;
        sum += other;
      }
    }
  };

  /// The row tile of the first unit.
  template <class Block>
  KOKKOS_INLINE_FUNCTION void find(Block& block, const Masks& masks, Scan scan) {
    unsigned before = 0;  // units of the entries before those of the scan
    for (; at_ >= before + scan.sum; scan = Scan(block, grid_, masks, entry_)) {
      before += scan.sum;
      entry_ += lanes;
    }
    const bool is_before = before + scan.up_to <= at_;
    unsigned entries = is_before ? 1 : 0;
    unsigned units = is_before ? scan.up_to : 0;
    for (int mask = 1; mask < lanes; mask *= 2) {
      entries += block.shuffle_xor(entries, mask);
      units = Kokkos::max(units, block.shuffle_xor(units, mask));
    }
    entry_ += static_cast<int>(entries);
    units_ = grid_.units(masks, entry_, first_unit_);
    tile_ = (at_ - before - units) / units_;
    unit_ = (at_ - before - units) % units_;
  }

  const DecodeGrid& grid_;
  unsigned index_;
  unsigned small_, larger_;  ///< units of a block; blocks that have one more
  unsigned at_, end_;        ///< units
  int entry_ = 0;
  unsigned tile_ = 0;        ///< row tile of the batch entry
  unsigned units_ = 0;       ///< of the row tile
  unsigned first_unit_ = 0;  ///< of its keys
  unsigned unit_ = 0;        ///< the first of the piece, from first_unit_ on
};

/// Counts the pieces of a row tile that are done, in memory that may hold anything: a count is
/// `epoch` + n. No two launches on one workspace share an epoch, except repetitions of a captured
/// one, which find the count that the last piece has reset.
struct PieceCounter {
  std::uint64_t* count;
  std::uint64_t epoch;
  unsigned pieces;

  /// Makes the count valid. Every piece calls it before it arrives: the first to come sets it.
  template <class Block>
  KOKKOS_INLINE_FUNCTION void prepare(Block& block) const {
    const std::uint64_t found = block.atomic_load(count);
    if (found - epoch >= pieces) block.atomic_replace(count, found, epoch);
  }
  /// True for the last piece.
  template <class Block>
  KOKKOS_INLINE_FUNCTION bool arrive(Block& block) const {
    if (block.atomic_add(count, 1) != epoch + pieces - 1) return false;
    block.atomic_exchange(count, epoch);
    return true;
  }
};

}  // namespace katt::attention::impl
