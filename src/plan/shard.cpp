#include "plan/shard.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>
#include <numeric>
#include <queue>
#include <utility>

#include "core/error.hpp"
#include "core/text.hpp"
#include "plan/axes.hpp"

namespace katt::bench {
namespace {

constexpr std::int64_t most_parts = 1000000;

/// FNV-1a of 64 bits (Fowler, Noll, Vo): the same on every machine, unlike std::hash.
class Fingerprint {
 public:
  void add(std::string_view text) {
    for (const char byte : text) mix(static_cast<unsigned char>(byte));
    mix(0xFF);  // a byte outside any text: "a", "b" differs from "ab", ""
  }
  [[nodiscard]] std::string hexadecimal() const {
    char text[17];
    std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(hash_));
    return text;
  }

 private:
  void mix(unsigned byte) { hash_ = (hash_ ^ byte) * 0x100000001B3ULL; }
  std::uint64_t hash_ = 0xCBF29CE484222325ULL;
};

/// Identifies a split: its points and the part that measures each. Threads and variants are not
/// part of it, because their defaults depend on the machine.
std::string fingerprint(std::span<const PlannedCase> plan, const std::vector<int>& parts,
                        int count) {
  Fingerprint print;
  print.add(std::to_string(count));
  for (std::size_t i = 0; i < plan.size(); ++i) {
    const Point& point = plan[i].point;
    print.add(plan[i].op->name());
    print.add(plan[i].label);
    print.add(point.pass);
    print.add(name_of(point.backend));
    print.add(name_of(point.dtype));
    print.add(std::to_string(point.seed));
    for (const auto& [axis, value] : point.values) {
      print.add(axis);
      print.add(to_text(value));
    }
    if (!plan[i].paired.to.empty()) print.add(plan[i].paired.to);
    print.add(std::to_string(parts[i]));
  }
  return print.hexadecimal();
}

}  // namespace

Shard parse_shard(const std::string& text) {
  const auto parts = split(text, '/');
  const auto number = [&](std::size_t i) -> std::int64_t {
    if (i >= parts.size() || parts.size() != 2) return 0;
    const Parsed parsed = parse_integer(parts[i]);
    return parsed.problem.empty() ? parsed.integer : 0;
  };
  const std::int64_t index = number(0);
  const std::int64_t count = number(1);
  if (index < 1 || count < index || count > most_parts) {
    throw InputError("--shard " + truncated(text, 40) +
                     ": expected I/N, the I-th of N parts with I from 1 to N and N at most " +
                     std::to_string(most_parts) + ", e.g. 1/8");
  }
  return {.index = static_cast<int>(index), .count = static_cast<int>(count)};
}

std::string to_text(const Shard& shard) {
  return std::to_string(shard.index) + "/" + std::to_string(shard.count);
}

double forecast_s(const PlannedCase& planned, const Settings& settings) {
  constexpr double nominal_rate = 1e12;
  constexpr double other_runs = 5;  // to prepare, to warm up, to verify
  constexpr double other_s = 0.05;  // for the smallest point, too
  Point point = planned.point;
  point.threads = std::min(point.threads, 1);
  const auto variants = planned.op->variants(point.backend, point.pass);
  // without the workspace, which depends on the machine
  const Footprint sizes = planned.op->footprint(point, {.variant = variants.front().name});
  const auto bytes = static_cast<double>(sizes.tensors + sizes.outputs);
  const double rounds = settings.rounds > 0 ? settings.rounds : settings.min_rounds;
  const double least_s = other_s + (settings.rounds > 0 ? 0 : settings.budget_s);
  return least_s + (rounds + other_runs) * bytes * std::sqrt(bytes) / nominal_rate;
}

std::vector<int> split(std::span<const PlannedCase> plan, int count, const Settings& settings) {
  if (count == 1) return std::vector<int>(plan.size());
  // in whole microseconds: their sums are exact, and the same on every machine
  const auto groups = groups_of(plan);
  std::vector<std::int64_t> forecast_us;
  for (const auto& group : groups) {
    std::int64_t& sum = forecast_us.emplace_back(0);
    for (const PlannedCase& planned : group) {
      sum += std::llround(std::min(forecast_s(planned, settings), 1e6) * 1e6);
    }
  }
  std::vector<std::size_t> order(groups.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return forecast_us[a] > forecast_us[b]; });
  struct Load {
    std::int64_t us = 0;
    int points = 0;
    int part = 0;
    auto operator<=>(const Load&) const = default;  // NOLINT(modernize-use-nullptr): a false alarm
  };
  std::priority_queue<Load, std::vector<Load>, std::greater<>> loads;  // the least on top
  for (int part = 0; part < count; ++part) loads.push({.part = part});
  std::vector<int> parts(plan.size());
  for (const std::size_t i : order) {
    Load least = loads.top();
    loads.pop();
    const auto first = static_cast<std::size_t>(groups[i].data() - plan.data());
    std::fill_n(parts.begin() + static_cast<std::ptrdiff_t>(first), groups[i].size(), least.part);
    least.us += forecast_us[i];
    ++least.points;
    loads.push(least);
  }
  return parts;
}

Part part_of(std::span<const PlannedCase> plan, const Shard& shard, const Settings& settings) {
  const std::size_t groups = groups_of(plan).size();
  if (static_cast<std::size_t>(shard.count) > std::max<std::size_t>(groups, 1)) {
    throw InputError("--shard " + to_text(shard) + ": the sweep has " + std::to_string(groups) +
                     (groups < plan.size() ? " groups of paired points" : " points") +
                     ", expected at most as many parts");
  }
  const std::vector<int> parts = split(plan, shard.count, settings);
  Part part{.tasks = {}, .shard = shard, .split = fingerprint(plan, parts, shard.count)};
  std::size_t first_place = 1;
  for (std::size_t i = 0; i < plan.size(); ++i) {
    const std::size_t rows = plan[i].configs.size();
    if (parts[i] == shard.index - 1) {
      Task task{
          .planned = plan[i], .number = i, .first_place = first_place, .wanted = Indices(rows)};
      std::iota(task.wanted.begin(), task.wanted.end(), std::uint64_t{0});
      part.rows += rows;
      part.tasks.push_back(std::move(task));
    }
    first_place += rows;
  }
  return part;
}

PlannedCase wanted_of(std::span<const PlannedCase> plan, std::uint64_t number, Indices& wanted) {
  PlannedCase planned = plan[number];
  const std::vector<Config> all = std::exchange(planned.configs, {});
  std::erase_if(wanted, [&](std::uint64_t index) { return index >= all.size(); });
  for (const std::uint64_t index : wanted) planned.configs.push_back(all[index]);
  return planned;
}

io::Attributes place_in_split(const Part& part) {
  return {{shard_attribute, to_text(part.shard)},
          {split_attribute, part.split},
          {rows_attribute, static_cast<std::int64_t>(part.rows)}};
}

std::string point_name(std::size_t place) {
  char text[24];
  std::snprintf(text, sizeof text, "%06zu", place);
  return text;
}

bool point_before(const std::string& a, const std::string& b) {
  return a.size() != b.size() ? a.size() < b.size() : a < b;  // beyond six digits, too
}

std::vector<PlannedCase> cases_of(std::span<const Task> tasks) {
  std::vector<PlannedCase> cases;
  for (const Task& task : tasks) cases.push_back(task.planned);
  return cases;
}

}  // namespace katt::bench
