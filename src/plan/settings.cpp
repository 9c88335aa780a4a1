#include "plan/settings.hpp"

#include "core/error.hpp"
#include "plan/axes.hpp"

namespace katt::bench {

const std::vector<SettingSpec>& setting_specs() {
  static const std::vector<SettingSpec> specs{
      {"rounds", "exactly so many rounds (default: until precision or budget is reached)"},
      {"min_rounds", "rounds at least (7)"},
      {"budget_s", "seconds of rounds for each variant and tile of a case (1)"},
      {"precision", "half of the median's 95 % interval to stop at, relative (0.02)"},
      {"bind", "1: bind each thread to a processor of its own; 0: leave that to the system (1)"},
      {"seed", "seed of the inputs and of the order within the rounds (1)"},
      {"paired_goal",
       "line in the report of paired points: expected rate relative to the reference"},
      {"peer_program", "program that runs the peers (what scripts/peers installs)"},
      {"peer_timeout_s", "seconds of silence after which a peer or a candidate has failed (300)"},
      {"candidate_program", "program that runs candidates in Python (katt-candidate-python)"},
  };
  return specs;
}

bool set_setting(Settings& settings, std::string_view key, std::string_view text,
                 std::string_view where) {
  constexpr std::int64_t most_rounds = 1000000;
  constexpr double day_s = 86400;
  if (key == "rounds") {
    settings.rounds = static_cast<int>(parse_count(where, text, 1, most_rounds));
  } else if (key == "min_rounds") {
    settings.min_rounds = static_cast<int>(parse_count(where, text, 1, most_rounds));
  } else if (key == "budget_s") {
    settings.budget_s = parse_number(where, text, 0, day_s);
  } else if (key == "precision") {
    if (dtype_of_text(text)) {
      throw InputError(std::string(where) + " " + std::string(text) +
                       ": is the half of an interval to stop at; did you mean --dtype " +
                       std::string(text) + "?");
    }
    settings.precision = parse_number(where, text, 0, 1);
  } else if (key == "seed") {
    settings.seed = static_cast<std::uint64_t>(parse_count(where, text, 0, std::int64_t{1} << 53));
  } else if (key == "peer_program") {
    settings.peer_program = text;
  } else if (key == "peer_timeout_s") {
    settings.peer_timeout_s = parse_number(where, text, 0.1, day_s);
  } else if (key == "candidate_program") {
    settings.candidate_program = text;
  } else if (key == "untrusted") {
    settings.untrusted = parse_count(where, text, 0, 1) != 0;
  } else if (key == "paired_goal") {
    settings.paired_goal = parse_number(where, text, 0, 1e6);
  } else if (key == "bind") {
    settings.bind = parse_count(where, text, 0, 1) != 0;
  } else if (key == "cold") {
    settings.cold = parse_count(where, text, 0, 1) != 0;
  } else if (key == "profile") {
    settings.profile = parse_count(where, text, 0, 1) != 0;
  } else {
    return false;
  }
  return true;
}

}  // namespace katt::bench
