#pragma once

#include <cstddef>
#include <vector>

#include "ops/attention/backward.hpp"
#include "tile/bf16_units.hpp"

/// The variants "flash_amx" and "flash_avx512_bf16" of the backward pass: bf16 on packed tiles.
namespace katt::attention::impl {

using tile::bf16_tiles::UnitName;

/// Query rows × keys between two additions to the gradients; the first is the default.
const std::vector<Tile>& bf16_backward_tile_list();

/// Packed tiles of q, k, v and dout, partial dQ in f32, and the scratch of every thread; linear in
/// the sequence lengths.
template <class Exec>
std::size_t flash_bf16_backward_workspace_bytes(const Exec& exec, const BackwardArgs& args,
                                                Tile tile, UnitName unit);

template <class Exec>
void flash_bf16_backward(const Exec& exec, const BackwardArgs& args, Tile tile, UnitName unit,
                         Workspace workspace);

}  // namespace katt::attention::impl
