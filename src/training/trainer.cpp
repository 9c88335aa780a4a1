#include "training/trainer.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <string>
#include <utility>

#include <Kokkos_Core.hpp>
#include <Kokkos_Profiling_ScopedRegion.hpp>

#include "core/execution.hpp"
#include "core/stopwatch.hpp"
#include "memory/transfer.hpp"
#include "training/saving.hpp"

namespace katt::training {

namespace {

std::size_t bytes_of(std::int64_t elements, Dtype dtype) {
  return static_cast<std::size_t>(elements) * size_of(dtype);
}

/// Bytes of the sums of squares for the largest part that is summed at a time.
std::size_t norm_bytes(const nn::ParameterLayout& layout, const Sharing& sharing) {
  std::int64_t most = 0;
  for (const ranks::Part& part : counted_parts(layout, sharing)) most = std::max(most, part.count);
  return static_cast<std::size_t>((most + norm_block - 1) / norm_block) * sizeof(double);
}

nn::PassOptions pass_options(const nn::LlamaConfig& config, const TrainOptions& options) {
  const RowShare rows = share_rows(options.shape.batch, options.accumulation, options.groups.place,
                                   options.micro_batches);
  nn::PassOptions pass{.shape = {.batch = rows.rows, .seq = options.shape.seq},
                       .recompute = options.recompute,
                       .kernels = options.kernels,
                       .groups = options.groups};
  pass.recompute.resize(static_cast<std::size_t>(config.num_hidden_layers), nn::Recompute::nothing);
  return pass;
}

/// The layout of this rank's part of a model, after a check that the folder holds the tensors of
/// its configuration.
nn::ParameterLayout checked_layout(const nn::LlamaConfig& config, const TrainOptions& options,
                                   const std::filesystem::path& folder) {
  check_ranks(config, options);
  if (options.master_dtype != Dtype::f32 && options.master_dtype != options.dtype) {
    throw InputError("masters of " + std::string(name_of(options.master_dtype)) +
                     " for a model of " + std::string(name_of(options.dtype)) +
                     ": expected that or f32");
  }
  nn::check_folder(config, nn::ParameterLayout(config), folder);
  return {config, nn::Slice(config, options.groups.place)};
}

/// Elements of flat f32 memory.
template <class Exec>
Kokkos::View<float*, typename Exec::memory_space, Kokkos::MemoryTraits<Kokkos::Unmanaged>> floats(
    const nn::DeviceMemory<Exec>& memory, std::int64_t begin, std::int64_t count) {
  using View =
      Kokkos::View<float*, typename Exec::memory_space, Kokkos::MemoryTraits<Kokkos::Unmanaged>>;
  return View(reinterpret_cast<float*>(memory.data()) + begin, static_cast<std::size_t>(count));
}

/// A range of the flat arrays whose parameters all decay, or all do not.
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

void check_ranks(const nn::LlamaConfig& config, const TrainOptions& options) {
  const ranks::Layout& layout = options.groups.place.layout;
  nn::check_layout(config, layout);
  if (ranks::part_of(config.vocab_size, layout.tensor, layout.tensor - 1).count <= 0) {
    throw InputError("--tensor " + std::to_string(layout.tensor) +
                     ": leaves a rank without a part of the " + std::to_string(config.vocab_size) +
                     " tokens, expected fewer ranks");
  }
  if (layout.context > 1 && options.shape.seq % (2 * layout.context) != 0) {
    throw InputError("--context " + std::to_string(layout.context) + ": --seq is " +
                     std::to_string(options.shape.seq) + ", expected a multiple of " +
                     std::to_string(2 * layout.context) + ", two chunks a rank");
  }
  const RowShare rows = share_rows(options.shape.batch, options.accumulation, options.groups.place,
                                   options.micro_batches);
  if (layout.virtual_stages > 1 && rows.microbatches % layout.pipeline != 0) {
    throw InputError("--virtual-stages " + std::to_string(layout.virtual_stages) +
                     ": the microbatches of a rank's step are " +
                     std::to_string(rows.microbatches) + ", expected a multiple of --pipeline " +
                     std::to_string(layout.pipeline));
  }
}

template <class Exec>
TrainingMemory training_memory(const Exec& exec, const nn::LlamaConfig& config,
                               const TrainOptions& options) {
  check_ranks(config, options);
  const ranks::Place& place = options.groups.place;
  const nn::ParameterLayout layout(config, nn::Slice(config, place));
  const Sharing sharing(layout.size(), place, options.bucket);
  nn::Arena nowhere;
  void* const data = nowhere.tensor<1>(Dtype::f32, {layout.size()}).data;
  nn::PassOptions of_pass = pass_options(config, options);
  nn::Weights weights = nn::bind_weights(config, layout, options.dtype, data);
  const std::size_t packed = nn::rehearse_ternary(config, layout, weights);
  const RowShare rows =
      share_rows(options.shape.batch, options.accumulation, place, options.micro_batches);
  const std::vector<std::int64_t> kept = kept_microbatches(
      pipeline_schedule(place.layout, place.stage, rows.microbatches), place.layout.virtual_stages);
  TrainingMemory memory;
  memory.parameters = packed + bytes_of(layout.size(), options.dtype);
  if (options.master_dtype != options.dtype) {
    memory.parameters += bytes_of(sharing.state_size(), options.master_dtype);
  }
  memory.gradients = bytes_of(layout.size(), Dtype::f32);
  memory.optimizer = 2 * bytes_of(sharing.state_size(), Dtype::f32) + norm_bytes(layout, sharing);
  for (std::size_t part = 0; part < kept.size(); ++part) {
    of_pass.part = part;
    const nn::TrainingPass<Exec> pass(exec, config, options.dtype, of_pass, weights,
                                      nn::bind_weights(config, layout, Dtype::f32, data), true);
    memory.activations += static_cast<std::size_t>(kept[part]) * pass.activation_bytes();
    memory.workspace += static_cast<std::size_t>(kept[part]) * pass.workspace_bytes();
  }
  // The sum of a bucket of gradients runs while the backward pass sums over tensor parallel ranks.
  std::size_t bucket = 0;
  for (const ranks::Part& part : sharing.buckets()) {
    bucket =
        std::max(bucket, ranks::summing_bytes(part.count, Dtype::f32, place.layout.replicas()));
  }
  const std::int64_t tokens = of_pass.shape.tokens() / place.layout.context;
  const std::int64_t own = nn::StreamRows::rows_of_rank(tokens, place.layout);
  const std::int64_t summed = place.layout.shares_rows() ? place.layout.tensor * own : own;
  memory.communication = bucket + ranks::summing_bytes(summed * config.hidden_size, options.dtype,
                                                       place.layout.tensor);
  return memory;
}

template <class Exec>
Trainer<Exec>::Trainer(const Exec& exec, nn::LlamaConfig config, TrainOptions options,
                       const std::filesystem::path& folder, std::uint64_t seed, nn::Pool<Exec> pool)
    : exec_(exec),
      config_(std::move(config)),
      layout_(checked_layout(config_, options, folder)),
      options_(std::move(options)),
      rows_(share_rows(options_.shape.batch, options_.accumulation, options_.groups.place,
                       options_.micro_batches)),
      sharing_(layout_.size(), options_.groups.place, options_.bucket),
      scaler_(options_.scaling),
      master_(
          "katt::training::masters",
          bytes_of(is_weights() ? layout_.size() : sharing_.state_size(), options_.master_dtype),
          true),
      copy_(is_weights() ? master_
                         : nn::DeviceMemory<Exec>("katt::training::parameters",
                                                  bytes_of(layout_.size(), options_.dtype), true)),
      gradients_("katt::training::gradients", bytes_of(layout_.size(), Dtype::f32), true),
      m_("katt::training::m", bytes_of(sharing_.state_size(), Dtype::f32), true),
      v_("katt::training::v", bytes_of(sharing_.state_size(), Dtype::f32), true),
      sums_("katt::training::sums", norm_bytes(layout_, sharing_), false),
      weights_(bind(options_.dtype, copy_)),
      ternary_(config_, layout_, weights_),
      ids_(static_cast<std::size_t>(rows_.rows * options_.shape.seq)),
      targets_(ids_.size()) {
  const ranks::Place& place = options_.groups.place;
  schedule_ = pipeline_schedule(place.layout, place.stage, rows_.microbatches);
  nn::PassOptions of_pass = pass_options(config_, options_);
  for (const std::int64_t kept : kept_microbatches(schedule_, place.layout.virtual_stages)) {
    auto& passes = passes_.emplace_back();
    for (std::int64_t i = 0; i < kept; ++i) {
      passes.push_back(
          std::make_unique<nn::TrainingPass<Exec>>(exec, config_, options_.dtype, of_pass, weights_,
                                                   bind(Dtype::f32, gradients_), false, pool));
    }
    ++of_pass.part;
  }
  initialize(folder, seed);
  for (const auto& passes : passes_) {
    for (const auto& pass : passes) pass->touch();
  }
}

template <class Exec>
void Trainer<Exec>::initialize(const std::filesystem::path& folder, std::uint64_t seed) {
  if (is_weights() || !sharing_.is_cut()) {
    nn::initialize_parameters(exec_, config_, layout_, folder, seed, options_.master_dtype,
                              master_.data());
    round_master();
    ternary_.pack(exec_, options_.dtype, copy_.data());
    return;
  }
  // Masters are a piece of the folder's tensors: the memory of the gradients holds them all
  // meanwhile.
  nn::initialize_parameters(exec_, config_, layout_, folder, seed, Dtype::f32, gradients_.data());
  for (const Piece& piece : sharing_.pieces()) {
    Kokkos::deep_copy(exec_, floats(master_, piece.state, piece.count),
                      floats(gradients_, piece.begin, piece.count));
  }
  round_copy(exec_, reinterpret_cast<const float*>(gradients_.data()), layout_.size(),
             options_.dtype, copy_.data());
  ternary_.pack(exec_, options_.dtype, copy_.data());
  gradients_.clear(exec_);
}

template <class Exec>
nn::Weights Trainer<Exec>::bind(Dtype dtype, const nn::DeviceMemory<Exec>& memory) const {
  return nn::bind_weights(config_, layout_, dtype, memory.data());
}

template <class Exec>
void Trainer<Exec>::round_master() {
  if (is_weights()) return;  // the masters are the weights
  for (const Piece& piece : sharing_.pieces()) {
    round_copy(exec_, floats(master_, piece.state, piece.count).data(), piece.count, options_.dtype,
               copy_.data() + static_cast<std::size_t>(piece.begin) * size_of(options_.dtype));
  }
}

template <class Exec>
void Trainer<Exec>::sum_gradients(std::int64_t offset, bool to_the_end) {
  const ranks::Communicator& replicas = options_.groups.replicas;
  const std::vector<ranks::Part>& buckets = sharing_.buckets();
  // Sums one bucket at a time: the next one begins when the last one is done.
  while (summed_ < buckets.size() && buckets[summed_].begin >= offset) {
    if (!to_the_end && !sum_.advance()) return;
    sum_.wait();
    const ranks::Part bucket = buckets[summed_++];
    const auto part = [&](ranks::Part at) {
      return TensorRef<1>(floats(gradients_, at.begin, at.count).data(), Dtype::f32, {at.count});
    };
    sum_ = sharing_.is_cut()
               ? replicas.reduce_scatter(exec_, part(bucket), part(sharing_.own(bucket)))
               : replicas.all_reduce(exec_, part(bucket));
  }
  if (to_the_end) sum_.wait();
}

template <class Exec>
void Trainer<Exec>::sum_tied_gradients() {
  const ranks::Place& place = options_.groups.place;
  const bool is_end = place.is_first_stage() || place.is_last_stage();
  if (!config_.tie_word_embeddings || place.layout.pipeline == 1 || !is_end) return;
  // The first stage sends its gradient and gets the sum, in the order of the stages.
  const auto table =
      std::ranges::find(layout_.parameters(), "model.embed_tokens.weight", &nn::Parameter::name);
  const TensorRef<1> gradient(floats(gradients_, table->offset, table->size()).data(), Dtype::f32,
                              {table->size()});
  options_.groups.ends.all_reduce(exec_, gradient).wait();
}

template <class Exec>
void Trainer<Exec>::run_microbatches(const TokenData& data, float dloss) {
  const ranks::Place& place = options_.groups.place;
  const std::int64_t rows = options_.shape.batch * options_.accumulation;
  const std::int64_t count = rows_.microbatches;
  const bool sums_early = !(config_.tie_word_embeddings && place.layout.pipeline > 1);
  const auto pass = [&](const PipelinePass& at) -> nn::TrainingPass<Exec>& {
    const auto& passes = passes_[static_cast<std::size_t>(at.part)];
    return *passes[static_cast<std::size_t>(at.micro) % passes.size()];
  };
  const auto forward = [&](const PipelinePass& at) {
    data.fill(steps() * rows + rows_.first + at.micro * rows_.rows, options_.shape.seq, ids_,
              targets_);
    pass(at).set_batch(ids_, targets_);
    const Kokkos::Profiling::ScopedRegion phase("forward");
    loss_ += pass(at).forward();
  };
  const auto backward = [&](const PipelinePass& at) {
    const Kokkos::Profiling::ScopedRegion phase("backward");
    const bool is_last = at.micro + 1 == count;
    std::function<void(std::int64_t)> ready;
    if (is_last && !sharing_.buckets().empty() && sums_early) {
      ready = [&](std::int64_t offset) { sum_gradients(offset, false); };
    }
    pass(at).backward(dloss, at.micro == 0, is_last, ready);
  };
  for (const PipelinePass& at : schedule_) at.backward ? backward(at) : forward(at);
  for (auto& of_part : passes_) {
    for (auto& one : of_part) one->wait_for_messages();  // who blocks in a collective moves none
  }
}

template <class Exec>
double Trainer<Exec>::waited_s() const {
  double all = 0;
  for (const auto& passes : passes_) {
    for (const auto& pass : passes) all += pass->waited_s();
  }
  return all;
}

template <class Exec>
double Trainer<Exec>::idle_share(double passes_s) const {
  const ranks::Communicator& stages = options_.groups.pipeline;
  if (stages.size() == 1) return 0;
  const std::vector<double> ends = stages.gather(passes_s);
  const double longest = *std::ranges::max_element(ends);
  // A stage waits for others, and at the end for the first stage.
  const double idle = stages.sum(waited_s() - waited_before_ + longest - passes_s);
  return idle / (longest * stages.size());
}

template <class Exec>
double Trainer<Exec>::gradient_norm() {
  double squares = 0;
  const std::vector<ranks::Part> parts = counted_parts(layout_, sharing_);
  for (const ranks::Part& part : parts) {
    const double norm = training::norm(exec_, floats(gradients_, part.begin, part.count).data(),
                                       part.count, reinterpret_cast<double*>(sums_.data()));
    if (parts.size() == 1 && options_.groups.place.layout.ranks() == 1) return norm;
    squares += norm * norm;
  }
  squares = options_.groups.model.sum(squares);
  if (sharing_.is_cut()) squares = options_.groups.replicas.sum(squares);
  return std::sqrt(squares);
}

template <class Exec>
void Trainer<Exec>::apply_gradients(StepLog& log) {
  const Kokkos::Profiling::ScopedRegion phase("optimizer");
  sum_tied_gradients();
  sum_gradients(0, true);
  const double norm = gradient_norm() / scaler_.scale();
  log.grad_norm = static_cast<float>(norm);
  const double unscale = 1.0 / scaler_.scale();
  log.skipped = !scaler_.update(std::isfinite(norm));
  if (!log.skipped) {
    // as torch.nn.utils.clip_grad_norm_
    const double factor = options_.clip > 0 ? std::min(1.0, options_.clip / (norm + 1e-6)) : 1.0;
    update(unscale * factor, options_.schedule.at(steps()));
    gather_parameters();
    ternary_.pack(exec_, options_.dtype, copy_.data());
  }
  exec_.fence("katt::training::step");
}

template <class Exec>
StepLog Trainer<Exec>::step(const TokenData& data) {
  const Stopwatch watch;
  const ranks::Groups& groups = options_.groups;
  StepLog log;
  log.loss_scale = static_cast<float>(scaler_.scale());
  log.rate = static_cast<float>(options_.schedule.at(steps()));
  loss_ = 0;
  summed_ = 0;
  // Scale of the mean over all microbatches and all parts of their sequences.
  const std::int64_t losses = rows_.microbatches * groups.place.layout.replicas();
  waited_before_ = waited_s();
  run_microbatches(data, log.loss_scale / static_cast<float>(losses));
  if (groups.pipeline.size() > 1) {
    exec_.fence("katt::training::step: after the passes");
    log.pipeline_idle = static_cast<float>(idle_share(watch.seconds()));
  }
  apply_gradients(log);
  // The last stage has losses, the others zeros; all tensor parallel ranks have the same.
  log.loss = static_cast<float>(groups.pipeline.sum(groups.replicas.sum(loss_)) /
                                static_cast<double>(losses));
  log.time_s = static_cast<float>(watch.seconds());
  log_.push_back(log);
  return log;
}

template <class Exec>
void Trainer<Exec>::update(double factor, double rate) {
  ++updates_;
  const std::vector<DecayRange> ranges = decay_ranges(layout_);
  for (const Piece& piece : sharing_.pieces()) {
    for (const DecayRange& range : ranges) {
      const std::int64_t begin = std::max(piece.begin, range.begin);
      const std::int64_t count = std::min(piece.begin + piece.count, range.end) - begin;
      if (count <= 0) continue;
      const std::int64_t state = piece.state + begin - piece.begin;
      AdamW options = options_.optimizer;
      if (!range.decays) options.decay = 0;
      AdamWArgs args{.gradients = floats(gradients_, begin, count).data(),
                     .m = floats(m_, state, count).data(),
                     .v = floats(v_, state, count).data(),
                     .count = count,
                     .step = updates_,
                     .rate = rate,
                     .gradient_factor = factor};
      if (options_.master_dtype == Dtype::f32) {
        args.parameters = floats(master_, is_weights() ? begin : state, count).data();
      }
      if (options_.dtype != Dtype::f32) {
        args.copy_dtype = options_.dtype;
        args.copy = copy_.data() + static_cast<std::size_t>(begin) * size_of(options_.dtype);
      }
      adamw(exec_, options, args);
    }
  }
}

template <class Exec>
void Trainer<Exec>::gather_parameters() {
  if (!sharing_.is_cut()) return;
  const auto part = [&](ranks::Part at) {
    return TensorRef<1>(copy_.data() + static_cast<std::size_t>(at.begin) * size_of(options_.dtype),
                        options_.dtype, {at.count});
  };
  for (const ranks::Part& bucket : sharing_.buckets()) {
    options_.groups.replicas.all_gather(exec_, part(sharing_.own(bucket)), part(bucket)).wait();
  }
}

template <class Exec>
std::vector<float> Trainer<Exec>::values(const nn::DeviceMemory<Exec>& memory, Dtype dtype,
                                         std::int64_t count) const {
  std::vector<float> result(static_cast<std::size_t>(count));
  memory::Transfer<Exec> transfer(exec_);
  nn::read_elements(transfer, memory.data(), dtype, result);
  return result;
}

template <class Exec>
std::vector<float> Trainer<Exec>::parameters() const {
  if (is_weights() || !sharing_.is_cut()) {
    return values(master_, options_.master_dtype, layout_.size());
  }
  const std::vector<float> own = values(master_, options_.master_dtype, sharing_.state_size());
  std::vector<float> whole(static_cast<std::size_t>(layout_.size()));
  for (const Piece& piece : sharing_.pieces()) {
    std::copy_n(own.begin() + piece.state, piece.count, whole.begin() + piece.begin);
  }
  const auto part = [&](ranks::Part at) {
    return TensorRef<1>(whole.data() + at.begin, Dtype::f32, {at.count});
  };
  for (const ranks::Part& bucket : sharing_.buckets()) {
    options_.groups.replicas.all_gather(serial_host(), part(sharing_.own(bucket)), part(bucket))
        .wait();
  }
  return whole;
}

template <class Exec>
RunArrays Trainer<Exec>::arrays() const {
  return {.config = config_,
          .options = options_,
          .layout = layout_,
          .sharing = sharing_,
          .arrays = {{{"parameters.", master_.data(), !is_weights() && sharing_.is_cut(),
                       options_.master_dtype},
                      {"m.", m_.data(), sharing_.is_cut()},
                      {"v.", v_.data(), sharing_.is_cut()}}}};
}

template <class Exec>
void Trainer<Exec>::save(const std::filesystem::path& folder, int shards) const {
  write_run(exec_, folder, arrays(),
            {.updates = updates_,
             .loss_scale = scaler_.scale(),
             .good_steps = scaler_.good_steps(),
             .log = log_},
            shards);
}

template <class Exec>
void Trainer<Exec>::resume(const std::filesystem::path& folder) {
  const TrainingState state = read_run(exec_, folder, arrays());
  updates_ = state.updates;
  scaler_.restore(state.loss_scale, state.good_steps);
  log_ = state.log;
  round_master();
  if (!is_weights()) gather_parameters();
  ternary_.pack(exec_, options_.dtype, copy_.data());
}

#define KATT_INSTANTIATE_TRAINER(Exec)                                               \
  template class Trainer<Exec>;                                                      \
  template TrainingMemory training_memory<Exec>(const Exec&, const nn::LlamaConfig&, \
                                                const TrainOptions&);

KATT_FOR_EACH_EXEC(KATT_INSTANTIATE_TRAINER)

}  // namespace katt::training
