#pragma once

#include <cstddef>
#include <vector>

#include "core/tensor.hpp"
#include "nn/device_memory.hpp"
#include "nn/parameters.hpp"

/// The packed projections of a ternary model.
namespace katt::nn {

/// Gives every projection of the weights its place in memory, and returns their bytes. Without
/// memory it only counts.
std::size_t bind_ternary(Weights& weights, std::byte* data);

/// The projections of a model, or of a part of it, as ternary_linear's kernels read them. q, k and
/// v are one matrix, and so are gate and up; each tensor has a scale of its own.
template <class Exec>
class TernaryWeights {
 public:
  /// Allocates them and binds the weights to them; does nothing for a model that is not ternary.
  TernaryWeights(const LlamaConfig& config, const ParameterLayout& layout, Weights& weights);

  /// Quantises and packs a tensor of the layout, which lies in the memory of the execution space in any
  /// dtype. Launches and does not wait.
  void pack(const Exec& exec, const Parameter& parameter, const TensorRef<2>& values) const;
  /// The same for all tensors of a flat array.
  void pack(const Exec& exec, Dtype dtype, void* data) const;

  [[nodiscard]] std::size_t bytes() const { return memory_.bytes() + sums_.bytes(); }
  /// Elements of the largest tensor.
  [[nodiscard]] std::int64_t largest() const;

 private:
  /// The place of a tensor.
  struct Part {
    Parameter parameter;
    ternary_linear::PackedTernary packed;
    std::int64_t first_row;
  };
  DeviceMemory<Exec> memory_, sums_;
  std::vector<Part> parts_;
};

/// Bytes that TernaryWeights allocates, without allocating them. Binds the weights to addresses
/// that nobody may read.
std::size_t rehearse_ternary(const LlamaConfig& config, const ParameterLayout& layout,
                             Weights& weights);

}  // namespace katt::nn
