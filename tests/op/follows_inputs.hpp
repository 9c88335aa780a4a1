#pragma once

#include <gtest/gtest.h>

#include <cstdint>

#include "op/reference/sample.hpp"
#include "op/registry.hpp"

/// Helpers of the tests of all operators, of one rank and of several.
namespace katt::test {

inline const bench::Registry& registry() {
  static const bench::Registry all = [] {
    bench::Registry built_in;
    bench::register_builtin_ops(built_in);
    return built_in;
  }();
  return all;
}

inline void run_once(bench::Candidate& candidate) {
  candidate.poison();
  candidate.restore();
  candidate.take_inputs();
  candidate.run();
  candidate.fence();
}

/// The outputs of a run are right for the inputs of that moment alone. Returns in how many of four
/// rounds inputs have changed; where all are to change, some have.
inline int expect_to_follow_inputs(bench::Case& made, bench::Candidate& candidate,
                                   std::uint64_t seed) {
  run_once(candidate);
  int changed = 0;
  for (std::uint64_t round = seed; round < seed + 4; ++round) {
    const bool all = (round - seed) % 2 == 1;
    SCOPED_TRACE(all ? "all inputs" : "some rows");
    const testing::SampleSeed rows(round);
    const auto changes = made.change(round, all);
    EXPECT_TRUE(!all || !changes.empty());
    if (changes.empty()) continue;
    ++changed;
    candidate.inputs_changed(changes, all);
    if (!made.runs_in_place()) {
      EXPECT_FALSE(candidate.verify().status.is_ok()) << "an earlier answer passes";
    }
    run_once(candidate);
    const bench::Errors errors = candidate.verify();
    EXPECT_TRUE(errors.status.is_ok()) << errors.status.reason();
  }
  return changed;
}

}  // namespace katt::test
