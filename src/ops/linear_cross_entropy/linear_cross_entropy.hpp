#pragma once

#include <cstddef>
#include <cstdint>

#include "core/status.hpp"
#include "core/tensor.hpp"
#include "op/variants.hpp"
#include "ops/cross_entropy/cross_entropy.hpp"

/// The last layer of a language model and its loss in one operation:
///
///   logits = hidden · weightᵀ                            (tokens, vocab), never stored by "fused"
///   loss   = mean over counted tokens of log Σ_v exp logits(t, v) − logits(t, targets(t))
///   g      = dloss · (exp(logits − lse) − onehot) / count
///   dhidden = g · weight,   dweight = gᵀ · hidden
///
/// with counted tokens as in cross_entropy.hpp. The fused form goes through the vocabulary by
/// blocks, with an online log-sum-exp (Milakov & Gimelshein 2018, arXiv:1805.02867), and computes
/// the blocks again backward (Wijmans et al. 2024, "Cut your losses", arXiv:2411.09009): its memory
/// does not grow with the vocabulary. Where the caller has memory for all logits, it keeps the blocks
/// for its backward pass, whose bits are the same.
namespace katt::linear_cross_entropy {

/// Arguments of the forward pass, in the memory of the backend; hidden and weight share a dtype and
/// their rows may be any distance apart.
struct ForwardArgs {
  ConstTensorRef<2> hidden;               ///< (tokens, hidden)
  ConstTensorRef<2> weight;               ///< (vocab, hidden)
  const std::int64_t* targets = nullptr;  ///< (tokens)
  TensorRef<1> loss;                      ///< (1) f32
  TensorRef<2> statistics;  ///< (tokens, 2) f32: max_v logits, log Σ_v exp(logits − max)
  /// (tokens, vocab) of the dtype: where "naive" leaves the logits for its backward pass. Optional.
  TensorRef<2> logits{};
  /// (tokens, vocab) f32: where "fused" leaves its blocks of logits, one after the other, for its
  /// backward pass. Optional.
  TensorRef<2> kept_logits{};
  std::int64_t ignore_index = cross_entropy::default_ignore_index;  ///< target that does not count

  std::int64_t tokens() const { return hidden.extent[0]; }       ///< rows
  std::int64_t hidden_size() const { return hidden.extent[1]; }  ///< elements of a row of hidden
  std::int64_t vocab() const { return weight.extent[0]; }        ///< classes
};

/// Arguments of the backward pass.
struct BackwardArgs {
  ConstTensorRef<2> hidden;               ///< (tokens, hidden)
  ConstTensorRef<2> weight;               ///< (vocab, hidden)
  const std::int64_t* targets = nullptr;  ///< (tokens)
  ConstTensorRef<2> statistics;           ///< (tokens, 2) f32, of the forward pass
  /// (tokens, vocab) of the forward pass; read by "naive" alone, which auto is with them.
  ConstTensorRef<2> logits{};
  /// (tokens, vocab) f32 of the forward pass; read by "fused" alone, which overwrites them.
  TensorRef<2> kept_logits{};
  TensorRef<2> dhidden;                                             ///< (tokens, hidden)
  TensorRef<2> dweight;                                             ///< (vocab, hidden)
  float dloss = 1.0F;                                               ///< gradient of the loss
  std::int64_t ignore_index = cross_entropy::default_ignore_index;  ///< target that does not count

  std::int64_t tokens() const { return hidden.extent[0]; }       ///< rows
  std::int64_t hidden_size() const { return hidden.extent[1]; }  ///< elements of a row of hidden
  std::int64_t vocab() const { return weight.extent[0]; }        ///< classes
};

/// The variants of an execution space: "naive" (logits stored in the dtype) and "fused" (blocks of
/// the vocabulary, in f32).
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
/// of the result do not depend on the number of threads. Returns skipped with the reason where
/// "naive" is to go backward without logits. Throws InputError for arguments that check() refuses,
/// an unknown variant, and a workspace smaller than the table's workspace_bytes().
template <class Exec>
Status forward(const Exec& exec, const ForwardArgs& args, const Config& config,
               Workspace workspace);
/// The same for the backward pass.
template <class Exec>
Status backward(const Exec& exec, const BackwardArgs& args, const Config& config,
                Workspace workspace);

/// Operations of the matrix products: 2 · tokens · hidden · vocab forward, twice that backward
/// (what "fused" may compute again does not count).
[[nodiscard]] double forward_flops(const ForwardArgs& args);
/// The same for the backward pass.
[[nodiscard]] double backward_flops(const BackwardArgs& args);

/// Least traffic in bytes: hidden and weight read once; backward also their gradients written once.
[[nodiscard]] double forward_bytes(const ForwardArgs& args);
/// The same for the backward pass.
[[nodiscard]] double backward_bytes(const BackwardArgs& args);

}  // namespace katt::linear_cross_entropy
