#pragma once

#include <cstddef>
#include <vector>

#include "ops/attention/attention.hpp"
#include "tile/bf16_units.hpp"

/// The variants "flash_amx" and "flash_avx512_bf16" of the forward pass: bf16 on packed tiles
/// (tile/bf16_engine.hpp), one kernel for either unit.
namespace katt::attention::impl {

using tile::bf16_tiles::UnitName;

/// Query rows of a work item × keys between two additions to the output; the first is the default.
/// Results do not depend on tile_q.
const std::vector<Tile>& bf16_tile_list();

/// K and V packed into bf16 tiles, and the scratch of every thread.
template <class Exec>
std::size_t flash_bf16_workspace_bytes(const Exec& exec, const ForwardArgs& args, Tile tile,
                                       UnitName unit);

template <class Exec>
void flash_bf16_forward(const Exec& exec, const ForwardArgs& args, Tile tile, UnitName unit,
                        Workspace workspace);

}  // namespace katt::attention::impl
