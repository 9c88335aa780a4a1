#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "op/buffer.hpp"
#include "op/registry.hpp"
#include "ops/linear_cross_entropy/linear_cross_entropy.hpp"
#include "ops/linear_cross_entropy/linear_cross_entropy_ref.hpp"

/// Problems of linear_cross_entropy for the bench adapter: host values, their tensors on a backend,
/// and the check of outputs against the reference.
namespace katt::linear_cross_entropy {

/// Owns the host values of a problem.
struct ProblemData {
  HostProblem shape;  ///< its spans point into the vectors below
  Dtype dtype = Dtype::f32;
  std::vector<float> hidden, weight;
  std::vector<std::int64_t> targets;

  ProblemData() = default;
  ProblemData(const ProblemData&) = delete;
  ProblemData& operator=(const ProblemData&) = delete;
  void link();
};

/// Arguments of a problem without memory, for workspace sizes and refusals.
[[nodiscard]] ForwardArgs forward_shape(const HostProblem& problem, Dtype dtype);
[[nodiscard]] BackwardArgs backward_shape(const HostProblem& problem, Dtype dtype);

/// The inputs of a problem on a backend.
struct DeviceProblem {
  bench::Tensor<2> hidden, weight;
  bench::Buffer targets;
  DeviceProblem(const ProblemData& data, Backend backend);
};

/// Outputs of the forward pass; logits where "naive" is to go backward from them.
struct ForwardOutput {
  bench::Tensor<1> loss;
  bench::Tensor<2> statistics;
  bench::Tensor<2> logits;

  ForwardOutput() = default;
  ForwardOutput(const HostProblem& problem, Dtype dtype, Backend backend, bool with_logits);
  void poison() const;
};

/// Outputs of the backward pass and, for "naive", the forward pass whose logits it reads.
struct BackwardOutput {
  bench::Tensor<2> dhidden, dweight;
  std::optional<ForwardOutput> saved;
  void poison() const;
};

[[nodiscard]] ForwardArgs link(const DeviceProblem& problem, const ForwardOutput& output);
/// Reads `saved` of the output, or else `forward`.
[[nodiscard]] BackwardArgs link(const DeviceProblem& problem, const ForwardOutput& forward,
                                const BackwardOutput& output);

/// Reference of a sample of tokens and of rows of the vocabulary, and limits by the rule
/// 2·max|unfused − exact| + 2·max|round(exact) − exact|.
class Reference {
 public:
  explicit Reference(const ProblemData& data);
  /// `loss` and `statistics` (tokens, 2) of an output.
  [[nodiscard]] bench::Errors forward(float loss, std::span<const float> statistics) const;
  /// Gradients; `statistics` are those of a forward pass that forward() accepts.
  [[nodiscard]] bench::Errors backward(std::span<const float> dhidden,
                                       std::span<const float> dweight,
                                       std::span<const float> statistics) const;

 private:
  HostProblem shape_;
  Dtype dtype_;
  std::vector<std::int64_t> tokens_, columns_;
};

}  // namespace katt::linear_cross_entropy
