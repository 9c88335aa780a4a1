#pragma once

#include <cstddef>
#include <cstdint>

#include "core/status.hpp"
#include "core/tensor.hpp"
#include "op/variants.hpp"

/// Cross-entropy of logits against class indices, averaged over the tokens that count:
///
///   lse(t) = log Σ_v exp logits(t, v)
///   loss = Σ_t [targets(t) ≠ ignore_index] · (lse(t) − logits(t, targets(t))) / count
///   dlogits(t, v) = dloss · (exp(logits(t, v) − lse(t)) − [v = targets(t)]) / count
///
/// with count the number of tokens whose target is not ignore_index, as
/// torch.nn.functional.cross_entropy with reduction "mean". When no token counts, the loss is 0/0 =
/// NaN and dlogits is 0, as there.
namespace katt::cross_entropy {

/// The target that marks a token as not counted.
inline constexpr std::int64_t default_ignore_index = -100;

/// Arguments of the forward pass. Tensors lie in the memory of the backend; the rows of the logits
/// may be any distance apart. A target that is neither in 0 … vocab − 1 nor ignore_index makes the
/// loss NaN.
struct ForwardArgs {
  ConstTensorRef<2> logits;               ///< (tokens, vocab)
  const std::int64_t* targets = nullptr;  ///< (tokens)
  TensorRef<1> loss;                      ///< (1) f32
  /// (tokens, 2) f32: max_v logits and log Σ_v exp(logits − max), whose sum is lse; 0 where the
  /// token is ignored. Optional; the fused backward pass reads it. They stay separate because the
  /// sum rounds away the digits of the logarithm when the logits are large.
  TensorRef<2> statistics{};
  std::int64_t ignore_index = default_ignore_index;  ///< target that does not count

  std::int64_t tokens() const { return logits.extent[0]; }  ///< rows
  std::int64_t vocab() const { return logits.extent[1]; }   ///< classes
};

/// Arguments of the backward pass.
struct BackwardArgs {
  ConstTensorRef<2> logits;               ///< (tokens, vocab)
  const std::int64_t* targets = nullptr;  ///< (tokens)
  ConstTensorRef<2> statistics;           ///< (tokens, 2) f32, of the forward pass
  TensorRef<2> dlogits;                   ///< (tokens, vocab); may be the memory of the logits
  float dloss = 1.0F;                     ///< gradient of the loss
  std::int64_t ignore_index = default_ignore_index;  ///< target that does not count

  std::int64_t tokens() const { return logits.extent[0]; }  ///< rows
  std::int64_t vocab() const { return logits.extent[1]; }   ///< classes
};

/// The variants of an execution space: "naive" (log-probabilities stored, then gathered) and
/// "fused" (one pass over the logits, nothing of their size stored).
template <class Exec>
VariantTable<Exec, ForwardArgs>& forward_variants();
/// The same for the backward pass.
template <class Exec>
VariantTable<Exec, BackwardArgs>& backward_variants();

/// Throws InputError when the shapes or dtypes of the arguments do not fit together.
void check(const ForwardArgs& args);
/// The same for the backward pass.
void check(const BackwardArgs& args);

/// Launches the pass on the execution space instance and returns without waiting for it. The bits
/// of the result do not depend on the number of threads. Throws InputError for arguments that
/// check() refuses, an unknown variant, and a workspace smaller than the table's workspace_bytes().
template <class Exec>
Status forward(const Exec& exec, const ForwardArgs& args, const Config& config,
               Workspace workspace);
/// The same for the backward pass.
template <class Exec>
Status backward(const Exec& exec, const BackwardArgs& args, const Config& config,
                Workspace workspace);

/// Operations: 4 an element forward (compare, subtract, exponential, add), 3 backward.
[[nodiscard]] double forward_flops(const ForwardArgs& args);
/// The same for the backward pass.
[[nodiscard]] double backward_flops(const BackwardArgs& args);

/// Least traffic in bytes: the logits read once; backward also dlogits written once.
[[nodiscard]] double forward_bytes(const ForwardArgs& args);
/// The same for the backward pass.
[[nodiscard]] double backward_bytes(const BackwardArgs& args);

}  // namespace katt::cross_entropy
