#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "core/status.hpp"
#include "op/variants.hpp"
#include "ops/attention/attention.hpp"
#include "ops/attention/decode/paged.hpp"
#include "ops/attention/scores.hpp"
#include "ops/attention/tile.hpp"

/// The decode variant of the forward pass, for Args = ForwardArgs and PagedArgs.
namespace katt::attention::impl {

/// tile.q: most query rows (seq_q · heads / kv_heads) of a K/V head; tile.kv: keys of a split, of
/// which a split on tensor cores has any number. The first is the default.
template <class Exec>
std::vector<Tile> decode_tiles();

/// ok, or skipped: the rows are too many, or they do not fit the scratch memory of the device.
template <class Exec, class Args>
Status decode_supports(const Exec& exec, const Args& args, Tile tile);

/// The units that decode these arguments: "mma", tensor cores of sm_80 and later, for f16 and bf16
/// where rows begin at multiples of 16 bytes and pages hold multiples of 16 keys.
template <class Exec, class Args>
std::string decode_engine(const Exec& exec, const Args& args, Tile tile);

/// The partial results of the splits, and on a host the scratch of every thread.
template <class Exec, class Args>
std::size_t decode_workspace_bytes(const Exec& exec, const Args& args, Tile tile);

template <class Exec, class Args, class Rule>
void run_decode(const Exec& exec, const Args& args, const Rule& rule, Tile tile,
                Workspace workspace);

/// Above flash on any unit for one query of a sequence, or few rows in all: memory of the keys
/// limits these. Below flash before a backward pass: decode adds a product in another order, which
/// changes the last bits of large scores, and the error of P = exp(s − lse) in the backward pass is
/// that change.
template <class Args>
int decode_rank(const Args& args) {
  if constexpr (requires { args.for_backward; }) {
    if (args.for_backward) return 0;
  }
  constexpr std::int64_t few_rows = 16;
  return args.seq_q() == 1 || args.seq_q() * args.heads() <= few_rows * args.kv_heads() ? 4 : 0;
}

/// The variant in the form of its tables.
template <class Exec, class Args, class Rule = NoRule>
Variant<Exec, Args> decode_variant(const Rule& rule = {}) {
  return {
      .name = "decode",
      .description = "few queries: keys split over work items, partial results merged",
      .rank = decode_rank<Args>,
      .parameters = tile_parameters,
      .settings = settings_of(decode_tiles<Exec>()),
      .supports = decode_supports<Exec, Args>,
      .workspace_bytes = decode_workspace_bytes<Exec, Args>,
      .run = [rule](const Exec& exec, const Args& args, Tile tile,
                    Workspace workspace) { run_decode(exec, args, rule, tile, workspace); },
      .engine = decode_engine<Exec, Args>,
  };
}

}  // namespace katt::attention::impl
