#pragma once

#include <cstddef>
#include <vector>

#include "core/status.hpp"
#include "core/variants.hpp"
#include "ops/attention/backward.hpp"

/// The flash variant of the backward pass.
namespace katt::attention::impl {

/// The tiles that can be asked for; the first is the default.
template <class Exec>
std::vector<Tile> flash_backward_tiles();

template <class Exec, class T>
Status flash_backward_supports(const Exec& exec, const BackwardArgs& args, Tile tile);

/// Δ, partial dQ in f32 (a fixed number of copies, so linear in seq_q), and on a host the tile
/// scratch of every thread.
template <class Exec, class T>
std::size_t flash_backward_workspace_bytes(const Exec& exec, const BackwardArgs& args, Tile tile);

template <class Exec, class T, class Rule>
void flash_backward(const Exec& exec, const BackwardArgs& args, const Rule& rule, Tile tile,
                    Workspace workspace);

}  // namespace katt::attention::impl
