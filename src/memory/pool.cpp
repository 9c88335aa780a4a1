#include "memory/pool.hpp"

#include <algorithm>
#include <bit>
#include <limits>
#include <utility>

#include <nlohmann/json.hpp>

namespace katt::memory {

/// A multiple of 64 bytes with four significant bits, seven where it is large.
std::size_t reserved_bytes(std::size_t bytes) {
  constexpr std::size_t least = 64;
  constexpr std::size_t large = std::size_t{1} << 20;
  if (bytes == 0) return 0;
  if (bytes <= least) return least;
  const std::size_t step = std::max(least, std::bit_floor(bytes - 1) / (bytes > large ? 64 : 8));
  const std::size_t above = (bytes - 1) / step;  // (bytes + step − 1) may not fit
  constexpr std::size_t most = std::numeric_limits<std::size_t>::max();
  return above >= most / step ? most : (above + 1) * step;
}

namespace impl {

/// Shared by the pool and its blocks.
class PoolState : public std::enable_shared_from_this<PoolState> {
 public:
  PoolState(std::string label, std::size_t limit, PoolBackend backend)
      : label_(std::move(label)), backend_(std::move(backend)) {
    statistics_.limit_bytes = limit;
  }
  ~PoolState() {
    for (const auto& [size, cached] : cached_) backend_.free(cached.data, size);
  }
  PoolState(const PoolState&) = delete;
  PoolState& operator=(const PoolState&) = delete;

  PoolBlock allocate(std::size_t bytes, std::uint64_t instance, std::function<void()> fence) {
    PoolBlock block;
    if (bytes == 0) return block;
    const std::lock_guard lock(mutex_);
    const std::size_t reserved = reserved_bytes(bytes);
    block.data_ = take_cached(reserved, instance);
    if (block.data_ != nullptr) {
      ++statistics_.reused;
    } else {
      make_room(bytes, reserved);
      block.data_ = backend_.allocate(reserved);
      statistics_.reserved_bytes += reserved;
      statistics_.peak_reserved_bytes =
          std::max(statistics_.peak_reserved_bytes, statistics_.reserved_bytes);
    }
    ++statistics_.allocations;
    statistics_.live_bytes += bytes;
    statistics_.peak_bytes = std::max(statistics_.peak_bytes, statistics_.live_bytes);
    block.pool_ = shared_from_this();
    block.bytes_ = bytes;
    block.reserved_ = reserved;
    block.instance_ = instance;
    block.fence_ = std::move(fence);
    return block;
  }

  void give_back(PoolBlock& block) {
    const std::lock_guard lock(mutex_);
    statistics_.live_bytes -= block.bytes_;
    statistics_.cached_bytes += block.reserved_;
    cached_.emplace(block.reserved_, Cached{block.data_, block.instance_, std::move(block.fence_)});
  }

  void trim() {
    const std::lock_guard lock(mutex_);
    release(statistics_.cached_bytes);
  }

  PoolStatistics statistics() const {
    const std::lock_guard lock(mutex_);
    return statistics_;
  }

 private:
  struct Cached {
    void* data;
    std::uint64_t instance;       ///< the instance whose launches may still use it
    std::function<void()> fence;  ///< waits for these launches
  };

  /// A cached block of the size class: one of the same instance, else one of another instance after
  /// a fence of it.
  void* take_cached(std::size_t reserved, std::uint64_t instance) {
    const auto [begin, end] = cached_.equal_range(reserved);
    if (begin == end) return nullptr;
    auto chosen = std::find_if(
        begin, end, [&](const auto& entry) { return entry.second.instance == instance; });
    if (chosen == end) {
      chosen = begin;
      chosen->second.fence();
    }
    void* data = chosen->second.data;
    cached_.erase(chosen);
    statistics_.cached_bytes -= reserved;
    return data;
  }

  /// Returns cached blocks, the largest first, until `reserved` more bytes are within the limit.
  void make_room(std::size_t bytes, std::size_t reserved) {
    const std::size_t in_use = statistics_.reserved_bytes - statistics_.cached_bytes;
    if (reserved == std::numeric_limits<std::size_t>::max() || reserved > statistics_.limit_bytes ||
        in_use > statistics_.limit_bytes - reserved) {
      throw LimitError(label_ + ": " + std::to_string(bytes) + " bytes asked for with " +
                       std::to_string(statistics_.live_bytes) + " live, the limit is " +
                       std::to_string(statistics_.limit_bytes));
    }
    const std::size_t room = statistics_.limit_bytes - reserved;
    if (statistics_.reserved_bytes > room) release(statistics_.reserved_bytes - room);
  }

  void release(std::size_t bytes) {
    std::size_t released = 0;
    while (released < bytes && !cached_.empty()) {
      const auto largest = std::prev(cached_.end());
      largest->second.fence();
      backend_.free(largest->second.data, largest->first);
      released += largest->first;
      statistics_.reserved_bytes -= largest->first;
      statistics_.cached_bytes -= largest->first;
      cached_.erase(largest);
    }
  }

  std::string label_;
  PoolBackend backend_;
  mutable std::mutex mutex_;
  std::multimap<std::size_t, Cached> cached_;  ///< by size class
  PoolStatistics statistics_;
};

}  // namespace impl

double PoolStatistics::efficiency() const {
  if (reserved_bytes == 0) return 1;
  return static_cast<double>(live_bytes) / static_cast<double>(reserved_bytes);
}

double PoolStatistics::fragmentation() const {
  if (reserved_bytes == 0) return 0;
  return static_cast<double>(cached_bytes) / static_cast<double>(reserved_bytes);
}

std::string PoolStatistics::json() const {
  nlohmann::ordered_json limit;  // null: none
  if (limit_bytes != std::numeric_limits<std::size_t>::max()) limit = limit_bytes;
  return nlohmann::ordered_json{{"limit_bytes", limit},
                                {"live_bytes", live_bytes},
                                {"peak_bytes", peak_bytes},
                                {"reserved_bytes", reserved_bytes},
                                {"peak_reserved_bytes", peak_reserved_bytes},
                                {"cached_bytes", cached_bytes},
                                {"allocations", allocations},
                                {"reused", reused},
                                {"efficiency", efficiency()},
                                {"fragmentation", fragmentation()}}
      .dump();
}

PoolBlock::~PoolBlock() {
  if (pool_ != nullptr) pool_->give_back(*this);
}

PoolBlock::PoolBlock(PoolBlock&& other) noexcept { *this = std::move(other); }

PoolBlock& PoolBlock::operator=(PoolBlock&& other) noexcept {
  std::swap(pool_, other.pool_);
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  std::swap(reserved_, other.reserved_);
  std::swap(instance_, other.instance_);
  std::swap(fence_, other.fence_);
  return *this;
}

namespace {

/// The memory space in which an instance allocates: for CudaSpace, the memory of its device.
template <class MemorySpace, class Exec>
MemorySpace space_of(const Exec& exec) {
#if defined(KATT_HAS_CUDA)
  if constexpr (std::is_same_v<MemorySpace, Kokkos::CudaSpace>) {
    return MemorySpace::impl_create(exec.cuda_device(), exec.cuda_stream());
  }
#endif
  (void)exec;
  return MemorySpace();
}

}  // namespace

template <class MemorySpace>
MemoryPool<MemorySpace>::MemoryPool(const typename MemorySpace::execution_space& exec,
                                    const std::string& label, std::size_t limit_bytes)
    : label_(label),
      device_(Kokkos::SpaceAccessibility<Kokkos::HostSpace, MemorySpace>::accessible
                  ? -1
                  : device_of(exec)),
      state_(std::make_shared<impl::PoolState>(
          label, limit_bytes,
          // The copy of the instance keeps the stream on which its space may allocate.
          impl::PoolBackend{
              .allocate = [exec, space = space_of<MemorySpace>(exec), label](
                              std::size_t bytes) { return space.allocate(label.c_str(), bytes); },
              .free = [exec, space = space_of<MemorySpace>(exec), label](
                          void* data,
                          std::size_t bytes) { space.deallocate(label.c_str(), data, bytes); }})) {}

template <class MemorySpace>
PoolBlock MemoryPool<MemorySpace>::allocate(std::size_t bytes, int device, std::uint64_t instance,
                                            std::function<void()> fence) {
  if (device_ >= 0 && device != device_) {
    throw std::invalid_argument(label_ + ": a block for device " + std::to_string(device) +
                                " was asked for, the pool is of device " + std::to_string(device_));
  }
  return state_->allocate(bytes, instance, std::move(fence));
}

template <class MemorySpace>
void MemoryPool<MemorySpace>::trim() {
  state_->trim();
}

template <class MemorySpace>
PoolStatistics MemoryPool<MemorySpace>::statistics() const {
  return state_->statistics();
}

template class MemoryPool<Kokkos::HostSpace>;
#if defined(KATT_HAS_CUDA)
template class MemoryPool<Kokkos::CudaSpace>;
template class MemoryPool<Kokkos::CudaHostPinnedSpace>;
#endif

}  // namespace katt::memory
