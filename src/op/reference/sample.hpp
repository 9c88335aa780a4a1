#pragma once

#include <algorithm>
#include <cstdint>
#include <set>
#include <vector>

#include "op/reference/fill.hpp"

namespace katt::testing {

/// While it lives, sample() chooses by another seed than its usual one, in this thread.
class SampleSeed {
 public:
  explicit SampleSeed(std::uint64_t seed) : before_(current()) { current() = seed; }
  ~SampleSeed() { current() = before_; }
  SampleSeed(const SampleSeed&) = delete;
  SampleSeed& operator=(const SampleSeed&) = delete;

  static std::uint64_t& current() {
    thread_local std::uint64_t seed = 7;
    return seed;
  }

 private:
  std::uint64_t before_;
};

/// Indices of 0 … count − 1 to check: all of them where there are few, else the first, the last and
/// a hashed choice, about `wanted` (at least 8).
inline std::vector<std::int64_t> sample(std::int64_t count, double wanted) {
  const auto most = static_cast<std::int64_t>(std::clamp(wanted, 8.0, 4096.0));
  std::set<std::int64_t> chosen;
  if (count <= most) {
    for (std::int64_t i = 0; i < count; ++i) chosen.insert(i);
  } else {
    chosen = {0, count - 1};
    for (std::uint64_t i = 0; static_cast<std::int64_t>(chosen.size()) < most; ++i) {
      chosen.insert(static_cast<std::int64_t>(hash(SampleSeed::current(), i) %
                                              static_cast<std::uint64_t>(count)));
    }
  }
  return {chosen.begin(), chosen.end()};
}

}  // namespace katt::testing
