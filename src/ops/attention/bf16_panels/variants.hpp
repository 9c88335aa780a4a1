#pragma once

#include <string>
#include <utility>
#include <vector>

#include "core/variants.hpp"
#include "ops/attention/tiles.hpp"
#include "tile/bf16_units.hpp"

namespace katt::attention::impl {

/// The variant of a pass on packed bf16 tiles for one unit: "flash_amx" or "flash_avx512_bf16".
/// bytes(exec, args, tile, unit) and run(exec, args, tile, unit, workspace) are its functions.
template <class Exec, class Args, class Bytes, class Run>
Variant<Exec, Args> bf16_variant(tile::bf16_tiles::UnitName unit, const std::vector<Tile>& tiles,
                                 const Bytes& bytes, const Run& run) {
  const bool amx = unit == tile::bf16_tiles::UnitName::amx;
  const std::string name = tile::bf16_tiles::name_of(unit);
  Variant<Exec, Args> variant{
      .name = "flash_" + name,
      .description = std::string("flash on packed bf16 tiles: ") +
                     (amx ? "AMX" : "dot products of AVX512-BF16"),
      .rank = amx ? 3 : 2,
      .parameters = tile_parameters,
      .settings = settings_of(tiles),
      .supports =
          [unit](const Args& args) {
            if (args.q.dtype != Dtype::bf16) {
              return Status::skipped("takes bf16, not " + std::string(name_of(args.q.dtype)));
            }
            std::string reason = tile::bf16_tiles::refusal(unit);
            return reason.empty() ? Status::ok() : Status::skipped(std::move(reason));
          },
      .workspace_bytes = [unit, bytes](const Exec& exec, const Args& args,
                                       Tile tile) { return bytes(exec, args, tile, unit); },
      .run = [unit, run](const Exec& exec, const Args& args, Tile tile,
                         Workspace workspace) { run(exec, args, tile, unit, workspace); },
      .engine = name,
  };
  if (amx) variant.presets.push_back({name, tiles.front()});
  return variant;
}

}  // namespace katt::attention::impl
