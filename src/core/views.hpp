#pragma once

#include <cstddef>
#include <type_traits>

#include <Kokkos_Core.hpp>

#include "core/tensor.hpp"

namespace katt {

namespace impl {

template <class T, int Rank>
struct pointer_to {
  using type = typename pointer_to<T*, Rank - 1>::type;
};
template <class T>
struct pointer_to<T, 0> {
  using type = T;
};

/// Throws InputError when a tensor is read as another dtype than its own.
[[noreturn]] void refuse_view(Dtype held, Dtype wanted);

}  // namespace impl

/// An unmanaged Kokkos::View of run-time strides: the form in which kernels see a tensor.
template <class T, int Rank, class MemorySpace>
using StridedView = Kokkos::View<typename impl::pointer_to<T, Rank>::type, Kokkos::LayoutStride,
                                 MemorySpace, Kokkos::MemoryTraits<Kokkos::Unmanaged>>;

template <int Rank, bool Const>
template <class T, class MemorySpace>
auto BasicTensorRef<Rank, Const>::view() const {
  using Element = std::conditional_t<Const, const T, T>;
  if (data != nullptr && dtype != dtype_of<T>) impl::refuse_view(dtype, dtype_of<T>);
  Kokkos::LayoutStride layout;
  for (int axis = 0; axis < Rank; ++axis) {
    layout.dimension[axis] = static_cast<std::size_t>(extent[axis]);
    layout.stride[axis] = static_cast<std::size_t>(stride[axis]);
  }
  return StridedView<Element, Rank, MemorySpace>(static_cast<Element*>(data), layout);
}

}  // namespace katt
