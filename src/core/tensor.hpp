#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>

#include "core/dtype.hpp"
#include "core/error.hpp"

namespace Kokkos {
template <class DataType, class... Properties>
class View;
}

namespace katt {

/// A tensor whose dtype is chosen at run time: pointer, dtype, extents and strides (in elements).
/// The axes stand in logical order, e.g. (batch, head, seq, dim), for every storage order; the last
/// axis is contiguous. It does not own its memory. Made from any Kokkos::View of float, f16 or
/// bf16; turned back into a View by view<T, MemorySpace>().
template <int Rank, bool Const>
struct BasicTensorRef {
  /// Pointer to the elements, to const ones for a readable tensor.
  using Pointer = std::conditional_t<Const, const void*, void*>;

  Pointer data = nullptr;                   ///< first element; null: no tensor
  Dtype dtype = Dtype::f32;                 ///< type of the elements
  std::array<std::int64_t, Rank> extent{};  ///< elements along each axis
  std::array<std::int64_t, Rank> stride{};  ///< elements from one to the next along each axis

  BasicTensorRef() = default;

  /// From a View. Throws InputError when the last axis is not contiguous.
  template <class T, class... Properties>
  requires is_element_v<typename Kokkos::View<T, Properties...>::non_const_value_type> &&
      (Kokkos::View<T, Properties...>::rank() == Rank) BasicTensorRef(
          const Kokkos::View<T, Properties...>& view)  // NOLINT(google-explicit-constructor)
      : data(view.data()), dtype(dtype_of<typename Kokkos::View<T, Properties...>::value_type>) {
    for (int axis = 0; axis < Rank; ++axis) {
      extent[axis] = static_cast<std::int64_t>(view.extent(axis));
      stride[axis] = static_cast<std::int64_t>(view.stride(axis));
    }
    if (extent[Rank - 1] > 1 && stride[Rank - 1] != 1) {
      throw InputError("tensor " + view.label() + ": its last axis has stride " +
                       std::to_string(stride[Rank - 1]) + ", expected 1");
    }
  }

  /// A dense row-major tensor at a pointer.
  BasicTensorRef(Pointer pointer, Dtype type, std::array<std::int64_t, Rank> extents)
      : data(pointer), dtype(type), extent(extents) {
    std::int64_t step = 1;
    for (int axis = Rank - 1; axis >= 0; --axis) {
      stride[axis] = step;
      step *= extents[axis];
    }
  }

  /// A writable tensor is also a readable one.
  template <bool OtherConst>
  requires(Const && !OtherConst) BasicTensorRef(
      const BasicTensorRef<Rank, OtherConst>& writable)  // NOLINT(google-explicit-constructor)
      : data(writable.data),
        dtype(writable.dtype),
        extent(writable.extent),
        stride(writable.stride) {}

  /// True when there is a tensor.
  explicit operator bool() const { return data != nullptr; }

  /// Number of elements: the product of the extents.
  std::int64_t size() const {
    std::int64_t count = 1;
    for (const std::int64_t n : extent) count *= n;
    return count;
  }

  /// The tensor as a View of element type T (core/views.hpp). Throws InputError when the tensor has
  /// another dtype; an absent tensor (no data) takes any type.
  template <class T, class MemorySpace>
  auto view() const;
};

/// A tensor that is written.
template <int Rank>
using TensorRef = BasicTensorRef<Rank, false>;
/// A tensor that is read.
template <int Rank>
using ConstTensorRef = BasicTensorRef<Rank, true>;

/// Scratch memory handed to an operation: bytes in the memory space of its execution space, aligned
/// to at least 64. The operation's workspace_bytes() says how many it needs.
struct Workspace {
  void* data = nullptr;   ///< first byte
  std::size_t bytes = 0;  ///< number of bytes

  Workspace() = default;
  /// Memory of the caller.
  Workspace(void* pointer, std::size_t size) : data(pointer), bytes(size) {}
  /// The memory of a View, which must outlive the operation.
  template <class... Properties>
  Workspace(
      const Kokkos::View<std::byte*, Properties...>& view)  // NOLINT(google-explicit-constructor)
      : data(view.data()), bytes(view.size()) {}
};

}  // namespace katt

#if !defined(KATT_BUILDING)
#include "core/views.hpp"  // for users: katt's own sources name what they need
#endif
