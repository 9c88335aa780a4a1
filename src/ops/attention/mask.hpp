#pragma once

#include <cstdint>
#include <type_traits>

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
  std::int64_t left = 0;    ///< without a window so large that it never limits
  std::int64_t right = 0;

  KOKKOS_INLINE_FUNCTION std::int64_t begin(std::int64_t i) const {
    return Kokkos::max<std::int64_t>(0, i + offset - left);
  }
  KOKKOS_INLINE_FUNCTION std::int64_t end(std::int64_t i) const {
    return Kokkos::min(keys, i + offset + right + 1);
  }
  /// The queries that see key j < keys, if any: [query_begin(j), query_end(j)).
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

/// A mask of square blocks, all visible where there is none. Positions and the size are below 2^31
/// (check_mask()).
struct BlockMask {
  const std::uint8_t* blocks = nullptr;
  std::int64_t size = 1;
  std::int64_t columns = 0;
  bool has_partial = false;  ///< true: blocks that hold 2 are visible in part

  KOKKOS_INLINE_FUNCTION bool visible(std::int64_t i, std::int64_t j) const {
    return blocks == nullptr || blocks[block_of(i) * columns + block_of(j)] != 0;
  }
  /// Calls f(j) for the keys in [begin, end) whose blocks query i does not see, where there are
  /// blocks.
  template <class F>
  KOKKOS_INLINE_FUNCTION void for_each_hidden(std::int64_t i, std::int64_t begin, std::int64_t end,
                                              const F& f) const {
    if (begin >= end) return;
    const std::uint8_t* row = blocks + block_of(i) * columns;
    for (std::int64_t c = block_of(begin); begin < end; ++c) {
      const std::int64_t next = Kokkos::min(end, (c + 1) * size);
      if (row[c] == 0) {
        for (std::int64_t j = begin; j < next; ++j) f(j);
      }
      begin = next;
    }
  }
  KOKKOS_INLINE_FUNCTION TileState tile(std::int64_t first, std::int64_t last,
                                        std::int64_t key_begin, std::int64_t key_end) const {
    if (blocks == nullptr) return TileState::full;
    return of_blocks(block_of(first), block_of(last), block_of(key_begin), block_of(key_end - 1));
  }
  /// The state of the blocks in rows top … bottom and columns left … right.
  KOKKOS_INLINE_FUNCTION TileState of_blocks(std::int64_t top, std::int64_t bottom,
                                             std::int64_t left, std::int64_t right) const {
    bool any = false;
    bool all = true;
    for (std::int64_t r = top; r <= bottom; ++r) {
      for (std::int64_t c = left; c <= right; ++c) {
        const std::uint8_t state = blocks[r * columns + c];
        any = any || state != 0;
        all = all && (has_partial ? state == 1 : state != 0);
      }
    }
    return all ? TileState::full : any ? TileState::partial : TileState::dead;
  }
  /// In 32 bits: a device divides 64 in a function of its own.
  KOKKOS_FORCEINLINE_FUNCTION std::int64_t block_of(std::int64_t position) const {
    return static_cast<std::uint32_t>(position) / static_cast<std::uint32_t>(size);
  }
};

/// Both at once: every mask that the arguments of attention can express, for one batch entry.
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

/// A position clamped to [0, limit].
template <class Int>
KOKKOS_INLINE_FUNCTION Int position(std::int64_t value, std::int64_t limit) {
  return static_cast<Int>(Kokkos::min(Kokkos::max<std::int64_t>(value, 0), limit));
}

/// The tiles of `size` keys, of those in [begin, end), of which queries first … last see something,
/// in order; of these only every `step`-th from number `skip` on, where block masks hide none. Int:
/// of 32 bits when registers are scarce and positions are below 2^31.
template <class Int>
class LiveKeys {
 public:
  KOKKOS_INLINE_FUNCTION LiveKeys(const Mask& mask, std::int64_t first, std::int64_t last, int size,
                                  std::int64_t begin = 0, std::int64_t end = std::int64_t{1} << 40,
                                  int skip = 0, int step = 1)
      : blocks_(mask.blocks),
        top_(static_cast<Int>(mask.blocks.block_of(first))),
        bottom_(static_cast<Int>(mask.blocks.block_of(last))),
        size_(size),
        step_(size * step) {
    const IntervalMask& interval = mask.interval;
    end_ = position<Int>(Kokkos::min(interval.end(last), end), interval.keys);
    full_begin_ = position<Int>(interval.begin(last), interval.keys);
    full_end_ = position<Int>(interval.end(first), interval.keys);
    key_ = position<Int>(Kokkos::max(interval.begin(first), begin), interval.keys) / size * size;
    key_ += skip * size;
    column_ = static_cast<Int>(blocks_.block_of(key_));
    column_end_ = (column_ + 1) * static_cast<Int>(blocks_.size);
    skip_dead();
  }

  KOKKOS_INLINE_FUNCTION bool valid() const { return key_ < end_; }
  KOKKOS_INLINE_FUNCTION void next() {
    key_ += step_;
    skip_dead();
  }

  KOKKOS_INLINE_FUNCTION Int key() const { return key_; }
  /// Keys of the tile, at most `size`: the last tile may be ragged.
  KOKKOS_INLINE_FUNCTION int columns() const {
    return static_cast<int>(Kokkos::min<Int>(size_, end_ - key_));
  }
  /// full only when all `size` columns are visible to all queries.
  KOKKOS_INLINE_FUNCTION TileState state() const {
    return blocks_state_ == TileState::full && key_ >= full_begin_ && key_ + size_ <= full_end_
               ? TileState::full
               : TileState::partial;
  }

 private:
  /// Looks at a column of blocks once, not once a tile, and divides nowhere.
  KOKKOS_INLINE_FUNCTION void skip_dead() {
    if (blocks_.blocks == nullptr) return;
    for (; valid(); key_ += step_) {
      const Int last = key_ + columns();
      if (last > same_until_) {
        const auto size = static_cast<Int>(blocks_.size);
        for (; column_end_ <= key_; column_end_ += size) ++column_;
        Int right = column_;
        for (Int end = column_end_; end < last; end += size) ++right;
        blocks_state_ = blocks_.of_blocks(top_, bottom_, column_, right);
        same_until_ = right == column_ ? column_end_ : 0;
      }
      if (blocks_state_ != TileState::dead) return;
    }
  }

  const BlockMask& blocks_;
  Int top_, bottom_;  ///< rows of blocks
  int size_;
  int step_;
  Int key_ = 0;
  Int end_ = 0;         ///< of the keys that some query sees
  Int full_begin_ = 0;  ///< keys [full_begin, full_end) are seen by all queries
  Int full_end_ = 0;
  Int column_ = 0;      ///< of blocks, the tile's first
  Int column_end_ = 0;  ///< the first key behind it
  Int same_until_ = 0;  ///< up to which key blocks_state_ holds
  TileState blocks_state_ = TileState::full;
};

/// The tiles of `size` packed query rows (PackedRows) that see some key of [key, key_end), in order.
template <class Int>
class LiveQueries {
 public:
  KOKKOS_INLINE_FUNCTION LiveQueries(const Mask& mask, Int key, Int key_end, Int group, Int rows,
                                     int size)
      : blocks_(mask.blocks),
        key_(key),
        key_end_(key_end),
        group_(group),
        rows_(rows),
        size_(size) {
    const IntervalMask& interval = mask.interval;
    const Int queries = rows / group;
    // Keys beyond the visible ones have no queries; those before them see no fewer.
    const std::int64_t last = Kokkos::min<std::int64_t>(key_end, interval.keys) - 1;
    row_ = position<Int>(interval.query_begin(key), queries) * group / size * size;
    end_ = last < key ? 0 : position<Int>(interval.query_end(last), queries) * group;
    full_begin_ = position<Int>(interval.query_begin(key_end - 1), queries) * group;
    full_end_ =
        key_end > interval.keys ? 0 : position<Int>(interval.query_end(key), queries) * group;
    skip_dead();
  }

  KOKKOS_INLINE_FUNCTION bool valid() const { return row_ < end_; }
  KOKKOS_INLINE_FUNCTION void next() {
    row_ += size_;
    skip_dead();
  }
  KOKKOS_INLINE_FUNCTION Int row() const { return row_; }
  /// Rows of the tile, at most `size`.
  KOKKOS_INLINE_FUNCTION int count() const {
    return static_cast<int>(Kokkos::min<Int>(size_, rows_ - row_));
  }
  /// full only when all `size` rows see all keys.
  KOKKOS_INLINE_FUNCTION TileState state() const {
    return blocks_state_ == TileState::full && row_ >= full_begin_ && row_ + size_ <= full_end_
               ? TileState::full
               : TileState::partial;
  }

 private:
  KOKKOS_INLINE_FUNCTION void skip_dead() {
    using Unsigned = std::make_unsigned_t<Int>;
    if (blocks_.blocks == nullptr) return;
    for (; valid(); row_ += size_) {
      const auto group = static_cast<Unsigned>(group_);
      blocks_state_ =
          blocks_.tile(static_cast<Unsigned>(row_) / group,
                       static_cast<Unsigned>(row_ + count() - 1) / group, key_, key_end_);
      if (blocks_state_ != TileState::dead) return;
    }
  }

  const BlockMask& blocks_;
  Int key_, key_end_, group_, rows_;
  int size_;
  Int row_ = 0;
  Int end_ = 0;         ///< of the rows that see some key
  Int full_begin_ = 0;  ///< rows [full_begin, full_end) see all keys
  Int full_end_ = 0;
  TileState blocks_state_ = TileState::full;
};

/// The masks of all batch entries.
struct Masks {
  std::int64_t seq_q = 0;
  std::int64_t seq_kv = 0;
  std::int64_t left = 0;
  std::int64_t right = 0;
  const std::int64_t* kv_len = nullptr;
  BlockMask blocks;
  std::int64_t block_batch_stride = 0;
  std::int64_t block_head_stride = 0;

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
      // A larger block holds every position as well.
      const auto size = Kokkos::min<std::int64_t>(args.mask.block_size, 0x7FFFFFFF);
      blocks = {args.mask.block_mask, size, (seq_kv + size - 1) / size,
                args.mask.has_partial_blocks};
      block_batch_stride = args.mask.block_batch_stride;
      block_head_stride = args.mask.block_head_stride;
    }
  }

  /// The mask of a K/V head of a batch entry.
  KOKKOS_INLINE_FUNCTION Mask of(std::int64_t batch, std::int64_t kv_head = 0) const {
    const std::int64_t length = kv_len != nullptr ? kv_len[batch] : seq_kv;
    BlockMask own = blocks;
    if (own.blocks != nullptr) {
      own.blocks += batch * block_batch_stride + kv_head * block_head_stride;
    }
    return {{Kokkos::min(length, seq_kv), length - seq_q, left, right}, own};
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
