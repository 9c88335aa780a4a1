#pragma once

#include <cstdint>

#include <Kokkos_Core.hpp>

#include "tile/divider.hpp"

namespace katt::attention::impl {

/// The tiles of query rows that a grid of persistent blocks walks through, a block a tile a round.
///
/// Heads are taken in sections whose keys and values fit the L2 cache together; where tiles differ
/// in length all heads are one section, or the lengths would add up differently in every block (to
/// 0.84 of the even share, 16 heads of 8192 causal queries on 132 multiprocessors). In a section the
/// tiles go from the last rows, which see the most keys under a causal mask, to the first, and the
/// heads of a row of tiles follow each other. Every other round walks backwards over the blocks
/// (0 … P − 1, P − 1 … 0, …), so that the sums of lengths are nearly equal.
class LongestFirst {
 public:
  /// Bytes of keys and values that stay in the L2 cache: about half of an H100's 50 MB.
  static constexpr std::int64_t cached_bytes = std::int64_t{25} << 20;

  struct Tile {
    std::uint32_t head;  ///< of batch · kv_heads
    std::uint32_t row_tile;
  };

  /// head_bytes: of the keys and values of a head; 0 makes one section.
  LongestFirst(std::int64_t heads, std::int64_t row_tiles, std::int64_t head_bytes, int most_blocks)
      : tiles_(static_cast<std::uint32_t>(heads * row_tiles)),
        blocks_(Kokkos::min(tiles_, static_cast<std::uint32_t>(most_blocks))),
        row_tiles_(static_cast<std::uint32_t>(row_tiles)) {
    if (tiles_ == 0) return;
    const std::int64_t fitting = cached_bytes / Kokkos::max<std::int64_t>(head_bytes, 1);
    const std::int64_t section = Kokkos::min(Kokkos::max<std::int64_t>(fitting, 1), heads);
    const std::int64_t rest = heads % section == 0 ? section : heads % section;
    last_section_ = static_cast<std::uint32_t>((heads - rest) / section);
    by_section_tiles_ = tile::Divider(static_cast<std::uint32_t>(section * row_tiles));
    by_heads_ = tile::Divider(static_cast<std::uint32_t>(section));
    by_last_heads_ = tile::Divider(static_cast<std::uint32_t>(rest));
  }

  /// Blocks of the grid.
  KOKKOS_INLINE_FUNCTION std::uint32_t blocks() const { return blocks_; }

  /// The place in the order of what `block` does in a round; the rounds end where it is not below
  /// tiles().
  KOKKOS_INLINE_FUNCTION std::uint32_t place(std::uint32_t block, std::uint32_t round) const {
    return round * blocks_ + (round % 2 == 0 ? block : blocks_ - 1 - block);
  }
  KOKKOS_INLINE_FUNCTION std::uint32_t tiles() const { return tiles_; }

  KOKKOS_INLINE_FUNCTION Tile at(std::uint32_t place) const {
    const std::uint32_t section = place / by_section_tiles_;
    const std::uint32_t in_section = place - section * by_section_tiles_.value();
    const tile::Divider& heads = section == last_section_ ? by_last_heads_ : by_heads_;
    const std::uint32_t row = in_section / heads;
    return {section * by_heads_.value() + in_section - row * heads.value(), row_tiles_ - 1 - row};
  }

 private:
  std::uint32_t tiles_, blocks_, row_tiles_;
  std::uint32_t last_section_ = 0;
  tile::Divider by_section_tiles_, by_heads_, by_last_heads_;
};

}  // namespace katt::attention::impl
