#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <vector>

#include "nn/model/model.hpp"
#include "nn/model/training_pass.hpp"
#include "training/data.hpp"
#include "training/optimizer.hpp"
#include "training/pipeline_schedule.hpp"
#include "training/precision.hpp"
#include "training/schedule.hpp"
#include "training/sharing.hpp"

namespace katt::training {

/// How a model is trained.
struct TrainOptions {
  nn::BatchShape shape{.batch = 1, .seq = 128};  ///< shape of a microbatch
  std::int64_t accumulation = 1;                 ///< microbatches a step
  Dtype dtype = Dtype::f32;                      ///< dtype of weights and activations
  /// Dtype of the parameters that the optimizer updates: f32, or `dtype`, which then has no masters
  /// beside the weights.
  Dtype master_dtype = Dtype::f32;
  Schedule schedule{};                     ///< learning rate over the steps
  AdamW optimizer{};                       ///< constants of AdamW
  double clip = 1.0;                       ///< largest norm of all gradients; 0: any
  LossScaling scaling{};                   ///< of 16-bit gradients
  std::vector<nn::Recompute> recompute{};  ///< gradient checkpointing, one entry a block
  nn::Kernels kernels{};                   ///< variants of the operators
  /// The ranks that train together; shape and accumulation count the rows of all ranks.
  ranks::Groups groups{};
  std::int64_t micro_batches = 0;  ///< microbatches of a rank's step; 0: as `shape` and
                                   ///< `accumulation` say
  std::int64_t bucket = std::int64_t{4} << 20;  ///< number of gradients summed at a time
};

/// The record of one step.
struct StepLog {
  float loss = 0;        ///< mean over the microbatches
  float grad_norm = 0;   ///< before clipping
  float rate = 0;        ///< learning rate
  float time_s = 0;      ///< seconds of the step
  float loss_scale = 1;  ///< factor of the loss
  /// Share of the time of the passes in which the stages of a pipeline idle, averaged over the
  /// stages.
  float pipeline_idle = 0;
  bool skipped = false;  ///< a gradient was not finite: the parameters stay
};

/// The state that later steps need beside the parameters and the optimizer's moments, and the log.
struct TrainingState {
  std::int64_t updates = 0;     ///< steps that were not skipped
  double loss_scale = 1;        ///< of the next step
  std::int64_t good_steps = 0;  ///< steps since the scale changed
  std::vector<StepLog> log;     ///< every step so far
};

/// Bytes of a training run, by content.
struct TrainingMemory {
  std::size_t parameters = 0;     ///< masters, the copy in the dtype, and packed ternary weights
  std::size_t gradients = 0;      ///< f32, or the part of ZeRO-1
  std::size_t optimizer = 0;      ///< both moments
  std::size_t activations = 0;    ///< of a microbatch in progress
  std::size_t workspace = 0;      ///< of the operators
  std::size_t communication = 0;  ///< gradients from other ranks, before their sum
  /// The sum of all.
  [[nodiscard]] std::size_t total() const {
    return parameters + gradients + optimizer + activations + workspace + communication;
  }
};

struct RunArrays;

/// Throws InputError when the ranks of the options cannot share the model or the batch.
void check_ranks(const nn::LlamaConfig& config, const TrainOptions& options);

/// Bytes that a Trainer allocates on this rank, without allocating them.
template <class Exec>
[[nodiscard]] TrainingMemory training_memory(const Exec& exec, const nn::LlamaConfig& config,
                                             const TrainOptions& options);

/// Trains a LLaMA: accumulation of gradients, loss scaling, clipping by the global norm, AdamW with
/// decay on tensors of rank 2 alone, a schedule; all state in flat arrays. A step computes the same
/// bits on every run.
///
/// Each of several ranks trains its part of the model (nn/slice.hpp) on its rows. Ranks with the
/// same parameters sum their gradients, in buckets, while the backward pass runs. With ZeRO-1 each
/// of them updates a part, and keeps moments, and masters of 16-bit models, of that part only.
/// Stages of a pipeline take microbatches in the order of pipeline_schedule().
template <class Exec>
class Trainer {
 public:
  /// Parameters come from the folder, or are random (nn::initialize_parameters). Activations and
  /// workspace come from the pool; throws memory::LimitError beyond its limit.
  Trainer(const Exec& exec, nn::LlamaConfig config, TrainOptions options,
          const std::filesystem::path& folder, std::uint64_t seed, nn::Pool<Exec> pool = {});

  /// Microbatch m of step s uses the rows (s · accumulation + m) · batch … of the data.
  StepLog step(const TokenData& data);

  /// Steps done, including skipped ones.
  [[nodiscard]] std::int64_t steps() const { return static_cast<std::int64_t>(log_.size()); }
  /// Every step so far.
  [[nodiscard]] const std::vector<StepLog>& log() const { return log_; }
  /// The whole model.
  [[nodiscard]] const nn::LlamaConfig& config() const { return config_; }
  /// Place of each tensor in the flat arrays.
  [[nodiscard]] const nn::ParameterLayout& layout() const { return layout_; }
  /// As given to the constructor.
  [[nodiscard]] const TrainOptions& options() const { return options_; }

  /// The parameters (masters), flat, on the host, of this rank's part. Replicas may share them, so
  /// all replicas call it.
  [[nodiscard]] std::vector<float> parameters() const;
  /// The gradients of the last step, flat, on the host, of this rank's part, unless ZeRO-1 has cut
  /// them.
  [[nodiscard]] std::vector<float> gradients() const {
    return values(gradients_, Dtype::f32, layout_.size());
  }

  /// Writes all state of later steps to a folder (training/saving.hpp), in `shards` shards; 0:
  /// suggested_shards(). All ranks call it.
  void save(const std::filesystem::path& folder, int shards = 0) const;
  /// Continues from a run that any layout has saved: the next steps have the same bits as in an
  /// unbroken run of these ranks. All ranks call it. Throws InputError when the folder holds
  /// another run.
  void resume(const std::filesystem::path& folder);

 private:
  /// True when the masters are the weights.
  [[nodiscard]] bool is_weights() const { return options_.dtype == options_.master_dtype; }
  /// Loads the parameters of the folder, or makes random ones when it has none.
  void initialize(const std::filesystem::path& folder, std::uint64_t seed);
  void run_microbatches(const TokenData& data, float dloss);
  /// StepLog::pipeline_idle for passes that took `seconds` on this rank.
  [[nodiscard]] double idle_share(double passes_s) const;
  [[nodiscard]] double waited_s() const;
  /// Sums the gradients from `offset` on over the replicas, bucket by bucket.
  void sum_gradients(std::int64_t offset, bool to_the_end);
  void sum_tied_gradients();
  [[nodiscard]] double gradient_norm();
  /// Sums the gradients over the ranks, and updates the parameters.
  void apply_gradients(StepLog& log);
  void update(double factor, double rate);
  void gather_parameters();
  void round_master();
  [[nodiscard]] nn::Weights bind(Dtype dtype, const nn::DeviceMemory<Exec>& memory) const;
  [[nodiscard]] std::vector<float> values(const nn::DeviceMemory<Exec>& memory, Dtype dtype,
                                          std::int64_t count) const;
  /// Masters and moments in their memory.
  [[nodiscard]] RunArrays arrays() const;

  Exec exec_;
  nn::LlamaConfig config_;
  nn::ParameterLayout layout_;
  TrainOptions options_;
  RowShare rows_;
  Sharing sharing_;
  LossScaler scaler_;
  std::int64_t updates_ = 0;  ///< steps that were not skipped
  std::vector<StepLog> log_;
  nn::DeviceMemory<Exec> master_, copy_, gradients_, m_, v_, sums_;
  nn::Weights weights_;  ///< in copy_, and packed
  nn::TernaryWeights<Exec> ternary_;
  std::vector<PipelinePass> schedule_;
  /// One pass for every part of the stage and every microbatch in progress.
  std::vector<std::vector<std::unique_ptr<nn::TrainingPass<Exec>>>> passes_;
  std::vector<std::int64_t> ids_, targets_;
  double waited_before_ = 0;  ///< waited_s() before the step
  double loss_ = 0;           ///< sum over the microbatches of a step
  std::size_t summed_ = 0;    ///< buckets whose sums are done or in progress
  ranks::Request sum_;
};

}  // namespace katt::training
