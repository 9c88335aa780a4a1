#pragma once

#include <string>
#include <utility>

#include "core/execution.hpp"
#include "op/variants.hpp"
#include "ops/attention/bf16_panels/panels.hpp"
#include "ops/attention/tile.hpp"
#include "tile/bf16/bf16_units.hpp"

namespace katt::attention::impl {

/// Adds the variants of a pass on packed bf16 panels, one a unit: "flash_amx" and
/// "flash_avx512_bf16".
template <class Exec, class Args, class Rule>
void add_panel_variants(VariantTable<Exec, Args>& table, [[maybe_unused]] const Rule& rule) {
  if constexpr (is_host_v<Exec>) {
    for (const UnitName unit : {UnitName::amx, UnitName::dot}) {
      const bool amx = unit == UnitName::amx;
      const std::string name = tile::bf16_panels::name_of(unit);
      const auto& tiles = panel_tiles<Args>();
      Variant<Exec, Args> variant{
          .name = "flash_" + name,
          .description = std::string("flash on packed bf16 panels: ") +
                         (amx ? "AMX" : "dot products of AVX512-BF16"),
          .rank = amx                                           ? 3
                  : tile::bf16_panels::unit() == UnitName::none ? 0
                                                                : 2,
          .parameters = tile_parameters,
          .settings = settings_of(tiles),
          .supports =
              [unit](const Args& args) {
                if (args.q.dtype != Dtype::bf16) {
                  return Status::skipped("takes bf16, not " + std::string(name_of(args.q.dtype)));
                }
                std::string reason = tile::bf16_panels::refusal(unit);
                return reason.empty() ? Status::ok() : Status::skipped(std::move(reason));
              },
          .engine = name,
      };
#if defined(KATT_BF16_PANELS)
      variant.workspace_bytes = [unit](const Exec& exec, const Args& args, Tile tile) {
        return panels_workspace_bytes(exec, args, tile, unit);
      };
      variant.run = [unit, rule](const Exec& exec, const Args& args, Tile tile, Workspace space) {
        const Scores<bf16, Rule> scores(args, rule);  // outlives the launches: they are done here
        run_on_panels(exec, args, BlockScores(scores), tile, unit, space);
      };
#endif
      if (amx) variant.presets.push_back({name, tiles.front()});
      table.add(std::move(variant));
    }
  }
}

}  // namespace katt::attention::impl
