#include "nn/inference/kv_cache.hpp"

#include <algorithm>
#include <string>
#include <utility>

#include "core/check.hpp"
#include "core/error.hpp"
#include "core/execution.hpp"
#include "memory/touch.hpp"
#include "nn/arena.hpp"
#include "nn/inference/kv_cache_kernels.hpp"

namespace katt::nn {

namespace {

[[noreturn]] void fail(const std::string& message) { throw InputError("kv cache: " + message); }

std::string text(std::int64_t value) { return std::to_string(value); }

/// The configuration with every extent filled in. Throws InputError.
KvCacheConfig completed(KvCacheConfig c) {
  const auto positive = [](const char* name, std::int64_t value) {
    if (value <= 0) fail(std::string(name) + " " + text(value) + ": expected a positive number");
  };
  positive("layers", c.layers);
  positive("slots", c.slots);
  positive("kv_heads", c.kv_heads);
  if (c.head_dim <= 0 || c.head_dim > attention::max_head_dim || c.head_dim % 8 != 0) {
    fail("head_dim " + text(c.head_dim) + ": expected a multiple of 8 up to " +
         text(attention::max_head_dim));
  }
  if (c.window < 0) fail("window " + text(c.window) + ": expected 0 (none) or more");
  if (c.sinks < 0) fail("sinks " + text(c.sinks) + ": expected 0 or more");
  if (c.window == 0 && c.sinks > 0)
    fail("sinks " + text(c.sinks) + ": expected 0 without a window");
  if (c.window > 0) {
    if (c.capacity != 0 && c.capacity != c.sinks + c.window) {
      fail("capacity " + text(c.capacity) + ": expected sinks + window, " +
           text(c.sinks + c.window));
    }
    c.capacity = c.sinks + c.window;
  }
  positive("capacity", c.capacity);
  if (c.page_size < 0) fail("page_size " + text(c.page_size) + ": expected 0 (contiguous) or more");
  if (c.page_size == 0) {
    if (c.pages != 0) fail("pages " + text(c.pages) + ": expected 0 with contiguous storage");
    c.page_size = c.capacity;
  }
  if (c.pages < 0) fail("pages " + text(c.pages) + ": expected 0 (all) or more");
  if (c.pages == 0) c.pages = c.slots * ((c.capacity + c.page_size - 1) / c.page_size);
  return c;
}

/// True when a device moves the rows of all tensors by chunks.
template <class... Tensors>
bool are_whole_chunks(const Tensors&... tensors) {
  return ((tile::are_chunks(tensors) && tensors.stride[3] == 1) && ...);
}

/// Bytes of K, or of V, of a completed configuration.
std::size_t storage_bytes(const KvCacheConfig& c) {
  const TensorRef<5> storage =
      Arena().tensor<5>(c.dtype, {c.layers, c.pages, c.kv_heads, c.page_size, c.head_dim});
  return static_cast<std::size_t>(storage.size()) * size_of(c.dtype);
}

}  // namespace

std::size_t kv_cache_bytes(const KvCacheConfig& config) {
  const KvCacheConfig c = completed(config);
  const std::int64_t pages_per_slot = (c.capacity + c.page_size - 1) / c.page_size;
  const std::int64_t entries = c.slots * (pages_per_slot + 3);
  return 2 * storage_bytes(c) + static_cast<std::size_t>(entries) * sizeof(std::int64_t);
}

template <class Exec>
KvCache<Exec>::KvCache(const KvCacheConfig& config)
    : config_(completed(config)),
      pages_per_slot_((config_.capacity + config_.page_size - 1) / config_.page_size),
      slots_(static_cast<std::size_t>(config_.slots)) {
  const auto count = [](std::int64_t n) { return static_cast<std::size_t>(n); };
  const auto uninitialized = [](const char* label) {
    return Kokkos::view_alloc(std::string(label), Kokkos::WithoutInitializing);
  };
  const std::size_t storage = storage_bytes(config_);
  keys_ = Bytes(uninitialized("katt::kv_cache::keys"), storage);
  values_ = Bytes(uninitialized("katt::kv_cache::values"), storage);
  const std::size_t entries = count(config_.slots * (pages_per_slot_ + 3));
  tables_ = Table("katt::kv_cache::tables", entries);
  if constexpr (memory::host_accessible<Exec>) {
    staging_ = tables_;
  } else {
    staging_ = StagedTable(uninitialized("katt::kv_cache::staging"), entries);
  }
  for (std::int64_t page = config_.pages - 1; page >= 0; --page) free_pages_.push_back(page);
}

template <class Exec>
void KvCache<Exec>::touch(const Exec& exec) const {
  for (const Bytes& storage : {keys_, values_}) memory::touch(exec, storage.data(), storage.size());
}

template <class Exec>
std::int64_t KvCache<Exec>::acquire() {
  for (std::size_t s = 0; s < slots_.size(); ++s) {
    if (slots_[s].used) continue;
    slots_[s].used = true;
    return static_cast<std::int64_t>(s);
  }
  fail("no slot is free: all " + text(config_.slots) + " are in use");
}

template <class Exec>
void KvCache<Exec>::release(std::int64_t slot) {
  (void)used(slot);
  Slot& given = slots_[static_cast<std::size_t>(slot)];
  free_pages_.insert(free_pages_.end(), given.pages.rbegin(), given.pages.rend());
  given = {};
}

template <class Exec>
const typename KvCache<Exec>::Slot& KvCache<Exec>::used(std::int64_t slot) const {
  if (slot < 0 || slot >= config_.slots) {
    fail("slot " + text(slot) + ": expected one of 0 … " + text(config_.slots - 1));
  }
  const Slot& found = slots_[static_cast<std::size_t>(slot)];
  if (!found.used) fail("slot " + text(slot) + ": is not in use");
  return found;
}

template <class Exec>
std::int64_t KvCache<Exec>::kept(std::int64_t length) const {
  return std::min(length, config_.capacity);
}

template <class Exec>
std::int64_t KvCache<Exec>::pages_for(std::int64_t length) const {
  return (kept(length) + config_.page_size - 1) / config_.page_size;
}

/// A free page; with contiguous storage the page of the slot itself, so that slots lie in order.
template <class Exec>
std::int64_t KvCache<Exec>::take_page(std::int64_t slot) {
  const bool is_contiguous = pages_per_slot_ == 1 && config_.pages == config_.slots;
  const auto taken =
      is_contiguous ? std::ranges::find(free_pages_, slot) : std::prev(free_pages_.end());
  const std::int64_t page = *taken;
  free_pages_.erase(taken);
  return page;
}

template <class Exec>
void KvCache<Exec>::check_step(std::span<const std::int64_t> slots,
                               std::span<const std::int64_t> counts) const {
  if (slots.size() != counts.size()) {
    fail("counts: holds " + std::to_string(counts.size()) + " numbers, expected one for each of " +
         std::to_string(slots.size()) + " slots");
  }
  std::int64_t pages = 0;
  for (std::size_t b = 0; b < slots.size(); ++b) {
    const Slot& slot = used(slots[b]);
    if (std::find(slots.begin(), slots.begin() + static_cast<std::ptrdiff_t>(b), slots[b]) !=
        slots.begin() + static_cast<std::ptrdiff_t>(b)) {
      fail("slot " + text(slots[b]) + ": is named twice in one step");
    }
    if (counts[b] < 0) fail("counts: holds " + text(counts[b]) + ", expected 0 or more");
    if (config_.window == 0 && counts[b] > config_.capacity - slot.length) {
      fail("slot " + text(slots[b]) + " holds " + text(slot.length) + " tokens, " +
           text(counts[b]) + " more exceed its capacity of " + text(config_.capacity));
    }
    pages += pages_for(slot.length + counts[b]) - static_cast<std::int64_t>(slot.pages.size());
  }
  if (pages > free_pages()) {
    fail("the step needs " + text(pages) + " more pages of " + text(config_.page_size) +
         " tokens, " + text(free_pages()) + " of " + text(config_.pages) + " are free");
  }
}

/// Reserves room and pages for the step, and writes the tables of its batch into `next`, in the
/// form of the execution space's memory.
template <class Exec>
void KvCache<Exec>::take_step(std::span<const std::int64_t> slots,
                              std::span<const std::int64_t> counts,
                              std::vector<std::int64_t>& next) {
  check_step(slots, counts);
  batch_ = static_cast<std::int64_t>(slots.size());
  largest_count_ = 0;
  const auto most = static_cast<std::size_t>(config_.slots);
  const auto pages = static_cast<std::size_t>(pages_per_slot_);
  next.assign(3 * most + slots.size() * pages, 0);
  for (std::size_t b = 0; b < slots.size(); ++b) {
    Slot& slot = slots_[static_cast<std::size_t>(slots[b])];
    next[b] = slot.length;
    slot.length += counts[b];
    next[most + b] = counts[b];
    next[2 * most + b] = kept(slot.length);
    largest_count_ = std::max(largest_count_, counts[b]);
    while (static_cast<std::int64_t>(slot.pages.size()) < pages_for(slot.length)) {
      slot.pages.push_back(take_page(slots[b]));
    }
    std::ranges::copy(slot.pages, next.begin() + static_cast<std::ptrdiff_t>(3 * most + b * pages));
  }
}

template <class Exec>
void KvCache<Exec>::copy_tables(const Exec& exec) {
  exec.fence("katt::kv_cache: the copy before reads the same memory");
  std::ranges::copy(known_, staging_.data());
  const auto range = std::make_pair(std::size_t{0}, known_.size());
  Kokkos::deep_copy(exec, Kokkos::subview(tables_, range), Kokkos::subview(staging_, range));
}

template <class Exec>
void KvCache<Exec>::extend(const Exec& exec, std::span<const std::int64_t> slots,
                           std::span<const std::int64_t> counts) {
  take_step(slots, counts, known_);
  copy_tables(exec);
}

template <class Exec>
void KvCache<Exec>::extend_by_one(const Exec& exec, std::span<const std::int64_t> slots) {
  // advance() has produced the right tables, unless the batch or a page has changed.
  const std::vector<std::int64_t> ones(slots.size(), 1);
  std::vector<std::int64_t> next;
  take_step(slots, ones, next);
  const auto most = static_cast<std::size_t>(config_.slots);
  const auto advance_known = [&](std::int64_t by) {
    for (std::size_t b = 0; b < slots.size(); ++b) {
      known_[b] += by;
      known_[2 * most + b] = next[2 * most + b];
    }
  };
  if (known_.size() == next.size()) {
    advance_known(1);
    if (known_ == next) return;
  }
  known_ = std::move(next);
  for (std::size_t b = 0; b < slots.size(); ++b) --known_[b];
  copy_tables(exec);
  for (std::size_t b = 0; b < slots.size(); ++b) ++known_[b];
}

template <class Exec>
void KvCache<Exec>::advance(const Exec& exec) const {
  Kokkos::parallel_for("katt::kv_cache::advance",
                       Kokkos::RangePolicy<Exec, Kokkos::IndexType<std::int64_t>>(exec, 0, batch_),
                       impl::AdvanceLengths{begin(), kept_lengths(), config_.capacity});
}

template <class Exec>
template <class T>
impl::CacheTokens<T> KvCache<Exec>::tokens_at(const ConstTensorRef<4>& keys,
                                              const ConstTensorRef<4>& values) const {
  using Element = std::remove_const_t<T>;
  return {const_cast<Element*>(static_cast<const Element*>(keys.data)),
          const_cast<Element*>(static_cast<const Element*>(values.data)),
          block_table(),
          config_.kv_heads,
          config_.head_dim,
          pages_per_slot_,
          config_.page_size};
}

template <class Exec>
void KvCache<Exec>::append_turned(const Exec& exec, std::int64_t layer, const TensorRef<4>& q,
                                  const ConstTensorRef<4>& k, const ConstTensorRef<4>& v,
                                  const ConstTensorRef<2>& cos_sin) const {
  if (largest_count_ != 1) fail("append_turned: expected a step of a token each");
  const std::int64_t heads = q.extent[1];
  check_tensor("kv cache", "q", q, config_.dtype, {batch_, heads, 1, config_.head_dim});
  check_tensor("kv cache", "cos_sin", cos_sin, Dtype::f32, {cos_sin.extent[0], config_.head_dim});
  check_tokens("k", k);
  check_tokens("v", v);
  const ConstTensorRef<4> key_pages = keys(layer);
  const ConstTensorRef<4> value_pages = values(layer);
  visit_dtype(config_.dtype, [&]<class T>() {
    const impl::TurnAndAppend<Exec, T> rows{impl::TokenRows<T>(q),
                                            impl::TokenRows<const T>(k),
                                            impl::TokenRows<const T>(v),
                                            tokens_at<T>(key_pages, value_pages),
                                            static_cast<const float*>(cos_sin.data),
                                            begin(),
                                            heads,
                                            cos_sin.extent[0],
                                            {config_.sinks, config_.window}};
    const bool halves = config_.head_dim % (2 * tile::chunk_elements) == 0;
    impl::for_each_cache_row(
        exec, "katt::kv_cache::append_turned", batch_ * (heads + config_.kv_heads),
        config_.head_dim / (2 * tile::chunk_elements), rows,
        halves && counts_in_32_bits() && are_whole_chunks(q, k, v) && tile::are_chunks(cos_sin));
  });
}

template <class Exec>
void KvCache<Exec>::check_tokens(const char* name, const ConstTensorRef<4>& tokens) const {
  const std::int64_t count = std::max(tokens.extent[2], largest_count_);
  check_tensor("kv cache", name, tokens, config_.dtype,
               {batch_, config_.kv_heads, count, config_.head_dim});
}

template <class Exec>
void KvCache<Exec>::append(const Exec& exec, std::int64_t layer, const ConstTensorRef<4>& k,
                           const ConstTensorRef<4>& v) const {
  check_tokens("k", k);
  check_tokens("v", v);
  const ConstTensorRef<4> key_pages = keys(layer);
  const ConstTensorRef<4> value_pages = values(layer);
  visit_dtype(config_.dtype, [&]<class T>() {
    const impl::AppendRows<Exec, T> rows{k.view<T, Memory>(),
                                         v.view<T, Memory>(),
                                         tokens_at<T>(key_pages, value_pages),
                                         begin(),
                                         counts(),
                                         largest_count_,
                                         {config_.sinks, config_.window}};
    impl::for_each_cache_row(exec, "katt::kv_cache::append",
                             batch_ * config_.kv_heads * largest_count_,
                             config_.head_dim / tile::chunk_elements, rows,
                             counts_in_32_bits() && are_whole_chunks(k, v));
  });
}

template <class Exec>
void KvCache<Exec>::gather(const Exec& exec, std::int64_t layer, const TensorRef<4>& keys,
                           const TensorRef<4>& values) const {
  if (batch_ != 1 || config_.window > 0) {
    fail("gather: expected a step of one sequence, and no window");
  }
  const std::int64_t tokens = keys.extent[2];
  for (const TensorRef<4>& to : {keys, values}) {
    check_tensor("kv cache", "gather", to, config_.dtype,
                 {1, config_.kv_heads, tokens, config_.head_dim});
  }
  const ConstTensorRef<4> key_pages = this->keys(layer);
  const ConstTensorRef<4> value_pages = this->values(layer);
  visit_dtype(config_.dtype, [&]<class T>() {
    const impl::GatherRows<Exec, T> rows{tokens_at<const T>(key_pages, value_pages),
                                         keys.view<T, Memory>(), values.view<T, Memory>()};
    impl::for_each_cache_row(exec, "katt::kv_cache::gather", config_.kv_heads * tokens,
                             config_.head_dim / tile::chunk_elements, rows,
                             counts_in_32_bits() && are_whole_chunks(keys, values));
  });
}

template <class Exec>
void KvCache<Exec>::positions(const Exec& exec, std::int64_t* positions, std::int64_t count) const {
  const std::int64_t* begin = this->begin();
  Kokkos::parallel_for(
      "katt::kv_cache::positions",
      Kokkos::RangePolicy<Exec, Kokkos::IndexType<std::int64_t>>(exec, 0, batch_ * count),
      KOKKOS_LAMBDA(std::int64_t i) { positions[i] = begin[i / count] + i % count; });
}

template <class Exec>
void KvCache<Exec>::read(std::int64_t layer, attention::PagedArgs& args) const {
  args.k_pages = keys(layer);
  args.v_pages = values(layer);
  args.block_table = block_table();
  args.pages_per_sequence = pages_per_slot_;
  args.mask.kv_len = kept_lengths();
}

template <class Exec>
ConstTensorRef<4> KvCache<Exec>::tensor(const Bytes& storage, std::int64_t layer) const {
  if (layer < 0 || layer >= config_.layers) {
    fail("layer " + text(layer) + ": expected one of 0 … " + text(config_.layers - 1));
  }
  const std::size_t layer_bytes = storage.size() / static_cast<std::size_t>(config_.layers);
  return {storage.data() + static_cast<std::size_t>(layer) * layer_bytes,
          config_.dtype,
          {config_.pages, config_.kv_heads, config_.page_size, config_.head_dim}};
}

template <class Exec>
std::int64_t KvCache<Exec>::length(std::int64_t slot) const {
  return used(slot).length;
}

template <class Exec>
std::size_t KvCache<Exec>::bytes() const {
  return keys_.size() + values_.size() + tables_.size() * sizeof(std::int64_t);
}

#define KATT_INSTANTIATE_KV_CACHE(Exec) template class KvCache<Exec>;

KATT_FOR_EACH_EXEC(KATT_INSTANTIATE_KV_CACHE)

}  // namespace katt::nn
