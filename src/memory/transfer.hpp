#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <span>
#include <type_traits>

#include <Kokkos_Core.hpp>

#include "core/device_instances.hpp"

namespace katt::memory {

namespace impl {

/// Host memory that the device of a memory space reads and writes directly.
template <class Exec>
struct StagingSpace {
  using type = Kokkos::HostSpace;
};
#if defined(KATT_HAS_CUDA)
template <>
struct StagingSpace<Kokkos::Cuda> {
  using type = Kokkos::CudaHostPinnedSpace;
};
#endif

/// Two instances on the same device whose copies need not follow each other.
template <class Exec>
std::array<Exec, 2> two_instances(const Exec& exec) {
#if defined(KATT_HAS_CUDA)
  if constexpr (std::is_same_v<Exec, Kokkos::Cuda>) {
    return {instance_on(exec.cuda_device()), instance_on(exec.cuda_device())};
  }
#endif
  return {exec, exec};
}

#if defined(KATT_HAS_CUDA)
/// An event that marks a position in a stream.
class Mark {
 public:
  explicit Mark(const Kokkos::Cuda& exec) {
    KOKKOS_IMPL_CUDA_SAFE_CALL(cudaSetDevice(exec.cuda_device()));
    KOKKOS_IMPL_CUDA_SAFE_CALL(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming));
    KOKKOS_IMPL_CUDA_SAFE_CALL(cudaEventRecord(event_, exec.cuda_stream()));
  }
  ~Mark() { (void)cudaEventDestroy(event_); }  // a stream that waits for it keeps waiting
  Mark(const Mark&) = delete;
  Mark& operator=(const Mark&) = delete;

  /// All later work of the instance waits for the mark.
  void hold_back(const Kokkos::Cuda& exec) const {
    KOKKOS_IMPL_CUDA_SAFE_CALL(cudaSetDevice(exec.cuda_device()));
    KOKKOS_IMPL_CUDA_SAFE_CALL(cudaStreamWaitEvent(exec.cuda_stream(), event_, 0));
  }

 private:
  cudaEvent_t event_ = nullptr;
};

/// Lets two devices read each other's memory, if they can. Without this the driver copies through
/// the host.
inline void connect(int device, int peer) {
  int can = 0;
  KOKKOS_IMPL_CUDA_SAFE_CALL(cudaDeviceCanAccessPeer(&can, device, peer));
  if (can == 0) return;
  KOKKOS_IMPL_CUDA_SAFE_CALL(cudaSetDevice(device));
  if (cudaDeviceEnablePeerAccess(peer, 0) != cudaSuccess)
    (void)cudaGetLastError();  // it is enabled already
}
#endif

/// All places that order copies. The tests switch off one place after the other, by its label, and
/// check that the result is then wrong.
struct Ordering {
  /// Waits for all work of the instance so far.
  template <class Exec>
  static void fence(const Exec& exec, const char* label) {
    exec.fence(label);
  }
#if defined(KATT_HAS_CUDA)
  /// Makes all work of `later` from here on follow all work of `earlier` so far.
  static void follow(const Kokkos::Cuda& later, const Kokkos::Cuda& earlier,
                     const char* /*label*/) {
    Mark(earlier).hold_back(later);
  }
#endif
};

}  // namespace impl

/// Copies bytes from the memory of one instance to the memory of another: on the same device, on
/// two devices, or on the host. The copy follows all earlier work of both instances, and all later
/// work of both follows the copy; on devices the call returns before the copy is done. The two
/// ranges must not overlap.
template <class Exec, class Ordering = impl::Ordering>
void copy(const Exec& from_exec, const void* from, const Exec& to_exec, void* to,
          std::size_t bytes) {
  if (bytes == 0) return;
  using Space = typename Exec::memory_space;
  using Unmanaged = Kokkos::MemoryTraits<Kokkos::Unmanaged>;
  const Kokkos::View<const std::byte*, Space, Unmanaged> source(static_cast<const std::byte*>(from),
                                                                bytes);
  const Kokkos::View<std::byte*, Space, Unmanaged> target(static_cast<std::byte*>(to), bytes);
#if defined(KATT_HAS_CUDA)
  if constexpr (std::is_same_v<Exec, Kokkos::Cuda>) {
    if (from_exec.cuda_device() != to_exec.cuda_device()) {
      impl::connect(to_exec.cuda_device(), from_exec.cuda_device());
    }
    Ordering::follow(to_exec, from_exec, "katt::memory::copy: what was done to the source");
    Kokkos::deep_copy(to_exec, target, source);
    Ordering::follow(from_exec, to_exec, "katt::memory::copy: what is done to it afterwards");
    return;
  }
#endif
  Ordering::fence(from_exec, "katt::memory::copy: before it");
  Kokkos::deep_copy(to_exec, target, source);
  Ordering::fence(to_exec, "katt::memory::copy: after it");
}

/// True when the host reads and writes the memory of an execution space directly.
template <class Exec>
inline constexpr bool host_accessible =
    Kokkos::SpaceAccessibility<Kokkos::DefaultHostExecutionSpace,
                               typename Exec::memory_space>::accessible;

/// Moves bytes between host memory and the memory of an execution space.
///
/// When the two differ, the bytes pass through two pinned chunks alternately, each with an instance
/// of its own: the device copies one while the host fills or empties the other. So the host's work
/// (a conversion, a read of a mapped file) and the copy overlap, and the driver never copies
/// pageable memory, which would stop everything. When the two are the same there are no chunks, and
/// the host works in place.
///
/// Every call first waits for all work of the given instance. upload() returns when the source may
/// change; work launched after wait(), or after the object's end, sees the bytes. download()
/// returns when the bytes are there. The first call that needs pinned memory allocates it, as
/// "katt::memory::transfer", and kept. One thread at a time.
template <class Exec, bool Staged = !host_accessible<Exec>, class Ordering = impl::Ordering>
class Transfer {
 public:
  /// The memory that bytes are moved to and from.
  using Space = typename Exec::memory_space;
  /// Bytes of a chunk unless the constructor is told another number.
  static constexpr std::size_t default_chunk_bytes = std::size_t{4} << 20;
  /// Chunks begin at multiples of this.
  static constexpr std::size_t alignment = 64;

  /// A chunk is rounded up to a multiple of `alignment`, 64 bytes.
  explicit Transfer(const Exec& exec, std::size_t chunk_bytes = default_chunk_bytes)
      : exec_(exec),
        chunk_bytes_((std::max<std::size_t>(chunk_bytes, 1) + alignment - 1) / alignment *
                     alignment) {}
  ~Transfer() { wait("katt::memory::transfer: uploads, at its end"); }
  Transfer(const Transfer&) = delete;
  Transfer& operator=(const Transfer&) = delete;

  /// Calls fill(offset, std::span<std::byte>) for chunk after chunk, in order, and copies each
  /// filled chunk to `to` + offset.
  template <class Fill>
  void upload(void* to, std::size_t bytes, Fill&& fill) {
    Ordering::fence(exec_, "katt::memory::transfer: before an upload");
    auto* const target = static_cast<std::byte*>(to);
    if constexpr (!Staged) {
      if (bytes > 0) fill(std::size_t{0}, std::span(target, bytes));
    } else {
      prepare(bytes);
      for (std::size_t offset = 0; offset < bytes; offset += chunk_bytes_) {
        Chunk& chunk = next();
        chunk.wait("katt::memory::transfer: a chunk to fill");
        const std::span<std::byte> host(chunk.memory.data(),
                                        std::min(chunk_bytes_, bytes - offset));
        fill(offset, host);
        Kokkos::deep_copy(chunk.exec, Device(target + offset, host.size()),
                          Host(host.data(), host.size()));
        chunk.busy = true;
      }
    }
  }

  /// Copies all bytes of `from` to `to`.
  void upload(void* to, std::span<const std::byte> from) {
    upload(to, from.size(), [&](std::size_t offset, std::span<std::byte> chunk) {
      std::memcpy(chunk.data(), from.data() + offset, chunk.size());
    });
  }

  /// Calls drain(offset, std::span<const std::byte>) for chunk after chunk, in order.
  template <class Drain>
  void download(const void* from, std::size_t bytes, Drain&& drain) {
    wait("katt::memory::transfer: uploads before a download");
    const auto* const source = static_cast<const std::byte*>(from);
    if constexpr (Staged) {
      if (bytes > 0 && bytes <= chunk_bytes_) {  // nothing would overlap: one wait for all
        prepare(bytes);
        Chunk& chunk = next();
        Kokkos::deep_copy(exec_, Host(chunk.memory.data(), bytes), ConstDevice(source, bytes));
        Ordering::fence(exec_, "katt::memory::transfer: a small download");
        drain(std::size_t{0}, std::span<const std::byte>(chunk.memory.data(), bytes));
        return;
      }
    }
    Ordering::fence(exec_, "katt::memory::transfer: before a download");
    if constexpr (!Staged) {
      if (bytes > 0) drain(std::size_t{0}, std::span(source, bytes));
    } else {
      prepare(bytes);
      const auto size_at = [&](std::size_t offset) {
        return std::min(chunk_bytes_, bytes - offset);
      };
      const auto start = [&](std::size_t offset) {
        if (offset >= bytes) return;
        Chunk& chunk = next();
        Kokkos::deep_copy(chunk.exec, Host(chunk.memory.data(), size_at(offset)),
                          ConstDevice(source + offset, size_at(offset)));
        chunk.busy = true;
      };
      start(0);
      for (std::size_t offset = 0; offset < bytes; offset += chunk_bytes_) {
        Chunk& chunk = chunks_[1 - turn_];  // the copy that was started last
        start(offset + chunk_bytes_);
        chunk.wait("katt::memory::transfer: a chunk to empty");
        drain(offset, std::span<const std::byte>(chunk.memory.data(), size_at(offset)));
      }
    }
  }

  /// Fills `to` with the bytes at `from`.
  void download(const void* from, std::span<std::byte> to) {
    download(from, to.size(), [&](std::size_t offset, std::span<const std::byte> chunk) {
      std::memcpy(to.data() + offset, chunk.data(), chunk.size());
    });
  }

  /// Waits until every upload has arrived.
  void wait() { wait("katt::memory::transfer: uploads"); }

 private:
  using Unmanaged = Kokkos::MemoryTraits<Kokkos::Unmanaged>;
  using Staging = typename impl::StagingSpace<Exec>::type;
  using Host = Kokkos::View<std::byte*, Staging, Unmanaged>;
  using Device = Kokkos::View<std::byte*, Space, Unmanaged>;
  using ConstDevice = Kokkos::View<const std::byte*, Space, Unmanaged>;

  struct Chunk {
    Exec exec;
    Kokkos::View<std::byte*, Staging> memory;
    bool busy = false;

    void wait(const char* label) {
      if (busy) Ordering::fence(exec, label);
      busy = false;
    }
  };

  void wait(const char* label) {
    for (Chunk& chunk : chunks_) chunk.wait(label);
  }

  void prepare(std::size_t bytes) {
    if (bytes == 0 || chunks_[0].memory.size() > 0) return;
    const std::array<Exec, 2> instances = impl::two_instances(exec_);
    for (std::size_t i = 0; i < chunks_.size(); ++i) {
      chunks_[i].exec = instances[i];
      chunks_[i].memory = decltype(Chunk::memory)(
          Kokkos::view_alloc(Kokkos::WithoutInitializing, "katt::memory::transfer"), chunk_bytes_);
    }
  }

  Chunk& next() {
    Chunk& chunk = chunks_[turn_];
    turn_ = 1 - turn_;
    return chunk;
  }

  Exec exec_;
  std::size_t chunk_bytes_;
  std::array<Chunk, 2> chunks_;
  std::size_t turn_ = 0;
};

}  // namespace katt::memory
