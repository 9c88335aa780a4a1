#include "sweep/fastest_tiles.hpp"

namespace katt::bench {

std::vector<TunedTile> fastest_tiles(const PlannedCase& planned, std::span<const RowResult> rows) {
  std::vector<TunedTile> fastest;
  for (const VariantInfo& info : planned.op->variants(planned.point.backend, planned.point.pass)) {
    const RowResult* best = nullptr;
    const RowResult* usual = nullptr;
    for (const RowResult& row : rows) {
      if (row.requested.variant != info.name || info.settings.empty() || !row.is_sound()) continue;
      if (best == nullptr || row.time_s.median < best->time_s.median) best = &row;
      if (row.resolved.setting == row.default_setting) usual = &row;
    }
    if (best == nullptr) continue;
    const Setting default_setting = best->default_setting;
    if (usual != nullptr && usual->time_s.lo <= best->time_s.hi) best = usual;
    TunedTile tuned = tile_key(*planned.op, planned.point, info.name);
    tuned.tile = best->resolved.setting;
    tuned.time_s = best->time_s.median;
    tuned.usual = default_setting;
    tuned.usual_time_s = usual != nullptr ? usual->time_s.median : 0;
    fastest.push_back(std::move(tuned));
  }
  return fastest;
}

}  // namespace katt::bench
