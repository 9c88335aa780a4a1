#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

#include "nn/model.hpp"
#include "nn/training_pass.hpp"
#include "training/data.hpp"
#include "training/optimizer.hpp"
#include "training/precision.hpp"
#include "training/schedule.hpp"

namespace katt::training {

struct TrainOptions {
  nn::BatchShape shape{.batch = 1, .seq = 128};  ///< of a microbatch
  std::int64_t accumulation = 1;                 ///< microbatches a step
  Dtype dtype = Dtype::f32;                      ///< of weights and activations; masters are f32
  Schedule schedule{};
  AdamW optimizer{};
  double clip = 1.0;  ///< largest norm of all gradients; 0: any
  LossScaling scaling{};
  std::vector<nn::Recompute> recompute{};  ///< gradient checkpointing, one entry a block
  nn::Kernels kernels{};
};

/// What one step did.
struct StepLog {
  float loss = 0;       ///< mean over the microbatches
  float grad_norm = 0;  ///< before clipping
  float rate = 0;
  float time_s = 0;
  float loss_scale = 1;
  bool skipped = false;  ///< a gradient was not finite: the parameters stay
};

/// State of a training run on the host; flat arrays of the layout.
struct TrainingState {
  std::vector<float> parameters, m, v;
  std::int64_t updates = 0;
  double loss_scale = 1;
  std::int64_t good_steps = 0;
  std::vector<StepLog> log;
};

/// Bytes of a training run, by what they hold.
struct TrainingMemory {
  std::size_t parameters = 0;  ///< f32 masters, and the copy in the dtype
  std::size_t gradients = 0;
  std::size_t optimizer = 0;
  std::size_t activations = 0;
  std::size_t workspace = 0;
  [[nodiscard]] std::size_t total() const {
    return parameters + gradients + optimizer + activations + workspace;
  }
};

/// Bytes that a Trainer allocates, without allocating them.
template <class Exec>
[[nodiscard]] TrainingMemory training_memory(const Exec& exec, const nn::LlamaConfig& config,
                                             const TrainOptions& options);

/// Trains a LLaMA: accumulation of gradients, loss scaling, clipping by the global norm, AdamW with
/// decay on tensors of rank 2 alone, a schedule; all state in flat arrays. A step computes the same
/// bits on every run.
template <class Exec>
class Trainer {
 public:
  /// Parameters are those of the folder, or random (nn::initialize_parameters). Activations and
  /// workspace come from the pool; throws memory::LimitError beyond its limit.
  Trainer(const Exec& exec, nn::LlamaConfig config, TrainOptions options,
          const std::filesystem::path& folder, std::uint64_t seed, nn::Pool<Exec> pool = {});

  /// Microbatch m of step s takes the rows (s · accumulation + m) · batch … of the data.
  StepLog step(const TokenData& data);

  /// Steps done, those skipped among them.
  [[nodiscard]] std::int64_t steps() const { return static_cast<std::int64_t>(log_.size()); }
  [[nodiscard]] const std::vector<StepLog>& log() const { return log_; }
  [[nodiscard]] const nn::LlamaConfig& config() const { return config_; }
  [[nodiscard]] const nn::ParameterLayout& layout() const { return layout_; }
  [[nodiscard]] const TrainOptions& options() const { return options_; }

  /// The parameters (f32 masters) and the gradients of the last step, flat, on the host.
  [[nodiscard]] std::vector<float> parameters() const { return values(master_); }
  [[nodiscard]] std::vector<float> gradients() const { return values(gradients_); }

  /// Everything that a later step depends on, and the log.
  [[nodiscard]] TrainingState state() const;
  /// Continues from a state of the same layout: the steps that follow have the same bits.
  void set_state(const TrainingState& state);

 private:
  void update(double factor, double rate);
  void round_master();
  [[nodiscard]] std::vector<float> values(const nn::DeviceMemory<Exec>& memory) const;

  Exec exec_;
  nn::LlamaConfig config_;
  nn::ParameterLayout layout_;
  TrainOptions options_;
  LossScaler scaler_;
  std::int64_t updates_ = 0;  ///< steps that were not skipped
  std::vector<StepLog> log_;
  nn::DeviceMemory<Exec> master_, copy_, gradients_, m_, v_, sums_;
  nn::TrainingPass<Exec> pass_;
  std::vector<std::int64_t> ids_, targets_;
};

}  // namespace katt::training
