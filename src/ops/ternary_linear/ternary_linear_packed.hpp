#pragma once

#include <cstddef>

#include "ops/ternary_linear/ternary_linear.hpp"

/// The packed variants: x is quantised to bytes, rows of packed weights are unpacked in registers
/// and multiplied with integer dot products. Backward unpacks panels of columns into f32:
///   dx(:, panel) = dout · W(:, panel),  dweight(:, panel) = doutᵀ · x_d(:, panel)
/// so that no sum is split and nothing of the weight's size is stored.
namespace katt::ternary_linear::impl {

/// True when the forward pass multiplies on AMX tiles.
template <class Exec>
bool is_on_tiles(const ForwardArgs& args);

template <class Exec, class T>
std::size_t packed_forward_bytes(const Exec& exec, const ForwardArgs& args, PackFormat format);
template <class Exec, class T>
void packed_forward(const Exec& exec, const ForwardArgs& args, PackFormat format,
                    Workspace workspace);

template <class Exec, class T>
std::size_t packed_backward_bytes(const Exec& exec, const BackwardArgs& args, PackFormat format);
template <class Exec, class T>
void packed_backward(const Exec& exec, const BackwardArgs& args, PackFormat format,
                     Workspace workspace);

}  // namespace katt::ternary_linear::impl
