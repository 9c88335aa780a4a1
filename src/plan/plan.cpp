#include "plan/plan.hpp"

#include <algorithm>
#include <iterator>
#include <map>
#include <numeric>

#include "machine/machine.hpp"
#include "plan/requests.hpp"

namespace katt::bench {
namespace {

void set_value(Point& point, const std::string& axis, const AxisValue& value) {
  if (axis == "pass") point.pass = std::get<std::string>(value);
  else if (axis == "backend") point.backend = *backend_from_name(std::get<std::string>(value));
  else if (axis == "threads") point.threads = static_cast<int>(std::get<std::int64_t>(value));
  else if (axis == "dtype") point.dtype = *dtype_from_name(std::get<std::string>(value));
  else point.values[axis] = value;
}

class Planner {
 public:
  Planner(std::uint64_t seed, const Tuning& tuning, std::size_t most)
      : seed_(seed), tuning_(tuning), most_(most) {}

  void add(const SweepEntry& entry) {
    const auto typed = typed_axes(entry);
    ConfigRequest request = read_configs(entry, typed);
    std::vector<EntryAxis> axes;
    for (const AxisSpec& spec : all_axes(*entry.op)) {
      if (const auto text = typed.find(spec.name); text != typed.end()) {
        axes.push_back({spec.name, parse_axis(spec, *text->second)});
      } else if (spec.name == "pass" || spec.name == "backend") {
        axes.push_back({spec.name, {spec.fallback}});
      }
    }
    std::size_t points = 1;  // at most 10,000 a factor, and the loop ends before they are many
    for (const EntryAxis& axis : axes) {
      if ((points *= axis.values.size()) > most_) refuse_more();
    }
    if (const auto text = typed.find("paired"); text != typed.end()) {
      request.paired = read_paired(entry, *text->second, axes);
    }
    product(entry, axes, request, 0, {});
  }

  std::vector<PlannedCase> take() {
    std::map<std::string, std::size_t> first;  // of each group
    std::vector<std::size_t> group;
    for (std::size_t i = 0; i < cases_.size(); ++i) {
      const std::string& name = cases_[i].paired.group;
      group.push_back(name.empty() ? i : first.try_emplace(name, i).first->second);
    }
    std::vector<std::size_t> order(cases_.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::ranges::stable_sort(order, {}, [&](std::size_t i) { return group[i]; });
    std::vector<PlannedCase> sorted;
    for (const std::size_t i : order) sorted.push_back(std::move(cases_[i]));
    return sorted;
  }

 private:
  [[noreturn]] void refuse_more() const {
    throw InputError("the sweep has more than " + std::to_string(most_) + " points");
  }

  void product(const SweepEntry& entry, const std::vector<EntryAxis>& axes,
               const ConfigRequest& request, std::size_t depth, Point point) {
    if (depth < axes.size()) {
      for (const AxisValue& value : axes[depth].values) {
        set_value(point, axes[depth].name, value);
        product(entry, axes, request, depth + 1, point);
      }
      return;
    }
    point.seed = seed_;
    point.threads = resolved_threads(point.backend, point.threads);
    Point reference = point;
    fill_rest(*entry.op, point);
    try {
      entry.op->validate(point);
    } catch (const InputError& error) {
      if (entry.where.empty()) throw;
      throw InputError(entry.where + ": " + error.what());
    }
    PlannedCase planned{.op = entry.op,
                        .label = entry.label,
                        .point = point,
                        .configs = {},
                        .peers = request.peers,
                        .where = entry.where};
    if (!request.paired.empty()) planned.paired = pairing(planned, request, std::move(reference));
    add_configs(planned, request, tuning_);
    if (planned.configs.empty()) {
      throw InputError(entry.op->name() + ": has no variant for pass " + point.pass +
                       " on the backend " + std::string(name_of(point.backend)));
    }
    const auto [place, added] = index_.emplace(case_key(planned), cases_.size());
    if (added) {
      if (cases_.size() == most_) refuse_more();
      cases_.push_back(std::move(planned));
      return;
    }
    PlannedCase& known = cases_[place->second];
    if (known.paired.group != planned.paired.group) {
      throw InputError((entry.where.empty() ? "" : entry.where + ": ") + entry.op->name() +
                       ": has points of another sweep of this label, which pairs other axes; "
                       "expected a label of its own");
    }
    if (known.of_auto.empty()) known.of_auto = planned.of_auto;
    for (const std::string& peer : planned.peers) add_once(known.peers, peer);
    for (Config& config : planned.configs) add_once(known.configs, std::move(config), same_config);
    std::ranges::move(planned.refused, std::back_inserter(known.refused));
    std::ranges::move(planned.remarks, std::back_inserter(known.remarks));
  }

  /// `point`: the case's, before the axes that nobody names are filled in.
  static Pairing pairing(const PlannedCase& planned, const ConfigRequest& request, Point point) {
    Pairing pairing;
    for (const auto& [axis, value] : request.paired) {
      set_value(point, axis, value);
      if (!pairing.to.empty()) pairing.to += ',';
      pairing.to += axis + "=" + to_text(value);
    }
    fill_rest(*planned.op, point);
    PlannedCase reference = planned;
    reference.point = std::move(point);
    pairing.group = case_key(reference);
    pairing.is_reference = pairing.group == case_key(planned);
    return pairing;
  }

  std::uint64_t seed_;
  const Tuning& tuning_;
  std::size_t most_;
  std::vector<PlannedCase> cases_;
  std::map<std::string, std::size_t> index_;
};

}  // namespace

bool PlannedCase::is_peer(const Config& config) const {
  return std::find(peers.begin(), peers.end(), config.variant) != peers.end();
}

std::vector<std::string> remarks_of(std::span<const PlannedCase> plan) {
  std::vector<std::string> remarks;
  for (const PlannedCase& planned : plan) {
    for (const std::string& remark : planned.remarks) add_once(remarks, remark);
  }
  return remarks;
}

std::string case_key(const PlannedCase& planned) {
  const Point& point = planned.point;
  std::string key = planned.op->name() + '\n' + planned.label + '\n' + point.pass + '\n' +
                    std::string(name_of(point.backend)) + '\n' + std::to_string(point.threads) +
                    '\n' + std::string(name_of(point.dtype));
  for (const auto& [axis, value] : point.values) key += '\n' + to_text(value);
  return key;
}

void override_axes(SweepEntry& entry, std::span<const AxisText> axes) {
  for (const AxisText& axis : axes) {
    const auto name = axis_of_key(*entry.op, axis.key);
    if (!name) continue;
    std::erase_if(entry.axes, [&](const AxisText& old) {
      const auto old_name = axis_of_key(*entry.op, old.key);
      const bool extent = old_name == "tile_q" || old_name == "tile_kv";
      return old_name == name || (name == "tile" && extent) ||
             (old_name == "tile" && (name == "tile_q" || name == "tile_kv"));
    });
  }
  for (const AxisText& axis : axes) {
    if (axis_of_key(*entry.op, axis.key)) entry.axes.push_back(axis);
  }
}

std::vector<AxisValue> asked_values(const SweepEntry& entry, std::string_view common_axis) {
  const auto specs = common_axes(*entry.op);
  const AxisSpec& spec = *std::ranges::find(specs, common_axis, &AxisSpec::name);
  std::vector<AxisValue> values{spec.fallback};
  for (const AxisText& typed : entry.axes) {
    if (typed.key == common_axis) values = parse_axis(spec, typed);
  }
  return values;
}

int most_threads(std::span<const SweepEntry> entries) {
  int most = 1;
  for (const SweepEntry& entry : entries) {
    for (const AxisValue& value : asked_values(entry, "threads")) {
      const auto threads = static_cast<int>(std::get<std::int64_t>(value));
      most = std::max(most, threads == 0 ? machine().cores : threads);
    }
  }
  return most;
}

std::vector<PlannedCase> plan_cases(std::span<const SweepEntry> entries, std::uint64_t seed) {
  return plan_cases(entries, seed, Tuning{});
}

std::vector<PlannedCase> plan_cases(std::span<const SweepEntry> entries, std::uint64_t seed,
                                    const Tuning& tuning, std::size_t most) {
  Planner planner(seed, tuning, most);
  for (const SweepEntry& entry : entries) planner.add(entry);
  return planner.take();
}

std::string unlisted_reason(const PlannedCase& planned, const Config& config) {
  if (planned.is_peer(config)) return {};
  for (const auto& [refused, reason] : planned.refused) {
    if (same_config(refused, config)) return reason;
  }
  for (const VariantInfo& info : planned.op->variants(planned.point.backend, planned.point.pass)) {
    if (info.name != config.variant) continue;
    return setting_refusal(info.name, info.settings, config.setting);
  }
  return "the backend " + std::string(name_of(planned.point.backend)) + " has no variant " +
         config.variant + " for pass " + planned.point.pass;
}

}  // namespace katt::bench
