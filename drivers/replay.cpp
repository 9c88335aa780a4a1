#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "core/text.hpp"
#include "drivers/options/command_line.hpp"
#include "drivers/runtime/commands.hpp"
#include "drivers/runtime/runtime.hpp"
#include "io/hdf5/result_contents.hpp"
#include "io/outputs.hpp"
#include "io/printable.hpp"
#include "plan/settings.hpp"
#include "record/json.hpp"
#include "record/results.hpp"
#include "record/t4.hpp"
#include "sweep/race/race_replay.hpp"

namespace katt::impl {
namespace {

using Json = nlohmann::ordered_json;

double median(std::vector<double> values) { return bench::median_interval(values).median; }

/// Replays whose winner is slower than another setting by more than the tolerance.
std::size_t wrong_ones(const bench::RecordedSpace& space, const bench::Searches& searches,
                       double tolerance) {
  return static_cast<std::size_t>(std::ranges::count_if(searches.winners, [&](std::size_t winner) {
    return space.settings[winner].loss > 1 + tolerance;
  }));
}

/// The race's cost in every replay, relative to the exhaustive one's.
std::vector<double> costs(const bench::Replays& replays) {
  std::vector<double> costs;
  for (std::size_t i = 0; i < replays.race.cost_s.size(); ++i) {
    costs.push_back(replays.race.cost_s[i] / replays.exhaustive.cost_s[i]);
  }
  return costs;
}

/// Sums over the replays of all spaces.
struct Total {
  std::size_t replays = 0, wrong = 0, exhaustive_wrong = 0;
  std::vector<double> costs{};

  void add(const bench::RecordedSpace& space, const bench::Replays& one, double tolerance) {
    replays += one.race.winners.size();
    wrong += wrong_ones(space, one.race, tolerance);
    exhaustive_wrong += wrong_ones(space, one.exhaustive, tolerance);
    const std::vector<double> more = impl::costs(one);
    costs.insert(costs.end(), more.begin(), more.end());
  }
  [[nodiscard]] double share(std::size_t count) const {
    return static_cast<double>(count) / static_cast<double>(replays);
  }
};

Json json_of(const bench::Searches& searches) {
  return {{"winners", searches.winners}, {"cost_s", searches.cost_s}, {"rounds", searches.rounds}};
}

Json json_of(const bench::RecordedSpace& space, const bench::Replays& replays) {
  Json settings = Json::array();
  for (const bench::RecordedSetting& one : space.settings) {
    settings.push_back({{"setting", one.setting},
                        {"default", one.is_default},
                        {"time_s", median(one.samples_s)},
                        {"loss", one.loss}});
  }
  return {{"space", space.name},
          {"recorded_rounds", space.settings.front().samples_s.size()},
          {"settings", std::move(settings)},
          {"race", json_of(replays.race)},
          {"exhaustive", json_of(replays.exhaustive)}};
}

void print(const bench::RecordedSpace& space, const bench::Replays& replays, double tolerance) {
  const auto percent = [&](const bench::Searches& searches) {
    return 100.0 * static_cast<double>(wrong_ones(space, searches, tolerance)) /
           static_cast<double>(searches.winners.size());
  };
  std::printf("%s: %zu settings, wrong %.1f %% (exhaustive %.1f %%), %.2f of the exhaustive time\n",
              io::impl::escaped(space.name).c_str(), space.settings.size(), percent(replays.race),
              percent(replays.exhaustive), median(costs(replays)));
}

bench::ReplayOptions read_options(const CommandLine& line) {
  bench::ReplayOptions options;
  bench::Settings& settings = options.settings;
  options.replays = static_cast<int>(line.count("--replays", 1, options.replays));
  options.block = static_cast<int>(line.count("--block", 1, options.block));
  for (const char* key : {"seed", "min_rounds", "budget_s", "precision"}) {
    const std::string name = dashed(key);
    if (const auto& text = line.text(name)) (void)bench::set_setting(settings, key, *text, name);
  }
  settings.max_rounds = std::max(settings.max_rounds, settings.min_rounds);
  options.rule.min_rounds = settings.min_rounds;
  return options;
}

}  // namespace

int replay_command(const Invocation& invocation) {
  CommandLine line("katt tune --replay",
                   "Replay the race on a result file that has every tile in many rounds: how often "
                   "the winner is wrong, and the time beside that of measuring all");
  bool json = false, overwrite = false;
  line.option("--replay", "result file (HDF5), of katt sweep with every tile and --rounds",
              files({".h5"}));
  line.option("--replays", "replays of each space (200)");
  line.option("--block", "rounds that stay together in a replay (10)");
  line.option("--seed", "seed of the replays (1)");
  line.option("--min-rounds", "rounds at least (7)");
  line.option("--budget-s", "seconds of rounds for each tile (1)");
  line.option("--precision", "of the exhaustive measurement, as of a sweep (0.02)");
  line.option("--results", "NAME.json: the rows of the file in the T4 format of tuners",
              files({".json"}));
  line.flag("--overwrite", overwrite, "replace the file of --results");
  line.flag("--json", json, "print every replay as JSON");
  line.example("katt tune --replay spaces.h5 --replays 1000",
               "how often the race picks a slower tile, and the time that it saves");
  if (!line.parse(invocation)) return 0;
  const std::string& file = line.required("--replay", "expected a result file (HDF5)");
  const bench::ReplayOptions options = read_options(line);
  const auto& results = line.text("--results");
  if (overwrite && !results) throw InputError("--overwrite: expected --results, which it replaces");
  io::Outputs outputs;
  if (results) {
    io::check_distinct({{"--results", *results}}, {{"--replay", file}});
    outputs.claim({"--results", *results}, overwrite);
  }
  const std::vector<io::Column> columns = bench::result_columns(invocation.registry);
  const io::ResultContents contents = io::read_result(file, columns);
  const Runtime runtime(1);
  const auto spaces = bench::recorded_spaces(invocation.registry, columns, contents);
  if (spaces.empty()) {
    throw InputError("--replay " + file +
                     ": holds no variant with two settings of equally many rounds; expected every "
                     "tile, measured with --rounds");
  }
  if (results) {
    const io::Attributes run =
        contents.runs.empty() ? io::Attributes{} : contents.runs.front().attributes;
    io::write_file(*results,
                   bench::t4_json(invocation.registry, columns, contents.rows, run) + "\n");
  }
  Json list = Json::array();
  Total total;
  for (const bench::RecordedSpace& space : spaces) {
    const bench::Replays replays = bench::replay(space, options);
    total.add(space, replays, options.rule.tolerance);
    if (json) list.push_back(json_of(space, replays));
    else print(space, replays, options.rule.tolerance);
  }
  if (json) {
    std::printf("%s\n",
                bench::dumped(Json{{"replays", options.replays},
                                   {"block", options.block},
                                   {"seed", options.settings.seed},
                                   {"tolerance", options.rule.tolerance},
                                   {"wrong", total.share(total.wrong)},
                                   {"exhaustive_wrong", total.share(total.exhaustive_wrong)},
                                   {"cost", median(total.costs)},
                                   {"spaces", std::move(list)}})
                    .c_str());
  } else {
    std::printf("%s: wrong %.1f %% (exhaustive %.1f %%), %.2f of the exhaustive time\n",
                bench::counted_text(spaces.size(), "space").c_str(), 100 * total.share(total.wrong),
                100 * total.share(total.exhaustive_wrong), median(total.costs));
  }
  return 0;
}

}  // namespace katt::impl
