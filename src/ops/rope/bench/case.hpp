#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "bench/buffer.hpp"
#include "bench/registry.hpp"
#include "ops/rope/rope.hpp"
#include "ops/rope/rope_ref.hpp"

/// Rotary embedding problems for the bench adapter: host values, their tensors on a backend, and
/// the check of an output against the reference.
namespace katt::rope {

/// Owns the host values of a problem: one tensor, or two that share their angles.
struct ProblemData {
  HostProblem shape;          ///< of the first tensor; its spans point into the vectors below
  std::int64_t kv_heads = 0;  ///< of the second tensor; 0: there is none
  Dtype dtype = Dtype::f32;
  std::vector<float> x, x2;
  std::vector<std::int64_t> positions;

  ProblemData() = default;
  ProblemData(const ProblemData&) = delete;
  ProblemData& operator=(const ProblemData&) = delete;
  /// Points the spans of `shape` at the vectors.
  void link();
  /// The problem of the second tensor.
  [[nodiscard]] HostProblem second() const;
};

/// The tensors of a pass, as the arguments of either pass name them.
struct Tensors {
  ConstTensorRef<4> in, in2;
  TensorRef<4> out, out2;
  ConstTensorRef<2> cache;
  const std::int64_t* positions = nullptr;
  bool interleaved = false;

  /// ForwardArgs or BackwardArgs.
  template <class Args>
  [[nodiscard]] Args args() const {
    Args args;
    if constexpr (std::is_same_v<Args, ForwardArgs>) {
      args.x = in;
      args.out = out;
      args.x2 = in2;
      args.out2 = out2;
    } else {
      args.dout = in;
      args.dx = out;
      args.dout2 = in2;
      args.dx2 = out2;
    }
    args.cache = cache;
    args.positions = positions;
    args.interleaved = interleaved;
    return args;
  }
};

/// Tensors of a problem without memory, for workspace sizes and refusals.
[[nodiscard]] Tensors shapes_of(const HostProblem& problem, std::int64_t kv_heads, Dtype dtype,
                                bool explicit_positions);

/// Rows of the cache that a problem needs: one a position, or one for each of (batch, seq) where
/// the positions are explicit, so that a far position costs no more than a near one.
[[nodiscard]] std::int64_t cache_rows(const HostProblem& problem, bool explicit_positions);

/// What a problem is read from, in the memory of a backend. Without `inputs` only the angles are
/// there: an operation in place reads its outputs.
class DeviceProblem {
 public:
  DeviceProblem(const ProblemData& data, Backend backend, int threads, bench::HeadLayout layout,
                bool inputs);
  /// Tensors that read these inputs; the outputs are left empty.
  [[nodiscard]] Tensors tensors() const;
  /// The angles' table on the host.
  [[nodiscard]] std::vector<float> cache() const { return cache_.download(); }

 private:
  Tensors shapes_;
  bench::Tensor<4> x_, x2_;
  bench::Tensor<2> cache_;
  bench::Buffer positions_;
};

/// The outputs of one variant in the memory of a backend.
class DeviceOutput {
 public:
  /// In place the outputs begin as the inputs of `data`, and poison() makes them so again.
  DeviceOutput(const ProblemData& data, Backend backend, bench::HeadLayout layout, bool in_place);
  /// Points the outputs of the tensors here, in place the inputs too.
  void link(Tensors& tensors) const;
  void poison() const;

  bench::Tensor<4> out, out2;

 private:
  const ProblemData* source_;  ///< of the values in place; null elsewhere
};

/// Reference rows of a sample of a problem, and the limit that each output may differ by
/// (testing::ErrorRule).
class Reference {
 public:
  explicit Reference(const ProblemData& data);
  [[nodiscard]] bench::Errors compare(const DeviceOutput& output) const;

 private:
  struct Sample {
    HostProblem shape;
    std::vector<RowIndex> rows;
    std::vector<std::vector<double>> expected;
    double limit = 0;
  };
  void add(const HostProblem& problem, Dtype dtype);

  std::vector<Sample> samples_;
};

}  // namespace katt::rope
