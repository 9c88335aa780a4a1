#pragma once

#include <cstddef>
#include <vector>

#include "core/error.hpp"
#include "core/execution.hpp"
#include "ops/attention/bf16_panels/scores.hpp"
#include "ops/attention/tile.hpp"
#include "tile/bf16/bf16_units.hpp"

/// The variants "flash_amx" and "flash_avx512_bf16" of both passes: bf16 on packed panels
/// (tile/bf16/bf16_engine.hpp), one kernel for either unit, on a host.
namespace katt::attention::impl {

using tile::bf16_panels::UnitName;

/// Query rows × keys of a work item; the first is the default. Forward, the keys are those between
/// two additions to the output, and results do not depend on tile_q.
template <class Args>
const std::vector<Tile>& panel_tiles();
template <>
const std::vector<Tile>& panel_tiles<ForwardArgs>();
template <>
const std::vector<Tile>& panel_tiles<BackwardArgs>();

#if defined(KATT_BF16_PANELS)
/// Packed operands, and the scratch of every thread; backward also partial dQ in f32. Linear in the
/// sequence lengths.
std::size_t panels_workspace_bytes(const Host& exec, const ForwardArgs& args, Tile tile,
                                   UnitName unit);
std::size_t panels_workspace_bytes(const Host& exec, const BackwardArgs& args, Tile tile,
                                   UnitName unit);
void run_on_panels(const Host& exec, const ForwardArgs& args, const BlockScores& scores, Tile tile,
                   UnitName unit, Workspace workspace);
void run_on_panels(const Host& exec, const BackwardArgs& args, const BlockScores& scores, Tile tile,
                   UnitName unit, Workspace workspace);
#endif

}  // namespace katt::attention::impl
