#pragma once

#include <cstddef>
#include <vector>

#include "core/status.hpp"
#include "core/variants.hpp"
#include "ops/attention/backward.hpp"

/// The flash variant of the backward pass.
namespace katt::attention::impl {

template <class Exec, class T>
Status flash_supports(const Exec& exec, const BackwardArgs& args, Tile tile);

/// Δ, partial dQ in f32 (a fixed number of copies, so linear in seq_q), and on a host the tile
/// scratch of every thread.
template <class Exec, class T>
std::size_t flash_workspace_bytes(const Exec& exec, const BackwardArgs& args, Tile tile);

template <class Exec, class T, class Rule>
void run_flash(const Exec& exec, const BackwardArgs& args, const Rule& rule, Tile tile,
               Workspace workspace);

}  // namespace katt::attention::impl
