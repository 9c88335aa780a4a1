#include "training/trainer.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <utility>

#include <Kokkos_Core.hpp>
#include <Kokkos_Profiling_ScopedRegion.hpp>

#include "core/execution.hpp"
#include "memory/transfer.hpp"

namespace katt::training {

namespace {

std::size_t bytes_of(const nn::ParameterLayout& layout, Dtype dtype) {
  return static_cast<std::size_t>(layout.size()) * size_of(dtype);
}

std::size_t norm_bytes(const nn::ParameterLayout& layout) {
  return static_cast<std::size_t>((layout.size() + norm_block - 1) / norm_block) * sizeof(double);
}

nn::PassOptions pass_options(const nn::LlamaConfig& config, const TrainOptions& options) {
  nn::PassOptions pass{
      .shape = options.shape, .recompute = options.recompute, .kernels = options.kernels};
  pass.recompute.resize(static_cast<std::size_t>(config.num_hidden_layers), nn::Recompute::nothing);
  return pass;
}

/// The layout of a model whose folder holds what its configuration says.
nn::ParameterLayout checked_layout(const nn::LlamaConfig& config,
                                   const std::filesystem::path& folder) {
  nn::ParameterLayout layout(config);
  nn::check_folder(config, layout, folder);
  return layout;
}

/// A run of parameters that decay, or of such that do not, in the flat arrays.
struct DecayRange {
  std::int64_t begin, end;
  bool decays;
};

std::vector<DecayRange> decay_ranges(const nn::ParameterLayout& layout) {
  std::vector<DecayRange> ranges;
  for (const nn::Parameter& parameter : layout.parameters()) {
    const bool decays = parameter.shape.size() >= 2;
    if (!ranges.empty() && ranges.back().decays == decays) {
      ranges.back().end = parameter.offset + parameter.size();
    } else {
      ranges.push_back({parameter.offset, parameter.offset + parameter.size(), decays});
    }
  }
  return ranges;
}

}  // namespace

template <class Exec>
TrainingMemory training_memory(const Exec& exec, const nn::LlamaConfig& config,
                               const TrainOptions& options) {
  const nn::ParameterLayout layout(config);
  nn::Arena nowhere;
  void* const data = nowhere.tensor<1>(Dtype::f32, {layout.size()}).data;
  const nn::TrainingPass<Exec> pass(exec, config, options.dtype, pass_options(config, options),
                                    nn::bind_weights(config, layout, options.dtype, data),
                                    nn::bind_weights(config, layout, Dtype::f32, data), true);
  TrainingMemory memory;
  memory.parameters = bytes_of(layout, Dtype::f32) +
                      (options.dtype == Dtype::f32 ? 0 : bytes_of(layout, options.dtype));
  memory.gradients = bytes_of(layout, Dtype::f32);
  memory.optimizer = 2 * bytes_of(layout, Dtype::f32) + norm_bytes(layout);
  memory.activations = pass.activation_bytes();
  memory.workspace = pass.workspace_bytes();
  return memory;
}

template <class Exec>
Trainer<Exec>::Trainer(const Exec& exec, nn::LlamaConfig config, TrainOptions options,
                       const std::filesystem::path& folder, std::uint64_t seed, nn::Pool<Exec> pool)
    : exec_(exec),
      config_(std::move(config)),
      layout_(checked_layout(config_, folder)),
      options_(std::move(options)),
      scaler_(options_.scaling),
      master_("katt::training::masters", bytes_of(layout_, Dtype::f32), true),
      copy_(options_.dtype == Dtype::f32
                ? master_
                : nn::DeviceMemory<Exec>("katt::training::parameters",
                                         bytes_of(layout_, options_.dtype), true)),
      gradients_("katt::training::gradients", bytes_of(layout_, Dtype::f32), true),
      m_("katt::training::m", bytes_of(layout_, Dtype::f32), true),
      v_("katt::training::v", bytes_of(layout_, Dtype::f32), true),
      sums_("katt::training::sums", norm_bytes(layout_), false),
      pass_(exec, config_, options_.dtype, pass_options(config_, options_),
            nn::bind_weights(config_, layout_, options_.dtype, copy_.data()),
            nn::bind_weights(config_, layout_, Dtype::f32, gradients_.data()), false,
            std::move(pool)),
      ids_(static_cast<std::size_t>(options_.shape.tokens())),
      targets_(ids_.size()) {
  nn::initialize_parameters(exec_, config_, layout_, folder, seed, Dtype::f32, master_.data());
  round_master();
}

template <class Exec>
void Trainer<Exec>::round_master() {
  if (options_.dtype == Dtype::f32) return;  // they are the weights
  round_copy(exec_, reinterpret_cast<const float*>(master_.data()), layout_.size(), options_.dtype,
             copy_.data());
}

template <class Exec>
StepLog Trainer<Exec>::step(const TokenData& data) {
  const auto start = std::chrono::steady_clock::now();
  StepLog log;
  log.loss_scale = static_cast<float>(scaler_.scale());
  log.rate = static_cast<float>(options_.schedule.at(steps()));
  {
    const Kokkos::Profiling::ScopedRegion phase("optimizer");
    gradients_.clear(exec_);
  }
  double loss = 0;
  for (std::int64_t micro = 0; micro < options_.accumulation; ++micro) {
    const std::int64_t first = (steps() * options_.accumulation + micro) * options_.shape.batch;
    data.fill(first, options_.shape.seq, ids_, targets_);
    pass_.set_batch(ids_, targets_);
    {
      const Kokkos::Profiling::ScopedRegion phase("forward");
      loss += pass_.forward();
    }
    const Kokkos::Profiling::ScopedRegion phase("backward");
    pass_.backward(log.loss_scale / static_cast<float>(options_.accumulation));
  }
  const Kokkos::Profiling::ScopedRegion phase("optimizer");
  log.loss = static_cast<float>(loss / static_cast<double>(options_.accumulation));
  const double norm = training::norm(exec_, reinterpret_cast<const float*>(gradients_.data()),
                                     layout_.size(), reinterpret_cast<double*>(sums_.data())) /
                      scaler_.scale();
  log.grad_norm = static_cast<float>(norm);
  const double unscale = 1.0 / scaler_.scale();
  log.skipped = !scaler_.update(std::isfinite(norm));
  if (!log.skipped) {
    // as torch.nn.utils.clip_grad_norm_
    const double factor = options_.clip > 0 ? std::min(1.0, options_.clip / (norm + 1e-6)) : 1.0;
    update(unscale * factor, options_.schedule.at(steps()));
  }
  exec_.fence("katt::training::step");
  log.time_s = std::chrono::duration<float>(std::chrono::steady_clock::now() - start).count();
  log_.push_back(log);
  return log;
}

template <class Exec>
void Trainer<Exec>::update(double factor, double rate) {
  ++updates_;
  const auto at = [](const nn::DeviceMemory<Exec>& memory, std::int64_t offset) {
    return reinterpret_cast<float*>(memory.data()) + offset;
  };
  for (const DecayRange& range : decay_ranges(layout_)) {
    AdamW options = options_.optimizer;
    if (!range.decays) options.decay = 0;
    AdamWArgs args{.parameters = at(master_, range.begin),
                   .gradients = at(gradients_, range.begin),
                   .m = at(m_, range.begin),
                   .v = at(v_, range.begin),
                   .count = range.end - range.begin,
                   .step = updates_,
                   .rate = rate,
                   .gradient_factor = factor};
    if (options_.dtype != Dtype::f32) {
      args.copy_dtype = options_.dtype;
      args.copy = copy_.data() + static_cast<std::size_t>(range.begin) * size_of(options_.dtype);
    }
    adamw(exec_, options, args);
  }
}

template <class Exec>
std::vector<float> Trainer<Exec>::values(const nn::DeviceMemory<Exec>& memory) const {
  std::vector<float> result(static_cast<std::size_t>(layout_.size()));
  memory::Transfer<Exec>(exec_).download(memory.data(), std::as_writable_bytes(std::span(result)));
  return result;
}

template <class Exec>
TrainingState Trainer<Exec>::state() const {
  return {.parameters = values(master_),
          .m = values(m_),
          .v = values(v_),
          .updates = updates_,
          .loss_scale = scaler_.scale(),
          .good_steps = scaler_.good_steps(),
          .log = log_};
}

template <class Exec>
void Trainer<Exec>::set_state(const TrainingState& state) {
  memory::Transfer<Exec> transfer(exec_);
  transfer.upload(master_.data(), std::as_bytes(std::span(state.parameters)));
  transfer.upload(m_.data(), std::as_bytes(std::span(state.m)));
  transfer.upload(v_.data(), std::as_bytes(std::span(state.v)));
  transfer.wait();
  updates_ = state.updates;
  scaler_.restore(state.loss_scale, state.good_steps);
  log_ = state.log;
  round_master();
}

#define KATT_INSTANTIATE_TRAINER(Exec)                                               \
  template class Trainer<Exec>;                                                      \
  template TrainingMemory training_memory<Exec>(const Exec&, const nn::LlamaConfig&, \
                                                const TrainOptions&);

KATT_FOR_EACH_EXEC(KATT_INSTANTIATE_TRAINER)

}  // namespace katt::training
