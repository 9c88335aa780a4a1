#pragma once

#include <cstddef>
#include <vector>

#include "core/error.hpp"
#include "ops/attention/bf16_panels/scores.hpp"
#include "ops/attention/tile.hpp"
#include "tile/bf16_units.hpp"

/// The variants "flash_amx" and "flash_avx512_bf16" of the forward pass: bf16 on packed tiles
/// (tile/bf16_engine.hpp), one kernel for either unit.
namespace katt::attention::impl {

using tile::bf16_tiles::UnitName;

/// Query rows of a work item × keys between two additions to the output; the first is the default.
/// Results do not depend on tile_q.
template <>
const std::vector<Tile>& panel_tiles<ForwardArgs>();

/// K and V packed into bf16 tiles, and the scratch of every thread.
template <class Exec>
std::size_t panels_workspace_bytes(const Exec& exec, const ForwardArgs& args, Tile tile,
                                   UnitName unit);

#if defined(KATT_BF16_TILES)
template <class Exec>
void run_on_panels(const Exec& exec, const ForwardArgs& args, const BlockScores& scores, Tile tile,
                   UnitName unit, Workspace workspace);
#endif

template <class Exec, class Rule>
void run_on_panels(const Exec& exec, const ForwardArgs& args, const Rule& rule, Tile tile,
                   UnitName unit, Workspace workspace) {
#if defined(KATT_BF16_TILES)
  const Scores<bf16, Rule> scores(args, rule);  // outlives the launches: a host runs them at once
  run_on_panels(exec, args, BlockScores(scores), tile, unit, workspace);
#else
  (void)exec, (void)args, (void)rule, (void)tile, (void)unit, (void)workspace;
  throw InputError("attention: this build has no unit for bf16 tiles");
#endif
}

}  // namespace katt::attention::impl
