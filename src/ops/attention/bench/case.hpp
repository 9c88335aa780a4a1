#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "bench/buffer.hpp"
#include "bench/registry.hpp"
#include "ops/attention/attention.hpp"
#include "ops/attention/backward.hpp"
#include "ops/attention/reference.hpp"

/// Attention problems for the bench adapter: host values, their tensors on a backend, and the check
/// of an output against the reference.
namespace katt::attention {

/// Owns the host values of a problem.
struct ProblemData {
  HostProblem shape;  ///< its spans point into the vectors below
  Dtype dtype = Dtype::f32;
  std::vector<float> q, k, v, bias, alibi_slopes, dout;
  std::vector<std::int64_t> kv_len;
  std::vector<std::uint8_t> block_mask;

  ProblemData() = default;
  ProblemData(const ProblemData&) = delete;
  ProblemData& operator=(const ProblemData&) = delete;
  /// Points the spans of `shape` at the vectors.
  void link();
};

/// Arguments of a problem without memory, for workspace sizes and refusals.
[[nodiscard]] ForwardArgs shape_args(const HostProblem& problem, Dtype dtype);

/// The inputs of a problem in the memory of a backend.
class DeviceProblem {
 public:
  DeviceProblem(const ProblemData& data, Backend backend, bench::HeadLayout layout);
  /// Arguments that read these inputs; out and lse are left empty.
  [[nodiscard]] ForwardArgs args() const;

 private:
  HostProblem shape_;
  bench::Tensor<4> q_, k_, v_, bias_;
  bench::Buffer kv_len_, block_mask_, alibi_slopes_;
};

/// out and lse of one variant in the memory of a backend.
struct DeviceOutput {
  bench::Tensor<4> out;
  bench::Tensor<3> lse;
  DeviceOutput(const HostProblem& shape, Dtype dtype, Backend backend, bench::HeadLayout layout);
  void poison() const;
};

/// dq, dk and dv of one variant in the memory of a backend.
struct DeviceGradients {
  bench::Tensor<4> dq, dk, dv;
  DeviceGradients(const HostProblem& shape, Dtype dtype, Backend backend, bench::HeadLayout layout);
  void poison() const;
};

/// Arguments of the backward pass that read the inputs `inputs` and the forward results `forward`.
[[nodiscard]] BackwardArgs backward_args(const ForwardArgs& inputs, const DeviceOutput& forward,
                                         const bench::Tensor<4>& dout,
                                         const DeviceGradients& gradients);

/// The arguments with their key lengths and block mask on the host, where the counts of work read
/// them.
[[nodiscard]] ForwardArgs host_masks(const ProblemData& data, ForwardArgs args);

/// Arguments of the forward pass that write `outputs`.
[[nodiscard]] ForwardArgs forward_args(ForwardArgs inputs, const DeviceOutput& outputs);

/// `katt run attention`: the case file's problem forward, and backward when it holds dout.
void run_case_file(const io::CaseFile& in, const bench::RunOptions& options, io::TensorFile& out);

/// Reference rows of a sample of the queries of a problem, and the limits that out and lse may
/// differ by: testing::ErrorRule, and a rounding of the largest score in f32, which P repeats.
class Reference {
 public:
  explicit Reference(const ProblemData& data);
  /// An empty `lse` is not compared.
  [[nodiscard]] bench::Errors compare(std::span<const float> out, std::span<const float> lse) const;

 private:
  HostProblem shape_;
  std::vector<QueryIndex> sample_;
  std::vector<ReferenceRow> rows_;
  double limit_ = 0;
  double lse_limit_ = 0;
};

/// Reference gradients of all key/value heads of a small problem, of a hashed choice in a large
/// one, and the limits that gradients may differ by, as in Reference; where heads are grouped or
/// scores capped with 3 in place of 2 for the first term, as in FlashAttention-3's tests. dq and dk
/// may differ by two f32 roundings of the terms that they are the difference of, besides.
class GradientReference {
 public:
  explicit GradientReference(const ProblemData& data);
  [[nodiscard]] bench::Errors compare(std::span<const float> dq, std::span<const float> dk,
                                      std::span<const float> dv) const;

 private:
  struct Head {
    std::int64_t batch = 0, kv_head = 0;
    ReferenceGradients exact;
  };
  HostProblem shape_;
  std::vector<Head> heads_;
  double dq_limit_ = 0, dk_limit_ = 0, dv_limit_ = 0;
};

}  // namespace katt::attention
