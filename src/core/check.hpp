#pragma once

#include <array>
#include <cstdint>
#include <string>

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
void check_tensor(const char* op, const char* name, const BasicTensorRef<Rank, Const>& tensor,
                  Dtype dtype, const std::array<std::int64_t, Rank>& expected) {
  const std::string where = std::string(op) + ": " + name + ": holds ";
  if (tensor.extent != expected) {
    throw InputError(where + "shape " + shape_text(tensor.extent) + ", expected " +
                     shape_text(expected));
  }
  if (tensor.dtype != dtype) {
    throw InputError(where + std::string(name_of(tensor.dtype)) + ", expected " +
                     std::string(name_of(dtype)));
  }
}

}  // namespace katt
