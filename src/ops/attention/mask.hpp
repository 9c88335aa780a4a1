#pragma once

#include <cstdint>

#include <Kokkos_Core.hpp>

#include "ops/attention/attention.hpp"

/// Masks as policies. A policy answers, for one batch entry, which key tiles are live for a range
/// of queries, and whether (i, j) is visible; the kernels know nothing else of causality, windows,
/// lengths or blocks.
namespace katt::attention::impl {

/// State of a tile: no pair visible, all pairs visible, or some.
enum class TileState { dead, full, partial };

/// State under an interval, which is not dead, and a block mask.
KOKKOS_INLINE_FUNCTION TileState both(TileState interval, TileState blocks) {
  return blocks == TileState::full ? interval : blocks;
}

/// Keys [begin, end) outside of which no query of a range sees anything.
struct KeyRange {
  std::int64_t begin = 0;
  std::int64_t end = 0;
};

/// Causality, sliding window and key length: the visible keys of query i are the interval
/// [max(0, i + offset − left), min(keys, i + offset + right + 1)).
struct IntervalMask {
  std::int64_t keys = 0;    ///< visible keys of this batch entry: kv_len, at most seq_kv
  std::int64_t offset = 0;  ///< kv_len − seq_q
  std::int64_t left = 0;    ///< so large that it never binds where there is no window
  std::int64_t right = 0;

  KOKKOS_INLINE_FUNCTION std::int64_t begin(std::int64_t i) const {
    return Kokkos::max<std::int64_t>(0, i + offset - left);
  }
  KOKKOS_INLINE_FUNCTION std::int64_t end(std::int64_t i) const {
    return Kokkos::min(keys, i + offset + right + 1);
  }
  /// The queries that see key j < keys, as far as there are such: [query_begin(j), query_end(j)).
  KOKKOS_INLINE_FUNCTION std::int64_t query_begin(std::int64_t j) const {
    return Kokkos::max<std::int64_t>(0, j - offset - right);
  }
  KOKKOS_INLINE_FUNCTION std::int64_t query_end(std::int64_t j) const {
    return j < keys ? j - offset + left + 1 : 0;
  }
  KOKKOS_INLINE_FUNCTION bool visible(std::int64_t i, std::int64_t j) const {
    return j >= begin(i) && j < end(i);
  }
  /// For queries first … last.
  KOKKOS_INLINE_FUNCTION KeyRange live(std::int64_t first, std::int64_t last) const {
    return {begin(first), end(last)};
  }
  /// For queries first … last and keys [key_begin, key_end).
  KOKKOS_INLINE_FUNCTION TileState tile(std::int64_t first, std::int64_t last,
                                        std::int64_t key_begin, std::int64_t key_end) const {
    if (key_end <= begin(first) || key_begin >= end(last)) return TileState::dead;
    return key_begin >= begin(last) && key_end <= end(first) ? TileState::full : TileState::partial;
  }
};

/// A mask of square blocks, all visible where there is none.
struct BlockMask {
  const std::uint8_t* blocks = nullptr;
  std::int64_t size = 1;
  std::int64_t columns = 0;

  KOKKOS_INLINE_FUNCTION bool visible(std::int64_t i, std::int64_t j) const {
    return blocks == nullptr || blocks[i / size * columns + j / size] != 0;
  }
  KOKKOS_INLINE_FUNCTION TileState tile(std::int64_t first, std::int64_t last,
                                        std::int64_t key_begin, std::int64_t key_end) const {
    if (blocks == nullptr) return TileState::full;
    bool any = false;
    bool all = true;
    for (std::int64_t r = first / size; r <= last / size; ++r) {
      for (std::int64_t c = key_begin / size; c <= (key_end - 1) / size; ++c) {
        const bool live = blocks[r * columns + c] != 0;
        any = any || live;
        all = all && live;
      }
    }
    return all ? TileState::full : any ? TileState::partial : TileState::dead;
  }
};

/// Walks over the block columns that a range of queries sees, dividing once a column: for kernels
/// whose tiles are smaller than a block.
class LiveColumns {
 public:
  KOKKOS_INLINE_FUNCTION LiveColumns(const BlockMask& mask, std::int64_t first, std::int64_t last)
      : mask_(mask), top_(first / mask.size), bottom_(last / mask.size) {}

  /// The first key from `key` on, below `end`, whose block any of the queries sees; `end` where
  /// there is none.
  KOKKOS_INLINE_FUNCTION std::int64_t next(std::int64_t key, std::int64_t end) {
    if (mask_.blocks == nullptr || key < column_end_) return key;
    for (std::int64_t c = key / mask_.size; c * mask_.size < end; ++c) {
      bool any = false;
      bool all = true;
      for (std::int64_t r = top_; r <= bottom_; ++r) {
        const bool live = mask_.blocks[r * mask_.columns + c] != 0;
        any = any || live;
        all = all && live;
      }
      if (!any) continue;
      column_end_ = (c + 1) * mask_.size;
      state_ = all ? TileState::full : TileState::partial;
      return Kokkos::max(key, c * mask_.size);
    }
    return end;
  }

  /// State of keys [key, key_end), where `key` is at or behind what next() gave.
  KOKKOS_INLINE_FUNCTION TileState tile(std::int64_t first, std::int64_t last, std::int64_t key,
                                        std::int64_t key_end) const {
    if (mask_.blocks == nullptr) return TileState::full;
    if (key >= column_end_ - mask_.size && key_end <= column_end_) return state_;
    return mask_.tile(first, last, key, key_end);
  }

 private:
  BlockMask mask_;
  std::int64_t top_;
  std::int64_t bottom_;
  std::int64_t column_end_ = 0;
  TileState state_ = TileState::full;
};

/// Both at once: what the arguments of attention can ask for, for one batch entry.
struct Mask {
  IntervalMask interval;
  BlockMask blocks;

  KOKKOS_INLINE_FUNCTION bool visible(std::int64_t i, std::int64_t j) const {
    return interval.visible(i, j) && blocks.visible(i, j);
  }
  KOKKOS_INLINE_FUNCTION KeyRange live(std::int64_t first, std::int64_t last) const {
    return interval.live(first, last);
  }
  KOKKOS_INLINE_FUNCTION TileState tile(std::int64_t first, std::int64_t last,
                                        std::int64_t key_begin, std::int64_t key_end) const {
    const TileState state = interval.tile(first, last, key_begin, key_end);
    if (state == TileState::dead) return state;
    return both(state, blocks.tile(first, last, key_begin, key_end));
  }
};

/// The masks of all batch entries.
struct Masks {
  std::int64_t seq_q = 0;
  std::int64_t seq_kv = 0;
  std::int64_t left = 0;
  std::int64_t right = 0;
  const std::int64_t* kv_len = nullptr;
  BlockMask blocks;

  /// From the arguments of either pass.
  template <class Args>
  explicit Masks(const Args& args)
      : seq_q(args.seq_q()), seq_kv(args.seq_kv()), kv_len(args.mask.kv_len) {
    constexpr std::int64_t unbounded = std::int64_t{1} << 40;  // beyond every position and length
    left = args.mask.window_left >= 0 ? Kokkos::min(args.mask.window_left, unbounded) : unbounded;
    right =
        args.mask.window_right >= 0 ? Kokkos::min(args.mask.window_right, unbounded) : unbounded;
    if (args.mask.causal) right = 0;
    if (args.mask.block_mask != nullptr) {
      const std::int64_t size = args.mask.block_size;
      blocks = {args.mask.block_mask, size, (seq_kv + size - 1) / size};
    }
  }

  KOKKOS_INLINE_FUNCTION Mask of(std::int64_t batch) const {
    const std::int64_t length = kv_len != nullptr ? kv_len[batch] : seq_kv;
    return {{Kokkos::min(length, seq_kv), length - seq_q, left, right}, blocks};
  }
};

/// The additive mask: its value at (batch, head, i, j), with axes of extent 1 broadcast by stride
/// 0.
template <class T>
struct Bias {
  const T* data = nullptr;
  std::int64_t stride_batch = 0;
  std::int64_t stride_head = 0;
  std::int64_t stride_query = 0;

  explicit Bias(const ConstTensorRef<4>& bias) : data(static_cast<const T*>(bias.data)) {
    stride_batch = bias.extent[0] == 1 ? 0 : bias.stride[0];
    stride_head = bias.extent[1] == 1 ? 0 : bias.stride[1];
    stride_query = bias.stride[2];
  }

  KOKKOS_INLINE_FUNCTION explicit operator bool() const { return data != nullptr; }
  KOKKOS_INLINE_FUNCTION const T* row(std::int64_t batch, std::int64_t head, std::int64_t i) const {
    return data + batch * stride_batch + head * stride_head + i * stride_query;
  }
};

}  // namespace katt::attention::impl
