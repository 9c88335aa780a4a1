#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "nn/block.hpp"

namespace katt::nn {

struct PassOptions {
  BatchShape shape;
  std::vector<Recompute> recompute;  ///< gradient checkpointing: one entry a block
  Kernels kernels{};
};

/// Forward and backward pass of a LLaMA over one batch, with the memory that they need: the
/// activations that are kept between the two (Chen et al. 2016, arXiv:1604.06174, for those that
/// are not) and one workspace. Gradients have the same bits whatever is computed again.
template <class Exec>
class TrainingPass {
 public:
  /// `gradients`: f32. Allocates nothing, and can be asked for sizes only, when `dry`. Activations
  /// and workspace come from the pool; throws memory::LimitError beyond its limit.
  TrainingPass(const Exec& exec, const LlamaConfig& config, Dtype dtype, PassOptions options,
               Weights weights, Weights gradients, bool dry = false, Pool<Exec> pool = {});

  /// The batch: (batch, seq) token ids and the ids that should follow them; −100 is not counted.
  void set_batch(std::span<const std::int64_t> ids, std::span<const std::int64_t> targets);

  /// Mean loss of the batch. Waits for it.
  float forward();
  /// Adds dloss times the gradients of the last forward() to `gradients`; does not wait.
  void backward(float dloss);

  /// Bytes that the pool reserves.
  [[nodiscard]] std::size_t activation_bytes() const {
    return memory::reserved_bytes(activation_bytes_);
  }
  [[nodiscard]] std::size_t workspace_bytes() const {
    return memory::reserved_bytes(run_.workspace_bytes());
  }

 private:
  void lay_out(Arena arena);
  void launch_forward(Runner<Exec>& run);
  void launch_backward(Runner<Exec>& run, float dloss);
  void launch_loss_backward(Runner<Exec>& run, float dloss);

  LlamaConfig config_;
  Dtype dtype_;
  PassOptions options_;
  Weights weights_;
  Weights gradients_;
  Runner<Exec> run_;
  std::size_t activation_bytes_ = 0;
  memory::PoolBlock memory_;

  std::int64_t* ids_ = nullptr;
  std::int64_t* targets_ = nullptr;
  TensorRef<2> cos_sin_;
  std::vector<BlockActivations> blocks_;
  TensorRef<2> delta_;       ///< what a block adds to the stream
  TensorRef<2> x_, n_;       ///< the stream after the last block, and normalised
  TensorRef<1> loss_;        ///< (1) f32
  TensorRef<2> statistics_;  ///< of the loss
  BackwardBuffers buffers_;
};

}  // namespace katt::nn
