#include "sweep/race/race_replay.hpp"

#include <algorithm>
#include <exception>
#include <map>
#include <numeric>
#include <random>
#include <span>

#include "core/text.hpp"
#include "plan/axes.hpp"
#include "record/row_cells.hpp"

namespace katt::bench {
namespace {

/// The point of a row, as far as its operator's axes tell.
Point point_of(const Operator& op, const RowCells& cells) {
  Point point;
  point.pass = cells.text("pass");
  point.backend = backend_from_name(cells.text("backend")).value_or(Backend::openmp);
  point.dtype = dtype_from_name(cells.text("dtype")).value_or(Dtype::f32);
  point.threads = static_cast<int>(cells.integer("threads"));
  for (const AxisSpec& axis : op.axes()) {
    std::visit([&](const auto& held) { point.values[axis.name] = held; }, cells.cell(axis.name));
  }
  return point;
}

/// The default of a variant at a point; empty where this program cannot tell.
Setting default_of(const Operator& op, const Point& point, const std::string& variant) {
  try {
    return op.resolve(point, {variant, {}}).setting;
  } catch (const std::exception&) {  // the device of the record is not here
    return {};
  }
}

void fill_losses(RecordedSpace& space) {
  for (RecordedSetting& one : space.settings) {
    for (const RecordedSetting& other : space.settings) {
      one.loss = std::max(one.loss, paired_ratio(one.samples_s, other.samples_s).median);
    }
  }
}

/// The settings of a space in the rounds of one replay.
class Drawn {
 public:
  Drawn(const RecordedSpace& space, int rounds, int block, std::mt19937_64& random)
      : space_(space), samples_(space.settings.size()) {
    const std::size_t recorded = space.settings.front().samples_s.size();
    std::size_t round = 0;
    for (int drawn = 0; drawn < rounds; ++drawn) {
      round = drawn % block == 0 ? random() % recorded : (round + 1) % recorded;
      for (std::size_t i = 0; i < samples_.size(); ++i) {
        samples_[i].push_back(space.settings[i].samples_s[round]);
      }
    }
  }

  [[nodiscard]] std::span<const double> first(std::size_t setting, int rounds) const {
    return std::span(samples_[setting]).first(static_cast<std::size_t>(rounds));
  }
  /// Seconds of a setting's sample in a round, from 1.
  [[nodiscard]] double cost_s(std::size_t setting, int round) const {
    return samples_[setting][static_cast<std::size_t>(round - 1)] * space_.settings[setting].inner;
  }
  [[nodiscard]] std::vector<Race::Member> members() const {
    std::vector<Race::Member> members;
    for (std::size_t i = 0; i < samples_.size(); ++i) {
      members.push_back({.id = i, .is_default = space_.settings[i].is_default});
    }
    return members;
  }

 private:
  const RecordedSpace& space_;
  std::vector<std::vector<double>> samples_;
};

void add_search(Searches& searches, std::size_t winner, double cost_s, int rounds) {
  searches.winners.push_back(winner);
  searches.cost_s.push_back(cost_s);
  searches.rounds.push_back(rounds);
}

void follow_race(const Drawn& drawn, const ReplayOptions& options, Searches& searches) {
  const std::vector<Race::Member> all = drawn.members();
  const double budget = options.settings.budget_s * static_cast<double>(all.size());
  Race race(all, options.rule);
  double cost_s = 0;
  int round = 0;
  const auto samples = [&](std::size_t id) { return drawn.first(id, round); };
  while (round < options.settings.max_rounds && !race.is_over()) {
    if (round >= options.settings.min_rounds && cost_s >= budget) break;
    ++round;
    for (const Race::Member& member : race.members()) cost_s += drawn.cost_s(member.id, round);
    static_cast<void>(race.after_round(samples));
  }
  add_search(searches, winner_of(race.members(), samples, options.rule), cost_s, round);
}

/// The choice of an exhaustive measurement: the lowest median, or the default unless it is slower.
std::size_t exhaustive_choice(const Drawn& drawn, int rounds) {
  std::vector<Race::Member> members = drawn.members();
  const auto samples = [&](std::size_t id) { return drawn.first(id, rounds); };
  const auto usual = std::ranges::find(members, true, &Race::Member::is_default);
  const std::size_t default_id = usual == members.end() ? members.size() : usual->id;
  for (Race::Member& member : members) member.is_default = false;
  const std::size_t fastest = winner_of(members, samples);
  if (default_id == members.size()) return fastest;
  return paired_ratio(samples(default_id), samples(fastest)).lo > 1 ? fastest : default_id;
}

void measure_all(const Drawn& drawn, const ReplayOptions& options, Searches& searches) {
  const Settings& settings = options.settings;
  std::vector<std::size_t> order(drawn.members().size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  const double budget = settings.budget_s * static_cast<double>(order.size());
  double cost_s = 0;
  int round = 0;
  while (round < settings.max_rounds) {
    if (round >= settings.min_rounds) {
      if (cost_s >= budget) break;
      const auto imprecise = std::ranges::find_if(order, [&](std::size_t i) {
        return median_interval(drawn.first(i, round)).relative_half_width() > settings.precision;
      });
      if (imprecise == order.end()) break;
      std::swap(*imprecise, order.front());  // it is asked first in the next round
    }
    ++round;
    for (const std::size_t i : order) cost_s += drawn.cost_s(i, round);
  }
  add_search(searches, exhaustive_choice(drawn, round), cost_s, round);
}

}  // namespace

std::vector<RecordedSpace> recorded_spaces(const Registry& registry,
                                           const std::vector<io::Column>& columns,
                                           const io::ResultContents& contents) {
  std::vector<RecordedSpace> spaces;
  std::map<std::string, std::size_t> places;  // in spaces, by run and name
  for (const io::Row& row : contents.rows) {
    const RowCells cells(columns, row);
    const bool is_timed = !row.samples_s.empty() &&
                          std::ranges::all_of(row.samples_s, [](double s) { return s > 0; });
    if (cells.text("status") != "ok" || !is_timed) continue;
    const Operator& op = registry.find(cells.text("op"));
    const Point point = point_of(op, cells);
    op.validate(point);
    const std::string variant = cells.text("variant");
    const auto infos = op.variants(point.backend, point.pass);
    const auto info = std::ranges::find(infos, variant, &VariantInfo::name);
    if (info == infos.end() || info->parameters.empty()) continue;
    std::string name = op.name() + " " + point.pass + " " + variant + " " +
                       std::string(name_of(point.dtype)) +
                       " threads=" + std::to_string(point.threads);
    for (const auto& [axis, value] : point.values) name += " " + axis + "=" + to_text(value);
    const auto [place, is_new] = places.emplace(cells.text("run") + name, spaces.size());
    if (is_new) spaces.push_back({.name = std::move(name), .settings = {}});
    RecordedSetting setting;
    for (const std::string& parameter : info->parameters) {
      setting.setting.push_back(static_cast<int>(cells.integer(parameter)));
    }
    setting.samples_s = row.samples_s;
    setting.inner = static_cast<int>(cells.integer("inner"));
    setting.is_default = setting.setting == default_of(op, point, variant);
    spaces[place->second].settings.push_back(std::move(setting));
  }
  std::erase_if(spaces, [](const RecordedSpace& space) {
    return space.settings.size() < 2 || std::ranges::any_of(space.settings, [&](const auto& one) {
             return one.samples_s.size() != space.settings.front().samples_s.size();
           });
  });
  for (RecordedSpace& space : spaces) fill_losses(space);
  return spaces;
}

Replays replay(const RecordedSpace& space, const ReplayOptions& options) {
  std::mt19937_64 random(options.settings.seed);
  Replays replays;
  for (int i = 0; i < options.replays; ++i) {
    const Drawn drawn(space, options.settings.max_rounds, options.block, random);
    follow_race(drawn, options, replays.race);
    measure_all(drawn, options, replays.exhaustive);
  }
  return replays;
}

}  // namespace katt::bench
