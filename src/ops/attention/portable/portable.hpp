#pragma once

#include <cstddef>

#include "core/status.hpp"
#include "op/variants.hpp"
#include "ops/attention/attention.hpp"
#include "ops/attention/backward.hpp"
#include "ops/attention/tile.hpp"

/// The variant "flash": the portable kernels of both passes, in every dtype on every backend.
namespace katt::attention::impl {

/// ok, or skipped: the tile does not fit the scratch memory of the device.
template <class Exec, class T>
Status flash_supports(const Exec& exec, const ForwardArgs& args, Tile tile);
template <class Exec, class T>
Status flash_supports(const Exec& exec, const BackwardArgs& args, Tile tile);

/// Tile scratch of every thread on a host; 0 on a device, where it is shared memory.
template <class Exec, class T>
std::size_t flash_workspace_bytes(const Exec& exec, const ForwardArgs& args, Tile tile);

template <class Exec, class T, class Rule>
void run_flash(const Exec& exec, const ForwardArgs& args, const Rule& rule, Tile tile,
               Workspace workspace);

/// Δ and RowShift of every row, and on a host partial dQ in f32 (a fixed number of copies, so linear in seq_q) and the tile
/// scratch of every thread.
template <class Exec, class T>
std::size_t flash_workspace_bytes(const Exec& exec, const BackwardArgs& args, Tile tile);

template <class Exec, class T, class Rule>
void run_flash(const Exec& exec, const BackwardArgs& args, const Rule& rule, Tile tile,
               Workspace workspace);

}  // namespace katt::attention::impl
