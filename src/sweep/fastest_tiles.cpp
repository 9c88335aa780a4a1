#include "sweep/fastest_tiles.hpp"

#include "measure/race.hpp"

namespace katt::bench {
namespace {

/// True when the default stays although `best` has the lower median.
bool stays(const RowResult& usual, const RowResult& best, bool is_race) {
  const Estimate ratio = paired_ratio(usual.samples_s, best.samples_s);
  return is_race ? default_stays(ratio) : !(ratio.lo > 1);
}

}  // namespace

std::vector<TunedTile> fastest_tiles(const PlannedCase& planned, std::span<const RowResult> rows,
                                     bool is_race) {
  std::vector<TunedTile> fastest;
  for (const VariantInfo& info : planned.op->variants(planned.point.backend, planned.point.pass)) {
    const RowResult* best = nullptr;
    const RowResult* usual = nullptr;
    for (const RowResult& row : rows) {
      if (row.requested.variant != info.name || info.settings.empty() || !row.is_sound()) continue;
      if (row.resolved.setting == row.default_setting) usual = &row;
      if (row.left_race) continue;
      if (best == nullptr || row.time_s.median < best->time_s.median) best = &row;
    }
    if (best == nullptr) continue;
    TunedTile tuned = tile_key(*planned.op, planned.point, info.name);
    tuned.usual = best->default_setting;
    tuned.usual_time_s = usual != nullptr ? usual->time_s.median : 0;
    if (usual != nullptr) {
      tuned.usual_ratio = paired_ratio(usual->samples_s, best->samples_s).median;
      if (!usual->left_race && stays(*usual, *best, is_race)) {
        best = usual;
        tuned.usual_ratio = 1;
      }
    }
    tuned.tile = best->resolved.setting;
    tuned.time_s = best->time_s;
    fastest.push_back(std::move(tuned));
  }
  return fastest;
}

}  // namespace katt::bench
