#pragma once

#include <functional>
#include <list>
#include <memory>
#include <type_traits>
#include <utility>

#include <Kokkos_Core.hpp>

#include "core/device_instances.hpp"
#include "memory/transfer.hpp"
#include "ranks/operations.hpp"

/// The services that operations on device memory need, for one execution space.
namespace katt::ranks::impl {

/// Pinned chunks for an execution space whose memory the host cannot access.
template <class Exec>
class StagedDevice final : public Staging {
 public:
  explicit StagedDevice(const Exec& exec) : exec_(exec) {}

  std::byte* buffer(std::size_t bytes) override {
    return buffers_
        .emplace_back(Kokkos::view_alloc(Kokkos::WithoutInitializing, "katt::ranks::staging"),
                      bytes)
        .data();
  }
  void load(std::byte* host, const std::byte* device, std::size_t bytes) override {
    Kokkos::deep_copy(exec_, Host(host, bytes), ConstMemory(device, bytes));
  }
  void store(std::byte* device, const std::byte* host, std::size_t bytes) override {
    Kokkos::deep_copy(exec_, Memory(device, bytes), Host(const_cast<std::byte*>(host), bytes));
  }
  void wait() override { exec_.fence("katt::ranks: staging"); }

 private:
  using Unmanaged = Kokkos::MemoryTraits<Kokkos::Unmanaged>;
  using Pinned = typename memory::impl::StagingSpace<Exec>::type;
  using Host = Kokkos::View<std::byte*, Pinned, Unmanaged>;
  using Memory = Kokkos::View<std::byte*, typename Exec::memory_space, Unmanaged>;
  using ConstMemory = Kokkos::View<const std::byte*, typename Exec::memory_space, Unmanaged>;

  Exec exec_;
  std::list<Kokkos::View<std::byte*, Pinned>> buffers_;
};

#if defined(KATT_HAS_CUDA)

/// out_i ← Σ_r of rank r's part at i, r = 0, 1, …: one thread an element.
template <class T>
struct SumOfParts {
  Parts parts;
  T* out;

  KOKKOS_FUNCTION void operator()(std::int64_t i) const {
    float sum = 0;
    for (int r = 0; r < parts.ranks; ++r) {
      const std::byte* const part = r == parts.rank ? parts.own : parts.received + r * parts.slot;
      const auto term = static_cast<float>(reinterpret_cast<const T*>(part)[i]);
      sum = r == 0 ? term : sum + term;
    }
    out[i] = static_cast<T>(sum);
  }
};

class CudaQueue final : public Queue {
 public:
  explicit CudaQueue(Kokkos::Cuda exec) : exec_(std::move(exec)) {}

  void* stream() override { return exec_.cuda_stream(); }
  std::byte* buffer(std::size_t bytes) override {
    if (bytes > buffer_.size()) {
      exec_.fence("katt::ranks: a larger buffer");
      buffer_ = {};  // not both at a time
      buffer_ = decltype(buffer_)(
          Kokkos::view_alloc(exec_, Kokkos::WithoutInitializing, "katt::ranks::received"), bytes);
    }
    return buffer_.data();
  }
  void copy(std::byte* to, const std::byte* from, std::size_t bytes) override {
    using Unmanaged = Kokkos::MemoryTraits<Kokkos::Unmanaged>;
    if (to == from || bytes == 0) return;
    Kokkos::deep_copy(exec_, Kokkos::View<std::byte*, Kokkos::CudaSpace, Unmanaged>(to, bytes),
                      Kokkos::View<const std::byte*, Kokkos::CudaSpace, Unmanaged>(from, bytes));
  }
  void sum(const Parts& parts, std::int64_t count, Dtype dtype, std::byte* out) override {
    visit_dtype(dtype, [&]<class T>() {
      using Policy = Kokkos::RangePolicy<Kokkos::Cuda, Kokkos::IndexType<std::int64_t>>;
      Kokkos::parallel_for("katt::ranks::sum", Policy(exec_, 0, count),
                           SumOfParts<T>{parts, reinterpret_cast<T*>(out)});
    });
  }
  void wait() override { exec_.fence("katt::ranks: queue"); }

 private:
  Kokkos::Cuda exec_;
  Kokkos::View<std::byte*, Kokkos::CudaSpace> buffer_;
};

#endif

}  // namespace katt::ranks::impl
