#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>

#include <Kokkos_Core.hpp>

#include "core/device_instances.hpp"
#include "core/tensor.hpp"

namespace katt::memory {

/// The requests to a pool, and the memory that it holds.
struct PoolStatistics {
  std::size_t limit_bytes = 0;     ///< most that may be reserved
  std::size_t live_bytes = 0;      ///< requested and not yet given back
  std::size_t peak_bytes = 0;      ///< largest live_bytes so far
  std::size_t reserved_bytes = 0;  ///< taken from the memory space: in use, rounded up, or cached
  std::size_t peak_reserved_bytes = 0;  ///< largest reserved_bytes so far
  std::size_t cached_bytes = 0;         ///< reserved, and not in use
  std::uint64_t allocations = 0;        ///< blocks handed out
  std::uint64_t reused = 0;             ///< blocks handed out without a call of the memory space

  /// live / reserved; 1 for an empty pool.
  [[nodiscard]] double efficiency() const;
  /// cached / reserved; 0 for an empty pool.
  [[nodiscard]] double fragmentation() const;
  /// A JSON object with all of the above, in bytes.
  [[nodiscard]] std::string json() const;
};

/// Bytes that a pool reserves for a request: its size class.
[[nodiscard]] std::size_t reserved_bytes(std::size_t bytes);

/// An allocation beyond a pool's limit. It leaves the pool unchanged.
class LimitError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

namespace impl {

/// The memory space and the order of work, without their types.
struct PoolBackend {
  std::function<void*(std::size_t)> allocate;
  std::function<void(void*, std::size_t)> free;
};

class PoolState;

}  // namespace impl

/// A block of a pool. Its destructor gives the bytes back. A block may outlive the pool object.
class PoolBlock {
 public:
  PoolBlock() = default;
  ~PoolBlock();
  /// Takes the memory of the other block, which is empty then.
  PoolBlock(PoolBlock&& other) noexcept;
  /// Gives its bytes back and takes the memory of the other block.
  PoolBlock& operator=(PoolBlock&& other) noexcept;
  PoolBlock(const PoolBlock&) = delete;
  PoolBlock& operator=(const PoolBlock&) = delete;

  /// First byte; null for an empty block.
  [[nodiscard]] std::byte* data() const { return static_cast<std::byte*>(data_); }
  [[nodiscard]] std::size_t size() const { return bytes_; }  ///< bytes requested
  /// The block as the workspace of an operation.
  [[nodiscard]] Workspace workspace() const { return {data_, bytes_}; }

 private:
  friend class impl::PoolState;
  std::shared_ptr<impl::PoolState> pool_;
  void* data_ = nullptr;
  std::size_t bytes_ = 0;     ///< bytes requested
  std::size_t reserved_ = 0;  ///< bytes of its size class
  std::uint64_t instance_ = 0;
  std::function<void()> fence_;
};

/// Memory of one memory space with a limit, shared by the copies of the object and kept for reuse:
/// every step needs workspaces and activations again, and they should cost neither a call of the
/// allocator nor a hidden fence.
///
/// The pool rounds a request up to a size class (at least 64 bytes): at most an eighth larger, and
/// beyond 1 MiB at most a 64th. So a freed block serves requests of about its size. Blocks come
/// from Kokkos under the pool's label, so the tracker counts the reserved bytes. When a request
/// would exceed the limit, the pool first returns cached blocks to the memory space, and throws
/// LimitError only if that is not enough.
///
/// Execution space instances order the work. A block may be freed while kernels of an instance
/// still use it: the pool hands it out at once to the same instance, whose launches follow in
/// order, and to another instance after a fence of the first one. Thread safe.
///
/// A pool belongs to one device. Each of several devices has a pool of its own, with its own limit.
template <class MemorySpace>
class MemoryPool {
 public:
  /// The limit of a pool without one.
  static constexpr std::size_t unlimited = std::numeric_limits<std::size_t>::max();

  /// A pool of the device that Kokkos was initialised with.
  explicit MemoryPool(const std::string& label, std::size_t limit_bytes = unlimited)
      : MemoryPool(typename MemorySpace::execution_space(), label, limit_bytes) {}
  /// A pool of the device of an instance (core/device_instances.hpp).
  MemoryPool(const typename MemorySpace::execution_space& exec, const std::string& label,
             std::size_t limit_bytes = unlimited);
  /// Without a limit.
  MemoryPool() : MemoryPool("katt::memory::pool") {}

  /// A block for use on an instance, aligned to 64 bytes; its content is undefined. A request of 0
  /// bytes gives an empty block. Throws LimitError beyond the limit, std::bad_alloc when the memory
  /// space has no more, and std::invalid_argument for an instance on another device.
  template <class Exec>
  [[nodiscard]] PoolBlock allocate(const Exec& exec, std::size_t bytes) {
    static_assert(Kokkos::SpaceAccessibility<Exec, MemorySpace>::accessible);
    return allocate(bytes, device_of(exec), instance_of(exec),
                    [exec] { exec.fence("katt::memory::pool: block changes its instance"); });
  }

  /// Returns all cached blocks to the memory space.
  void trim();

  /// Counts and bytes so far.
  [[nodiscard]] PoolStatistics statistics() const;

 private:
  [[nodiscard]] PoolBlock allocate(std::size_t bytes, int device, std::uint64_t instance,
                                   std::function<void()> fence);
  // Kokkos gives its tools the same id for all OpenMP instances.
  template <class Exec>
  static std::uint64_t instance_of(const Exec& exec) {
    return reinterpret_cast<std::uintptr_t>(exec.impl_internal_space_instance());
  }

  std::string label_;
  int device_;  ///< device that owns the memory; -1: the host's, for every device
  std::shared_ptr<impl::PoolState> state_;
};

}  // namespace katt::memory
