#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "io/hdf5/result_contents.hpp"
#include "measure/measure.hpp"
#include "measure/race.hpp"
#include "op/registry.hpp"
#include "op/variants.hpp"

/// Replays of races: how often the rule of measure/race.hpp is wrong, and what it saves, on spaces
/// of which every setting was measured in many rounds.
namespace katt::bench {

/// A setting of a recorded space.
struct RecordedSetting {
  Setting setting;
  std::vector<double> samples_s;  ///< one a round; all settings of a space have as many
  int inner = 1;                  ///< runs of a sample
  bool is_default = false;
  /// The median of its time / the other's over the recorded rounds, for the setting where it is
  /// largest: 1.03 says that another one is 3 % faster.
  double loss = 1;
};

/// All settings of a variant at a point, measured in the same rounds.
struct RecordedSpace {
  std::string name;  ///< "attention forward flash f32 seq_q=257 …", every axis
  std::vector<RecordedSetting> settings;
};

/// The spaces of a result file: the variants with at least two settings that ran in equally many
/// rounds.
[[nodiscard]] std::vector<RecordedSpace> recorded_spaces(const Registry& registry,
                                                         const std::vector<io::Column>& columns,
                                                         const io::ResultContents& contents);

struct ReplayOptions {
  int replays = 200;
  int block = 10;       ///< rounds that follow each other in a replay as they did in the record
  Settings settings{};  ///< the stopping rule of the exhaustive measurement, the budget, the seed
  RaceRule rule{};
};

/// One way to search, in every replay of a space.
struct Searches {
  std::vector<std::size_t> winners;  ///< settings
  std::vector<double> cost_s;        ///< time of all samples
  std::vector<int> rounds;
};

struct Replays {
  Searches race, exhaustive;
};

/// Replays a space. A replay draws whole rounds, so that samples of a round stay together, in
/// blocks of neighbouring rounds that begin anywhere (circular block bootstrap: Politis & Romano,
/// 1992). It then follows the race, and beside it measures every setting as a sweep does until its
/// stopping rule.
[[nodiscard]] Replays replay(const RecordedSpace& space, const ReplayOptions& options);

}  // namespace katt::bench
