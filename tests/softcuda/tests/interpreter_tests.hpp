#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "tests/softcuda/device.hpp"
#include "tests/softcuda/halves.hpp"

/// What the tests of the interpreter share: parameters, device memory, faults, 16-bit values.
namespace softcuda::test {

const std::string ptx_header = ".version 9.0\n.target sm_90a\n.address_size 64\n";

/// The packed parameter space of a launch.
struct Arguments {
  std::vector<std::byte> bytes;
  template <class T>
  Arguments& add(T value) {
    bytes.resize((bytes.size() + sizeof(T) - 1) / sizeof(T) * sizeof(T));
    const std::size_t at = bytes.size();
    bytes.resize(at + sizeof(T));
    std::memcpy(&bytes[at], &value, sizeof(T));
    return *this;
  }
};
template <class T>
std::uint64_t upload(const std::vector<T>& v) {
  const std::uint64_t at = device_malloc(v.size() * sizeof(T));
  std::memcpy(reach(at, v.size() * sizeof(T)), v.data(), v.size() * sizeof(T));
  return at;
}
template <class T>
std::vector<T> download(std::uint64_t at, std::size_t n) {
  std::vector<T> v(n);
  std::memcpy(v.data(), reach(at, n * sizeof(T)), n * sizeof(T));
  return v;
}
inline std::uint16_t half(float x) { return narrow<false>(x); }
/// The fault of a call as "CUDA-ERROR TEXT", or "".
inline std::string fault_of(const std::function<void()>& f) {
  try {
    f();
  } catch (const DeviceFault& e) {
    return std::to_string(e.cuda_error) + " " + e.what();
  }
  return "";
}
/// Values in [-1, 1) that f16 holds exactly.
inline std::vector<float> random_values(std::size_t n, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<float> v(n);
  for (auto& x : v) x = widen<false>(half(std::uniform_real_distribution<float>(-1, 1)(random)));
  return v;
}
inline std::vector<std::uint16_t> halves(const std::vector<float>& v) {
  std::vector<std::uint16_t> h;
  for (const float x : v) h.push_back(half(x));
  return h;
}

}  // namespace softcuda::test
