#include "measure/race.hpp"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <utility>

namespace katt::bench {
namespace {

/// The member of the lowest median; the default of equals.
std::size_t fastest(std::span<const Race::Member> members, const Race::Samples& samples) {
  std::size_t best = 0;
  double least = 0;
  for (std::size_t i = 0; i < members.size(); ++i) {
    const double median = median_interval(samples(members[i].id)).median;
    if (i > 0 && (median > least || (median == least && !members[i].is_default))) continue;
    best = i;
    least = median;
  }
  return best;
}

}  // namespace

Race::Race(std::vector<Member> members, RaceRule rule)
    : members_(std::move(members)),
      rule_(rule),
      next_look_(rule.first_look),
      is_over_(members_.empty()) {}

std::vector<Departure> Race::after_round(const Samples& samples) {
  std::erase_if(members_, [&](const Member& member) { return samples(member.id).empty(); });
  if (members_.empty()) is_over_ = true;
  if (is_over_) return {};
  const auto rounds = static_cast<int>(samples(members_.front().id).size());
  if (rounds < next_look_ && rounds != rule_.min_rounds) return {};
  next_look_ = std::max(rounds + 1, static_cast<int>(std::ceil(rule_.look_growth * rounds)));

  const Member leader = members_[fastest(members_, samples)];
  std::vector<Departure> leaving;
  bool is_decided = true;
  for (const Member& member : members_) {
    if (member.id == leader.id) continue;
    const Estimate ratio = paired_ratio(samples(member.id), samples(leader.id));
    const bool not_faster = ratio.lo * (1 + rule_.tolerance) >= 1;
    is_decided = is_decided && not_faster;
    const bool is_early = rounds < rule_.min_rounds;
    if (ratio.lo > 1 && !(is_early && member.is_default)) {
      leaving.push_back({member.id, leader.id, Leaving::slower, ratio});
    } else if (not_faster && !is_early && !member.is_default) {
      leaving.push_back({member.id, leader.id, Leaving::not_faster, ratio});
    }
  }
  std::erase_if(members_, [&](const Member& member) {
    return std::ranges::find(leaving, member.id, &Departure::id) != leaving.end();
  });
  is_over_ = is_decided && rounds >= rule_.min_rounds;
  return leaving;
}

bool default_stays(const Estimate& ratio, const RaceRule& rule) {
  return ratio.lo <= 1 && ratio.median <= 1 + rule.tolerance / 2;
}

std::size_t winner_of(std::span<const Race::Member> members, const Race::Samples& samples,
                      const RaceRule& rule) {
  if (members.empty()) throw std::invalid_argument("a race without settings has no winner");
  const std::size_t leader = members[fastest(members, samples)].id;
  for (const Race::Member& member : members) {
    if (!member.is_default) continue;
    if (default_stays(paired_ratio(samples(member.id), samples(leader)), rule)) return member.id;
  }
  return leader;
}

}  // namespace katt::bench
