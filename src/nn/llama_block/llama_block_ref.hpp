#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "core/dtype.hpp"
#include "nn/llama_block/llama_block.hpp"
#include "op/reference/expected.hpp"

/// Float64 reference of a whole block on the host, by the definitions of its operators. Shares no
/// code with them.
namespace katt::llama_block {

/// A problem in host memory: dense row-major float32 tensors whose values are already rounded to
/// the dtype under test.
struct HostProblem {
  Shape shape;
  Dtype dtype = Dtype::f32;
  std::span<const float> stream, delta;  ///< (tokens, hidden)
  std::span<const float> input_norm;     ///< (hidden)
  std::span<const float> qkv;            ///< (qkv_size, hidden)
  std::span<const float> o;              ///< (hidden, q_size)
  std::span<const float> post_norm;      ///< (hidden)
  std::span<const float> gate_up;        ///< (2·intermediate, hidden)
  std::span<const float> down;           ///< (hidden, intermediate)
  std::span<const float> dout{};         ///< (tokens, hidden); only for the requested tokens
};

/// A sample of every output, by its name.
using Expected = std::map<std::string, std::vector<testing::ExpectedValue>, std::less<>>;

/// The tokens whose rows the reference computes: all of a small problem, else the first, the last
/// and a hashed choice, so that the reference takes seconds.
[[nodiscard]] std::vector<std::int64_t> sampled_tokens(const Shape& shape);

/// `h` and `delta_out` of some tokens (sorted). The reference computes every key that these tokens
/// see, and all else for them alone. The exact values are float64 throughout; the unfused ones are
/// f32, rounded to the dtype at every tensor that an unfused implementation stores.
[[nodiscard]] Expected expected_forward(const HostProblem& problem,
                                        std::span<const std::int64_t> tokens);

/// `dx` of those tokens and elements of the gradients of all weights (`dqkv`, `do`, `dgate_up`,
/// `ddown`, `dinput_norm`, `dpost_norm`) for a gradient that is `dout` at those tokens and zero at
/// all others: then no other token's attention output or feed-forward layer matters, and the sums
/// over tokens are complete.
[[nodiscard]] Expected expected_backward(const HostProblem& problem,
                                         std::span<const std::int64_t> tokens);

}  // namespace katt::llama_block
