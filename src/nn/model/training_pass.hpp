#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "nn/model/block.hpp"
#include "nn/model/vocabulary.hpp"
#include "ranks/groups.hpp"

namespace katt::nn {

struct PassOptions {
  BatchShape shape;                  ///< of the whole sequences, also when ranks share them
  std::vector<Recompute> recompute;  ///< gradient checkpointing: one entry a block of the model
  Kernels kernels{};
  ranks::Groups groups{};  ///< the ranks that compute the model together
  std::size_t part = 0;    ///< index among the parts of a stage (nn/slice.hpp)
};

/// Forward and backward pass of a LLaMA over one batch, with the memory that they need: the
/// activations that are kept between the two (Chen et al. 2016, arXiv:1604.06174, for those that
/// are not) and one workspace. Gradients have the same bits for every choice of tensors to compute
/// again.
///
/// Each of several ranks has a part of the pass, as its groups say: a part of every matrix
/// (block.hpp, vocabulary.hpp) and of every sequence (ring_attention.hpp), and some of the blocks.
/// The first part of a pipeline begins with the embedding, the last ends with the loss; between
/// them the stream goes from stage to stage, and its gradient back. Tensor parallel ranks may share
/// the rows of the stream (stream_rows.hpp); gradients of the norms are then summed over them in
/// the last pass of a step.
template <class Exec>
class TrainingPass {
 public:
  /// `gradients`: f32. A `dry` pass allocates nothing and only reports sizes. Activations and
  /// workspace come from the pool; throws memory::LimitError beyond its limit.
  TrainingPass(const Exec& exec, const LlamaConfig& config, Dtype dtype, PassOptions options,
               Weights weights, Weights gradients, bool dry = false, Pool<Exec> pool = {});

  /// Makes the system clear the pages of its memory before the first step, which would wait for
  /// that. Call it after other temporary memory is free again.
  void touch() const;

  /// The batch: (batch, seq) token ids and the ids that should follow them; −100 is not counted.
  /// All ranks of the model get the same batch.
  void set_batch(std::span<const std::int64_t> ids, std::span<const std::int64_t> targets);

  /// Mean loss of the batch, or of this rank's part of the sequences; 0 but on the last stage. Waits
  /// for it.
  float forward();
  /// Adds dloss times the gradients of the last forward() to `gradients`; does not wait. The first
  /// pass of a step writes them. After the last pass they are whole; it calls ready(offset) when
  /// the gradients at `offset` of the flat array and beyond are launched.
  void backward(float dloss, bool is_first, bool is_last,
                const std::function<void(std::int64_t)>& ready = {});

  /// Seconds of waiting for other stages so far.
  [[nodiscard]] double waited_s() const { return waited_s_; }
  /// Returns when what it sent to other stages is on its way.
  void wait_for_messages() {
    sent_.wait();
    sent_back_.wait();
  }

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
  void launch_backward(Runner<Exec>& run, float dloss, bool is_last,
                       const std::function<void(std::int64_t)>& ready);
  void launch_loss_backward(Runner<Exec>& run, float dloss);
  /// Handles the gradients of a norm's weight when each rank has those of its rows.
  void sum_norm(Runner<Exec>& run, const TensorRef<1>& gradient) const;
  /// Receives the message of a neighbouring stage.
  void receive(Runner<Exec>& run, const ranks::Communicator& pipeline, const TensorRef<2>& rows,
               int stage);
  /// The rows of this rank's tokens among all tokens of the batch.
  [[nodiscard]] std::vector<std::int64_t> own(std::span<const std::int64_t> values) const;

  Slice slice_;  ///< of the part
  VocabularyPart vocabulary_;
  LlamaConfig config_;  ///< of this rank's part
  Dtype dtype_;
  PassOptions options_;
  Weights weights_;
  Weights gradients_;
  const float* first_gradient_ = nullptr;  ///< of the flat array
  Runner<Exec> run_;
  std::size_t activation_bytes_ = 0;
  memory::PoolBlock memory_;

  std::int64_t* ids_ = nullptr;
  std::int64_t* gradient_ids_ = nullptr;  ///< −1 in the place of padding
  std::int64_t* targets_ = nullptr;
  TensorRef<2> cos_sin_;
  std::vector<BlockActivations> blocks_;
  TensorRef<2> delta_;  ///< the term that a block adds to the stream
  StreamRows rows_;     ///< shared rows of the stream; empty: every rank has all
  TensorRef<2> x_;      ///< the stream after the last block
  TensorRef<2> n_;      ///< and normalised, the rows of all ranks
  LossBuffers loss_;
  std::int64_t counted_ = 0;  ///< targets
  BackwardBuffers buffers_;
  std::int64_t* positions_ = nullptr;  ///< of the rows of a sequence, where ranks share it
  int next_stage_, previous_stage_;    ///< used alternately
  ranks::Request sent_, sent_back_;    ///< to the next stage and to the one before
  double waited_s_ = 0;
};

}  // namespace katt::nn
