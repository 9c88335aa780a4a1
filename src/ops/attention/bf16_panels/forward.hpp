#pragma once

#include <cstddef>
#include <vector>

#include "core/status.hpp"
#include "core/variants.hpp"
#include "ops/attention/attention.hpp"

/// The flash variant of the forward pass in bf16 on packed panels (tile/bf16_engine.hpp).
namespace katt::attention::impl {

/// Query rows of a work item × keys between two additions to the output; the first is the default.
/// Results do not depend on tile_q.
const std::vector<Tile>& bf16_tile_list();

/// ok, or skipped: the tile is not in the list.
Status flash_bf16_supports(const ForwardArgs& args, Tile tile);

/// K and V packed into bf16 panels, and the scratch of every thread.
template <class Exec>
std::size_t flash_bf16_workspace_bytes(const Exec& exec, const ForwardArgs& args, Tile tile);

template <class Exec>
void flash_bf16_forward(const Exec& exec, const ForwardArgs& args, Tile tile, Workspace workspace);

}  // namespace katt::attention::impl
