#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "core/error.hpp"
#include "core/tensor.hpp"

namespace katt {

/// "(2, 3)"
template <std::size_t Rank>
std::string shape_text(const std::array<std::int64_t, Rank>& extent) {
  std::string text = "(";
  for (std::size_t axis = 0; axis < Rank; ++axis) {
    text += (axis > 0 ? ", " : "") + std::to_string(extent[axis]);
  }
  return text + ")";
}

/// Throws InputError "OP: NAME: holds …, expected …" unless the tensor has this dtype and shape.
template <int Rank, bool Const>
void check_tensor(std::string_view op, std::string_view name,
                  const BasicTensorRef<Rank, Const>& tensor, Dtype dtype,
                  const std::array<std::int64_t, Rank>& expected) {
  if (tensor.extent == expected && tensor.dtype == dtype) return;
  const bool fits = tensor.extent == expected;
  const auto text = [&](const std::array<std::int64_t, Rank>& extent, Dtype of) {
    return fits ? std::string(name_of(of)) : shape_text(extent);
  };
  throw InputError(std::string(op) + ": " + std::string(name) + ": holds " +
                   (fits ? "" : "shape ") + text(tensor.extent, tensor.dtype) + ", expected " +
                   text(expected, dtype));
}

}  // namespace katt
