#pragma once

#include <cstdint>

#include <Kokkos_Core.hpp>

#include "ops/attention/gpus.hpp"
#include "tile/divider.hpp"

namespace katt::attention::impl {

/// The tiles of rows of all heads, in the order in which blocks take them: persistent blocks, a tile
/// a round, or a block a tile.
///
/// Heads are taken in sections. In a section the tiles go from the last rows, which see the most keys
/// under a causal mask, to the first, and the heads of a row of tiles follow each other. Every other
/// round walks backwards over persistent blocks (0 … P − 1, P − 1 … 0, …), so that the sums of lengths
/// are nearly equal. Where tiles differ in length persistent blocks need one section of all heads, or
/// the lengths add up differently in every block (to 0.84 of the even share, 16 heads of 8192 causal
/// queries on 132 multiprocessors).
class LongestFirst {
 public:
  /// Bytes of a section that stay in the L2 cache: about half of an H100's 50 MB.
  static constexpr std::int64_t cached_bytes = std::int64_t{25} << 20;

  struct Tile {
    std::uint32_t head;  ///< of batch · kv_heads
    std::uint32_t row_tile;
  };

  /// section: heads of one; most_blocks: of the grid.
  LongestFirst(std::int64_t heads, std::int64_t row_tiles, std::int64_t section,
               std::uint32_t most_blocks = UINT32_MAX)
      : tiles_(static_cast<std::uint32_t>(heads * row_tiles)),
        blocks_(Kokkos::min(tiles_, most_blocks)),
        row_tiles_(static_cast<std::uint32_t>(row_tiles)) {
    if (tiles_ == 0) return;
    section = Kokkos::min(section, heads);
    const std::int64_t rest = heads % section == 0 ? section : heads % section;
    last_section_ = static_cast<std::uint32_t>((heads - rest) / section);
    by_section_tiles_ = tile::Divider(static_cast<std::uint32_t>(section * row_tiles));
    by_heads_ = tile::Divider(static_cast<std::uint32_t>(section));
    by_last_heads_ = tile::Divider(static_cast<std::uint32_t>(rest));
  }

  /// The heads, at least one, whose rows of `head_bytes` a head stay in the L2 cache together.
  static std::int64_t cached(std::int64_t head_bytes) {
    return Kokkos::max<std::int64_t>(cached_bytes / Kokkos::max<std::int64_t>(head_bytes, 1), 1);
  }
  /// A block a tile, in sections that stay in cache, but of four tiles a multiprocessor at least, so
  /// that the last blocks of a section are short ones.
  static LongestFirst evenly(std::int64_t heads, std::int64_t row_tiles, std::int64_t head_bytes) {
    constexpr std::int64_t fewest = 4 * find_gpu("h100")->multiprocessors;
    const std::int64_t even = (fewest - 1) / Kokkos::max<std::int64_t>(row_tiles, 1) + 1;
    return {heads, row_tiles, Kokkos::max(cached(head_bytes), even)};
  }

  /// Blocks of the grid.
  KOKKOS_INLINE_FUNCTION std::uint32_t blocks() const { return blocks_; }
  KOKKOS_INLINE_FUNCTION std::uint32_t tiles() const { return tiles_; }
  KOKKOS_INLINE_FUNCTION std::uint32_t row_tiles() const { return row_tiles_; }

  /// The place in the order of what `block` does in a round; the rounds end where it is not below
  /// tiles().
  KOKKOS_INLINE_FUNCTION std::uint32_t place(std::uint32_t block, std::uint32_t round) const {
    return round * blocks_ + (round % 2 == 0 ? block : blocks_ - 1 - block);
  }

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
