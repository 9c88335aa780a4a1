#pragma once

#include <cstddef>
#include <vector>

#include "core/error.hpp"
#include "core/status.hpp"
#include "core/variants.hpp"
#include "ops/attention/bf16_panels/scores.hpp"

/// The flash variant of the forward pass in bf16 on packed tiles (tile/bf16_engine.hpp).
namespace katt::attention::impl {

/// Query rows of a work item × keys between two additions to the output; the first is the default.
/// Results do not depend on tile_q.
const std::vector<Tile>& bf16_tile_list();

/// ok, or skipped: the tile is not in the list.
Status flash_bf16_supports(const ForwardArgs& args, Tile tile);

/// K and V packed into bf16 tiles, and the scratch of every thread.
template <class Exec>
std::size_t flash_bf16_workspace_bytes(const Exec& exec, const ForwardArgs& args, Tile tile);

#if defined(KATT_BF16_TILES)
template <class Exec>
void flash_bf16_forward(const Exec& exec, const ForwardArgs& args, const BlockScores& scores,
                        Tile tile, Workspace workspace);
#endif

template <class Exec, class Rule>
void flash_bf16_forward(const Exec& exec, const ForwardArgs& args, const Rule& rule, Tile tile,
                        Workspace workspace) {
#if defined(KATT_BF16_TILES)
  const Scores<bf16, Rule> scores(args, rule);  // outlives the launches: a host runs them at once
  flash_bf16_forward(exec, args, BlockScores(scores), tile, workspace);
#else
  (void)exec, (void)args, (void)rule, (void)tile, (void)workspace;
  throw InputError("attention: this build has no unit for bf16 tiles");
#endif
}

}  // namespace katt::attention::impl
