#pragma once

#include <cstdint>
#include <vector>

#include <Kokkos_Core.hpp>

#include "memory/transfer.hpp"
#include "nn/device_memory.hpp"
#include "ranks/communicator.hpp"

/// The values of ranks in the tests of the communicator, so that each rank knows the values of the
/// others.
namespace katt::test {

/// The value of rank r at i: exact in every dtype.
inline float held(std::uint64_t seed, int r, std::int64_t i) {
  std::uint64_t x = seed * 0x9E3779B97F4A7C15U +
                    static_cast<std::uint64_t>(r) * 0xD1B54A32D192ED03U +
                    static_cast<std::uint64_t>(i);
  x = (x ^ (x >> 30U)) * 0xBF58476D1CE4E5B9U;
  x ^= x >> 27U;
  return static_cast<float>(static_cast<int>(x % 255U) - 127) / 16.0F;
}

inline std::vector<float> all_held(std::uint64_t seed, int r, std::int64_t count) {
  std::vector<float> values(static_cast<std::size_t>(count));
  for (std::int64_t i = 0; i < count; ++i) values[static_cast<std::size_t>(i)] = held(seed, r, i);
  return values;
}

/// A tensor in the memory of the execution space.
class Tensor {
  using Exec = Kokkos::DefaultExecutionSpace;

 public:
  Tensor(Dtype dtype, const std::vector<float>& values)
      : dtype_(dtype),
        count_(std::ssize(values)),
        memory_("test", values.size() * size_of(dtype), true) {
    memory::Transfer<Exec> transfer{Exec()};
    nn::write_elements(transfer, values, dtype, memory_.data());
  }
  Tensor(Dtype dtype, std::int64_t count)
      : Tensor(dtype, std::vector<float>(static_cast<std::size_t>(count), 99.0F)) {}

  [[nodiscard]] TensorRef<1> ref() const { return {memory_.data(), dtype_, {count_}}; }
  [[nodiscard]] TensorRef<1> part(ranks::Part part) const {
    return {memory_.data() + static_cast<std::size_t>(part.begin) * size_of(dtype_),
            dtype_,
            {part.count}};
  }
  [[nodiscard]] std::vector<float> values() const {
    std::vector<float> values(static_cast<std::size_t>(count_));
    memory::Transfer<Exec> transfer{Exec()};
    nn::read_elements(transfer, memory_.data(), dtype_, values);
    return values;
  }

 private:
  Dtype dtype_;
  std::int64_t count_;
  nn::DeviceMemory<Exec> memory_;
};

}  // namespace katt::test
