#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "op/buffer.hpp"
#include "op/registry.hpp"
#include "ops/ternary_linear/ternary_linear.hpp"
#include "ops/ternary_linear/ternary_linear_ref.hpp"

/// Ternary problems for the bench adapter: host values, the weight in the form that a variant
/// reads, and the check of outputs against the reference.
namespace katt::ternary_linear {

/// Owns the host values of a problem.
struct ProblemData {
  HostProblem shape;  ///< its spans point into the vectors below
  Dtype dtype = Dtype::f32;
  std::vector<float> x, weight, dout;

  ProblemData() = default;
  ProblemData(const ProblemData&) = delete;
  ProblemData& operator=(const ProblemData&) = delete;
  void link();
};

/// Arguments of a problem without memory, for workspace sizes and refusals.
[[nodiscard]] ForwardArgs forward_shape(const HostProblem& problem, Dtype dtype);
[[nodiscard]] BackwardArgs backward_shape(const HostProblem& problem, Dtype dtype);

/// Bytes of the weight in the form that a variant reads.
[[nodiscard]] std::size_t weight_bytes(const HostProblem& problem, Dtype dtype,
                                       const std::string& variant);

/// The weight of a problem, quantised and packed by the kernels on a backend and brought back to
/// the host: dequantised, and in both packed formats.
class PreparedWeight {
 public:
  PreparedWeight(const ProblemData& data, Backend backend, int threads);

  /// The weight in the memory of a backend, in the form that a variant reads.
  struct OnDevice {
    bench::Tensor<2> dense;
    bench::Buffer bytes;
    PackedTernary packed;

    template <class Args>
    void add_to(Args& args) const {
      args.dense = dense.ref();
      args.packed = packed;
    }
  };
  [[nodiscard]] OnDevice upload(const std::string& variant, Backend backend) const;

  /// The weight dequantised, on the host.
  [[nodiscard]] std::span<const float> dense() const { return dense_; }

 private:
  HostProblem shape_;
  Dtype dtype_;
  std::vector<float> dense_;
  std::vector<std::byte> two_bit_, five_per_byte_;
};

/// The checks of a problem: a sample of the elements of each output.
class Checks {
 public:
  explicit Checks(const ProblemData& data);
  [[nodiscard]] bench::Errors forward(std::span<const float> out) const;
  [[nodiscard]] bench::Errors backward(std::span<const float> dx,
                                       std::span<const float> dweight) const;

 private:
  HostProblem shape_;
  Dtype dtype_;
  Reference reference_;
};

}  // namespace katt::ternary_linear
