#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <Kokkos_Core.hpp>

#include "core/tensor.hpp"
#include "memory/transfer.hpp"
#include "ops/attention/decode/paged.hpp"

namespace katt::nn {

namespace impl {
template <class T>
struct CacheTokens;
}

/// Extents of a KV cache.
struct KvCacheConfig {
  std::int64_t layers = 1;     ///< layers that have keys and values
  std::int64_t slots = 1;      ///< sequences that it holds at once
  std::int64_t kv_heads = 1;   ///< key/value heads of a layer
  std::int64_t head_dim = 64;  ///< elements of a head
  /// Tokens of a slot. Leave it 0 with a window: it is then sinks + window.
  std::int64_t capacity = 0;
  Dtype dtype = Dtype::f32;  ///< dtype of keys and values
  /// Tokens of a page; 0: contiguous, a slot is one page of its own.
  std::int64_t page_size = 0;
  /// Pages of a layer that the slots share; 0: enough for every slot to be full.
  std::int64_t pages = 0;
  /// Eviction (Xiao et al. 2023, StreamingLLM, arXiv:2309.17453): a longer sequence keeps its first
  /// `sinks` and its last `window` tokens. 0: nothing is evicted.
  std::int64_t window = 0;
  std::int64_t sinks = 0;  ///< first tokens that a window keeps, too
};

/// Bytes that a KvCache of this configuration allocates. Throws InputError for extents that make no
/// cache.
[[nodiscard]] std::size_t kv_cache_bytes(const KvCacheConfig& config);

/// Keys and values of the tokens that sequences have seen, for every layer, in the memory of an
/// execution space.
///
/// A sequence holds a slot from acquire() to release(). A step extends some slots by new tokens,
/// appends their K and V layer by layer, and attends:
///
///   cache.extend(exec, slots, counts);          // room, pages, lengths; or an InputError
///   cache.positions(exec, positions, count);    // for rope
///   for every layer:
///     cache.append(exec, layer, k, v);          // (batch, kv_heads, count, head_dim)
///     cache.read(layer, args);  attention::decode(exec, args, …);
///
/// Contiguous storage is paged storage with one page a slot. Token p of a sequence keeps its
/// absolute position p: the cache stores keys as given, after rope. With a window the storage
/// behind the sinks is a ring, token p at sinks + (p − sinks) mod window, so the cache never moves
/// tokens. The order of keys in memory then differs from the order of positions, so only masks that
/// do not depend on it are allowed: one new query a step, without causal mask or window.
///
/// A step of several tokens behind a full ring overwrites keys that its first queries would still
/// have seen: queries see the tokens that are kept after the step.
template <class Exec>
class KvCache {
 public:
  /// The memory that holds keys, values and tables.
  using Memory = typename Exec::memory_space;

  /// Allocates. Throws InputError for extents that make no cache.
  explicit KvCache(const KvCacheConfig& config);

  /// Makes the system clear the pages, before a timed region (memory/touch.hpp).
  void touch(const Exec& exec) const;

  /// A free slot, of length 0. Throws InputError when none is free.
  [[nodiscard]] std::int64_t acquire();
  /// Gives the slot and its pages back. Throws InputError when it is not in use.
  void release(std::int64_t slot);

  /// Begins a step: batch entry b is slot slots[b] and gets counts[b] ≥ 0 new tokens. Throws
  /// InputError, with nothing changed, when a slot is not in use or named twice, when the tokens
  /// exceed the capacity of a slot, or when too few pages are free. Tables are copied with exec.
  void extend(const Exec& exec, std::span<const std::int64_t> slots,
              std::span<const std::int64_t> counts);

  /// Writes the new tokens of the step: k, v (batch, kv_heads, ≥ largest count, head_dim) in the
  /// dtype of the cache, any strides; rows from counts[b] on are ignored. Launches and returns.
  void append(const Exec& exec, std::int64_t layer, const ConstTensorRef<4>& k,
              const ConstTensorRef<4>& v) const;

  /// Extends each slot by one token, for steps with the same launches every time: it copies nothing
  /// that advance() computes. Launch advance() before anything else of the step.
  void extend_by_one(const Exec& exec, std::span<const std::int64_t> slots);
  /// Makes every sequence of the batch one token longer, in the tables of the execution space.
  void advance(const Exec& exec) const;

  /// Does rope::forward() and append() in one launch, in a step of one token a sequence: turns q
  /// (batch, heads, 1, head_dim) in place by the row of its position in cos_sin, the table of
  /// rope::build_cache, and writes k, turned, and v. Half-rotation; the same bits as the two calls.
  void append_turned(const Exec& exec, std::int64_t layer, const TensorRef<4>& q,
                     const ConstTensorRef<4>& k, const ConstTensorRef<4>& v,
                     const ConstTensorRef<2>& cos_sin) const;

  /// positions[b · count + t] = absolute position of new token t of batch entry b, in the memory of
  /// the execution space; for t ≥ counts[b] it counts on.
  void positions(const Exec& exec, std::int64_t* positions, std::int64_t count) const;

  /// The tokens of the one sequence of the step's batch, in order, for attention that reads no pages:
  /// keys, values (1, kv_heads, length of the sequence, head_dim) in the dtype of the cache, any
  /// strides. Without a window. Launches and returns.
  void gather(const Exec& exec, std::int64_t layer, const TensorRef<4>& keys,
              const TensorRef<4>& values) const;

  /// Sets the pages, block table and key lengths of the arguments to the step's batch.
  void read(std::int64_t layer, attention::PagedArgs& args) const;

  /// K of a layer: (pages, kv_heads, page_size, head_dim); with contiguous storage
  /// (slots, kv_heads, capacity, head_dim), in the order of the slots.
  [[nodiscard]] ConstTensorRef<4> keys(std::int64_t layer) const { return tensor(keys_, layer); }
  /// V of a layer, as keys().
  [[nodiscard]] ConstTensorRef<4> values(std::int64_t layer) const {
    return tensor(values_, layer);
  }

  /// Tokens that the sequence of a slot has seen.
  [[nodiscard]] std::int64_t length(std::int64_t slot) const;
  /// Pages of a layer that no slot holds.
  [[nodiscard]] std::int64_t free_pages() const {
    return static_cast<std::int64_t>(free_pages_.size());
  }
  /// Bytes allocated: K, V and tables.
  [[nodiscard]] std::size_t bytes() const;
  /// The configuration with every extent filled in.
  [[nodiscard]] const KvCacheConfig& config() const { return config_; }

 private:
  struct Slot {
    bool used = false;
    std::int64_t length = 0;
    std::vector<std::int64_t> pages;
  };
  using Bytes = Kokkos::View<std::byte*, Memory>;
  using Table = Kokkos::View<std::int64_t*, Memory>;
  using StagedTable = Kokkos::View<std::int64_t*, typename memory::impl::StagingSpace<Exec>::type>;

  std::int64_t* begin() const { return tables_.data(); }  ///< (batch) length before the step
  std::int64_t* counts() const { return begin() + config_.slots; }  ///< (batch) new tokens
  std::int64_t* kept_lengths() const {
    return counts() + config_.slots;
  }                                    ///< (batch) keys after it
  std::int64_t* block_table() const {  ///< (batch, pages_per_slot)
    return kept_lengths() + config_.slots;
  }

  ConstTensorRef<4> tensor(const Bytes& storage, std::int64_t layer) const;
  template <class T>
  impl::CacheTokens<T> tokens_at(const ConstTensorRef<4>& keys,
                                 const ConstTensorRef<4>& values) const;
  bool counts_in_32_bits() const {
    return std::max(config_.capacity, config_.page_size) <= 0x7FFFFFFF;
  }
  const Slot& used(std::int64_t slot) const;
  std::int64_t kept(std::int64_t length) const;
  std::int64_t pages_for(std::int64_t length) const;
  std::int64_t take_page(std::int64_t slot);
  void take_step(std::span<const std::int64_t> slots, std::span<const std::int64_t> counts,
                 std::vector<std::int64_t>& next);
  void copy_tables(const Exec& exec);
  void check_step(std::span<const std::int64_t> slots, std::span<const std::int64_t> counts) const;
  void check_tokens(const char* name, const ConstTensorRef<4>& tokens) const;

  KvCacheConfig config_;
  std::int64_t pages_per_slot_ = 0;
  Bytes keys_, values_;  ///< (layers, pages, kv_heads, page_size, head_dim)
  std::vector<Slot> slots_;
  std::vector<std::int64_t> free_pages_;

  // The step: tables of its batch.
  std::int64_t batch_ = 0;
  std::int64_t largest_count_ = 0;
  Table tables_;                     ///< begin, counts, kept_lengths of `slots` each, block_table
  StagedTable staging_;              ///< copy of the tables for the device
  std::vector<std::int64_t> known_;  ///< tables on the device after all launched work
};

}  // namespace katt::nn
