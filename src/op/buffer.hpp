#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include <Kokkos_Core.hpp>

#include "core/dtype.hpp"
#include "core/execution.hpp"
#include "core/tensor.hpp"
#include "tile/convert.hpp"

namespace katt::bench {

/// Bytes in the memory of a backend, allocated through Kokkos under a label, so that the tracker
/// sees them; none for no bytes, where Kokkos would take 128 for its header. Copies to and from the
/// host wait for their end.
class Buffer {
 public:
  Buffer() = default;
  Buffer(const std::string& label, Backend backend, std::size_t bytes) {
    if (bytes == 0) return;
#if defined(KATT_HAS_CUDA)
    if (backend == Backend::cuda) {
      device_ = decltype(device_)(label, bytes);
      return;
    }
#endif
    (void)backend;
    host_ = decltype(host_)(label, bytes);
  }

  [[nodiscard]] std::byte* data() const {
#if defined(KATT_HAS_CUDA)
    if (device_.data() != nullptr) return device_.data();
#endif
    return host_.data();
  }
  [[nodiscard]] std::size_t size() const {
#if defined(KATT_HAS_CUDA)
    if (device_.data() != nullptr) return device_.size();
#endif
    return host_.size();
  }
  [[nodiscard]] Workspace workspace() const { return {data(), size()}; }

  /// To the bytes from `first` on.
  void upload(std::span<const std::byte> source, std::size_t first = 0) const {
    copy(source.data(), source.size(), first);
  }
  void download(std::span<std::byte> target) const { copy(target.data(), target.size(), 0); }

 private:
  template <class Pointer>
  void copy(Pointer pointer, std::size_t bytes, std::size_t first) const {
    if (bytes == 0) return;
    using Host = Kokkos::View<
        std::conditional_t<std::is_same_v<Pointer, const std::byte*>, const std::byte*, std::byte*>,
        Kokkos::HostSpace, Kokkos::MemoryTraits<Kokkos::Unmanaged>>;
    const Host host(pointer, bytes);
    const auto range = std::make_pair(first, first + bytes);
    const auto move = [&](const auto& view) {
      if constexpr (std::is_same_v<Pointer, const std::byte*>) {
        Kokkos::deep_copy(Kokkos::subview(view, range), host);
      } else {
        Kokkos::deep_copy(host, Kokkos::subview(view, range));
      }
    };
#if defined(KATT_HAS_CUDA)
    if (device_.data() != nullptr) return move(device_);
#endif
    move(host_);
  }

  Kokkos::View<std::byte*, Kokkos::HostSpace> host_;
#if defined(KATT_HAS_CUDA)
  Kokkos::View<std::byte*, Kokkos::CudaSpace> device_;
#endif
};

/// Storage order of a (batch, head, seq, dim) tensor.
enum class HeadLayout : std::uint8_t { bhsd, bshd };

/// A tensor that owns its memory on a backend. Values go in and out as float32 in logical,
/// row-major order; they are rounded to the dtype on the way in. Rows may lie `gap` elements further
/// apart than they are long; what lies between them is NaN.
template <int Rank>
class Tensor {
 public:
  Tensor() = default;
  Tensor(const std::string& label, Backend backend, Dtype dtype,
         std::array<std::int64_t, Rank> extents, HeadLayout layout = HeadLayout::bhsd,
         std::int64_t gap = 0) {
    auto spaced = extents;
    spaced[Rank - 1] += gap;
    ref_ = TensorRef<Rank>(nullptr, dtype, spaced);
    if constexpr (Rank == 4) {
      if (layout == HeadLayout::bshd) {
        ref_.stride[2] = spaced[1] * spaced[3];
        ref_.stride[1] = spaced[3];
      }
    }
    buffer_ = Buffer(label, backend, static_cast<std::size_t>(ref_.size()) * size_of(dtype));
    ref_.data = buffer_.data();
    ref_.extent = extents;
  }

  [[nodiscard]] const TensorRef<Rank>& ref() const { return ref_; }
  [[nodiscard]] std::size_t bytes() const { return buffer_.size(); }

  void upload(std::span<const float> values) const {
    std::vector<float> stored(elements(), std::numeric_limits<float>::quiet_NaN());
    reorder([&](std::size_t at, std::size_t logical) { stored[at] = values[logical]; });
    upload_stored(stored, 0);
  }

  /// `count` rows (of the last axis) of all values, from the row `first` on.
  void upload_rows(std::span<const float> values, std::int64_t first, std::int64_t count) const {
    const std::int64_t row = ref_.extent[Rank - 1];
    const auto part = [&](std::int64_t r, std::int64_t rows) {
      upload_stored(
          values.subspan(static_cast<std::size_t>(r * row), static_cast<std::size_t>(rows * row)),
          static_cast<std::size_t>(offset_of(r)));
    };
    bool is_dense = true;  // stored in the order of the values, without gaps
    for (int axis = Rank - 2; axis >= 0; --axis) {
      is_dense = is_dense && ref_.stride[axis] == ref_.stride[axis + 1] * ref_.extent[axis + 1];
    }
    if (is_dense) return part(first, count);
    for (std::int64_t r = first; r < first + count; ++r) part(r, 1);
  }

  /// Some values in the order of the storage, from its element `first` on.
  void upload_stored(std::span<const float> values, std::size_t first) const {
    const std::size_t at = first * size_of(ref_.dtype);
    if (ref_.dtype == Dtype::f32) return buffer_.upload(std::as_bytes(values), at);
    visit_half([&]<class T>() {
      std::vector<T> narrow(values.size());
      convert(values, std::span<T>(narrow));
      buffer_.upload(std::as_bytes(std::span(narrow)), at);
    });
  }

  [[nodiscard]] std::vector<float> download() const {
    const std::vector<float> stored = download_all();
    std::vector<float> values(static_cast<std::size_t>(ref_.size()));
    reorder([&](std::size_t at, std::size_t logical) { values[logical] = stored[at]; });
    return values;
  }

  /// True when nothing was written between the rows.
  [[nodiscard]] bool gaps_are_nan() const {
    std::vector<float> stored = download_all();
    reorder(
        [&](std::size_t at, std::size_t) { stored[at] = std::numeric_limits<float>::quiet_NaN(); });
    return std::all_of(stored.begin(), stored.end(), [](float x) { return std::isnan(x); });
  }

  /// Sets every byte to 0xFF: NaN in every dtype.
  void poison() const {
    const std::vector<std::byte> ones(buffer_.size(), std::byte{0xFF});
    buffer_.upload(ones);
  }

 private:
  [[nodiscard]] std::size_t elements() const { return buffer_.size() / size_of(ref_.dtype); }

  /// The element of the storage where row r of the last axis begins.
  [[nodiscard]] std::int64_t offset_of(std::int64_t r) const {
    std::int64_t offset = 0;
    for (int axis = Rank - 2; axis >= 0; --axis) {
      offset += r % ref_.extent[axis] * ref_.stride[axis];
      r /= ref_.extent[axis];
    }
    return offset;
  }

  /// Everything in the order of storage.
  [[nodiscard]] std::vector<float> download_all() const {
    std::vector<float> stored(elements());
    if (ref_.dtype == Dtype::f32) {
      buffer_.download(std::as_writable_bytes(std::span(stored)));
      return stored;
    }
    visit_half([&]<class T>() {
      std::vector<T> narrow(stored.size());
      buffer_.download(std::as_writable_bytes(std::span(narrow)));
      convert(std::span<const T>(narrow), std::span<float>(stored));
    });
    return stored;
  }

  template <class F>
  void visit_half(const F& f) const {
    if (ref_.dtype == Dtype::f16) return f.template operator()<f16>();
    f.template operator()<bf16>();
  }

  /// Calls f(storage index, logical index) for every element.
  template <class F>
  void reorder(const F& f) const {
    const auto row = static_cast<std::size_t>(ref_.extent[Rank - 1]);
    const std::int64_t rows = row == 0 ? 0 : ref_.size() / ref_.extent[Rank - 1];
    for (std::int64_t r = 0; r < rows; ++r) {
      const std::int64_t offset = offset_of(r);
      for (std::size_t c = 0; c < row; ++c) {
        f(static_cast<std::size_t>(offset) + c, static_cast<std::size_t>(r) * row + c);
      }
    }
  }

  Buffer buffer_;
  TensorRef<Rank> ref_;
};

}  // namespace katt::bench
