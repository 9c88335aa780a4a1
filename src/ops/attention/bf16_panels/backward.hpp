#pragma once

#include <cstddef>

#include "core/status.hpp"
#include "core/variants.hpp"
#include "ops/attention/backward.hpp"

/// The flash variant of the backward pass in bf16 on packed panels.
namespace katt::attention::impl {

/// ok, or skipped: the tile is not in bf16_backward_tile_list().
Status flash_bf16_backward_supports(Tile tile);

/// Query rows × keys between two additions to the gradients; the first is the default.
const std::vector<Tile>& bf16_backward_tile_list();

/// Packed panels of q, k, v and dout, partial dQ in f32, and the scratch of every thread; linear in
/// the sequence lengths.
template <class Exec>
std::size_t flash_bf16_backward_workspace_bytes(const Exec& exec, const BackwardArgs& args,
                                                Tile tile);

template <class Exec>
void flash_bf16_backward(const Exec& exec, const BackwardArgs& args, Tile tile,
                         Workspace workspace);

}  // namespace katt::attention::impl
