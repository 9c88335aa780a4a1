#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include <Kokkos_Core.hpp>

#include "core/dtype.hpp"
#include "tile/convert.hpp"

namespace katt::nn {

/// A labelled block in the memory of an execution space, allocated through Kokkos, so that the
/// tracker sees it. Copies to and from the host wait for their end.
template <class Exec>
class DeviceMemory {
 public:
  using Space = typename Exec::memory_space;

  DeviceMemory() = default;
  /// Fills the block with zeros, or leaves it as it is.
  DeviceMemory(const std::string& label, std::size_t bytes, bool zeroed)
      : bytes_(bytes),
        view_(zeroed ? View(label, words(bytes))
                     : View(Kokkos::view_alloc(Kokkos::WithoutInitializing, label), words(bytes))) {
  }

  [[nodiscard]] std::byte* data() const { return reinterpret_cast<std::byte*>(view_.data()); }
  [[nodiscard]] std::size_t bytes() const { return bytes_; }
  /// Fills it with zeros; does not wait.
  void clear(const Exec& exec) const { Kokkos::deep_copy(exec, view_, std::uint64_t{0}); }

 private:
  // Fills words, because Kokkos fills element by element.
  using View = Kokkos::View<std::uint64_t*, Space>;
  static std::size_t words(std::size_t bytes) {
    return (bytes + sizeof(std::uint64_t) - 1) / sizeof(std::uint64_t);
  }

  std::size_t bytes_ = 0;
  View view_;
};

/// Copies a few bytes (token ids, a loss) between the host and the memory of an execution space, in
/// order with the instance's operations, and waits. Tensors go through a memory::Transfer.
template <class Exec>
void copy_to_host(const Exec& exec, const void* from, std::span<std::byte> to) {
  using Unmanaged = Kokkos::MemoryTraits<Kokkos::Unmanaged>;
  Kokkos::deep_copy(exec,
                    Kokkos::View<std::byte*, Kokkos::HostSpace, Unmanaged>(to.data(), to.size()),
                    Kokkos::View<const std::byte*, typename Exec::memory_space, Unmanaged>(
                        static_cast<const std::byte*>(from), to.size()));
  exec.fence("katt::nn::copy_to_host");
}

template <class Exec>
void copy_from_host(const Exec& exec, std::span<const std::byte> from, void* to) {
  using Unmanaged = Kokkos::MemoryTraits<Kokkos::Unmanaged>;
  Kokkos::deep_copy(
      exec,
      Kokkos::View<std::byte*, typename Exec::memory_space, Unmanaged>(static_cast<std::byte*>(to),
                                                                       from.size()),
      Kokkos::View<const std::byte*, Kokkos::HostSpace, Unmanaged>(from.data(), from.size()));
  exec.fence("katt::nn::copy_from_host");
}

/// Copies elements through a memory::Transfer: f32 on the host, the dtype in the memory of the
/// execution space.
template <class Transfer>
void read_elements(Transfer& transfer, const void* from, Dtype dtype, std::span<float> to) {
  visit_dtype(dtype, [&]<class T>() {
    if constexpr (std::is_same_v<T, float>) {
      transfer.download(from, std::as_writable_bytes(to));
    } else {
      transfer.download(from, to.size() * sizeof(T),
                        [&](std::size_t offset, std::span<const std::byte> bytes) {
                          const std::span<const T> chunk(reinterpret_cast<const T*>(bytes.data()),
                                                         bytes.size() / sizeof(T));
                          convert(chunk, to.subspan(offset / sizeof(T), chunk.size()));
                        });
    }
  });
}

/// Returns when `from` may change; the elements are there after transfer.wait().
template <class Transfer>
void write_elements(Transfer& transfer, std::span<const float> from, Dtype dtype, void* to) {
  visit_dtype(dtype, [&]<class T>() {
    if constexpr (std::is_same_v<T, float>) {
      transfer.upload(to, std::as_bytes(from));
    } else {
      transfer.upload(
          to, from.size() * sizeof(T), [&](std::size_t offset, std::span<std::byte> bytes) {
            const std::span<T> chunk(reinterpret_cast<T*>(bytes.data()), bytes.size() / sizeof(T));
            convert(from.subspan(offset / sizeof(T), chunk.size()), chunk);
          });
    }
  });
}

}  // namespace katt::nn
