#pragma once

#include <cstddef>
#include <vector>

#include "core/error.hpp"
#include "ops/attention/bf16_panels/scores.hpp"
#include "ops/attention/tile.hpp"
#include "tile/bf16_units.hpp"

/// The variants "flash_amx" and "flash_avx512_bf16" of the backward pass: bf16 on packed tiles.
namespace katt::attention::impl {

using tile::bf16_tiles::UnitName;

/// Query rows × keys between two additions to the gradients; the first is the default.
template <>
const std::vector<Tile>& panel_tiles<BackwardArgs>();

/// Packed tiles of q, k, v and dout, partial dQ in f32, and the scratch of every thread; linear in
/// the sequence lengths.
template <class Exec>
std::size_t panels_workspace_bytes(const Exec& exec, const BackwardArgs& args, Tile tile,
                                   UnitName unit);

#if defined(KATT_BF16_TILES)
template <class Exec>
void run_on_panels(const Exec& exec, const BackwardArgs& args, const BlockScores& scores, Tile tile,
                   UnitName unit, Workspace workspace);
#endif

template <class Exec, class Rule>
void run_on_panels(const Exec& exec, const BackwardArgs& args, const Rule& rule, Tile tile,
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
