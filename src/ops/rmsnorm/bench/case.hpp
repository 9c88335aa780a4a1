#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "bench/buffer.hpp"
#include "bench/registry.hpp"
#include "ops/rmsnorm/rmsnorm.hpp"
#include "ops/rmsnorm/rmsnorm_ref.hpp"

/// RMS normalisation problems for the bench adapter: host values, their tensors on a backend, and
/// the check of outputs against the reference.
namespace katt::rmsnorm {

/// What is computed beside out or dx.
struct Options {
  bool backward = false;
  bool residual = false;  ///< forward: x + residual first; backward: dresidual_out added to dx
  bool quantise = false;  ///< forward: out_q instead of out
};

/// Owns the host values of a problem.
struct ProblemData {
  HostProblem shape;  ///< its spans point into the vectors below
  Options options;
  std::vector<float> x, weight, residual, dout, dresidual_out;

  ProblemData() = default;
  ProblemData(const ProblemData&) = delete;
  ProblemData& operator=(const ProblemData&) = delete;
  /// Points the spans of `shape` at the vectors.
  void link();
};

/// Arguments of a problem without memory, for workspace sizes, refusals and work.
template <class Args>
[[nodiscard]] Args shape_args(const HostProblem& problem, const Options& options);

/// The inputs of a problem in the memory of a backend.
class DeviceProblem {
 public:
  DeviceProblem(const ProblemData& data, Backend backend);
  /// Arguments that read these inputs; the outputs are left empty.
  template <class Args>
  [[nodiscard]] Args args() const;

 private:
  HostProblem shape_;
  Options options_;
  bench::Tensor<2> x_, residual_, dout_;  ///< residual_ also holds dresidual_out
  bench::Tensor<1> weight_;
};

/// The outputs of one variant in the memory of a backend.
struct DeviceOutput {
  bench::Tensor<2> out;           ///< or dx; empty where only out_q is wanted
  bench::Tensor<2> residual_out;  ///< forward with a residual
  bench::Tensor<1> dweight;       ///< backward
  bench::Buffer out_q;            ///< with quantise
  bench::Tensor<1> scale;         ///< with quantise

  DeviceOutput(const HostProblem& shape, const Options& options, Backend backend);
  /// Points the outputs of the arguments here.
  template <class Args>
  void link(Args& args) const;
  void poison() const;
};

/// Reference values of a sample of rows and columns, and the limits that outputs may differ by
/// (testing::ErrorRule); dx by two f32 roundings of the terms that it is the difference of, and
/// quantised values by half a step, besides.
class Reference {
 public:
  explicit Reference(const ProblemData& data);
  [[nodiscard]] bench::Errors compare(const DeviceOutput& output) const;

 private:
  [[nodiscard]] bench::Errors compare_forward(const DeviceOutput& output) const;
  [[nodiscard]] bench::Errors compare_backward(const DeviceOutput& output) const;

  HostProblem shape_;
  Options options_;
  std::vector<std::int64_t> rows_, columns_;
  std::vector<ForwardRow> forward_;
  Gradients gradients_;
  double limit_ = 0;  ///< of out or dx
  double dweight_limit_ = 0;
};

}  // namespace katt::rmsnorm
