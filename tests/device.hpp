#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <vector>

#include "machine/machine.hpp"

/// How much of a test is run, and how much of it a device is given. Software that imitates one is a thousand times as slow: it
/// gets every kernel and every kind of problem, but not all of their combinations.
namespace katt::test {

/// Whether tests run all their cases: with KATT_ALL_CASES in the environment, as `scripts/soak all`
/// sets it. Else those that take minutes run some of each kind.
inline bool all_cases() { return std::getenv("KATT_ALL_CASES") != nullptr; }

/// Whether this build's device is imitated by software.
inline bool device_is_emulated() {
#if defined(KATT_HAS_CUDA)
  static const bool emulated = bench::is_emulated(Backend::cuda);
  return emulated;
#else
  return false;
#endif
}

/// True when a test tries the combination of the i-th of one list with the j-th of another of
/// `count`: always, but on an emulated device for one in several only, each entry of both lists at
/// least once.
inline bool is_tried(std::size_t i, std::size_t j, std::size_t count) {
  return !device_is_emulated() || i % count == j;
}

/// True when a problem of this many elements is left to real devices.
inline bool is_too_large(std::int64_t elements) {
  return device_is_emulated() && elements > (std::int64_t{1} << 17);
}

/// A list, or an emulated device's part of it: about `few` entries, the first and the last among
/// them.
template <class T>
std::vector<T> some_of(std::vector<T> all, std::size_t few) {
  if (!device_is_emulated() || all.size() <= few) return all;
  std::vector<T> chosen;
  for (std::size_t k = 0; k < few; ++k) {
    chosen.push_back(all[k * (all.size() - 1) / (few > 1 ? few - 1 : 1)]);
  }
  return chosen;
}

}  // namespace katt::test
