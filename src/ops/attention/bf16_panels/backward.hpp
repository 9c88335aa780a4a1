#pragma once

#include <cstddef>

#include "core/error.hpp"
#include "core/status.hpp"
#include "core/variants.hpp"
#include "ops/attention/bf16_panels/scores.hpp"

/// The flash variant of the backward pass in bf16 on packed tiles.
namespace katt::attention::impl {

/// ok, or skipped: the tile is not in bf16_backward_tile_list().
Status flash_bf16_backward_supports(Tile tile);

/// Query rows × keys between two additions to the gradients; the first is the default.
const std::vector<Tile>& bf16_backward_tile_list();

/// Packed tiles of q, k, v and dout, partial dQ in f32, and the scratch of every thread; linear in
/// the sequence lengths.
template <class Exec>
std::size_t flash_bf16_backward_workspace_bytes(const Exec& exec, const BackwardArgs& args,
                                                Tile tile);

#if defined(KATT_BF16_TILES)
template <class Exec>
void flash_bf16_backward(const Exec& exec, const BackwardArgs& args, const BlockScores& scores,
                         Tile tile, Workspace workspace);
#endif

template <class Exec, class Rule>
void flash_bf16_backward(const Exec& exec, const BackwardArgs& args, const Rule& rule, Tile tile,
                         Workspace workspace) {
#if defined(KATT_BF16_TILES)
  const Scores<bf16, Rule> scores(args, rule);  // outlives the launches: a host runs them at once
  flash_bf16_backward(exec, args, BlockScores(scores), tile, workspace);
#else
  (void)exec, (void)args, (void)rule, (void)tile, (void)workspace;
  throw InputError("attention: this build has no unit for bf16 tiles");
#endif
}

}  // namespace katt::attention::impl
