#include "core/error.hpp"
#include "drivers/training/train_options.hpp"
#include "plan/axes.hpp"

/// The meaning of the options of `katt train`.
namespace katt::impl {

training::LossScaling TrainCommandLine::loss_scaling() const {
  training::LossScaling scaling;
  const auto& scale = line_.text("--loss-scale");
  scaling.is_dynamic = scale ? *scale == "dynamic" : model.dtype == Dtype::f16;
  scaling.initial =
      scaling.is_dynamic ? 65536.0 : line_.number("--loss-scale", 1e-9, 1e9, scaling.initial);
  scaling.growth_interval = line_.count("--growth-interval", 1, scaling.growth_interval);
  const auto factor = [&](const char* name, double fallback, double above, double below) {
    const double value = line_.number(name, above, below, fallback);
    if (value > above && value < below) return value;
    throw InputError(std::string(name) + " " + *line_.text(name) +
                     ": expected a number more than " + bench::to_text(above) + " and less than " +
                     bench::to_text(below));
  };
  scaling.growth = factor("--growth-factor", scaling.growth, 1, 1024);
  scaling.backoff = factor("--backoff-factor", scaling.backoff, 0, 1);
  for (const std::string name : {"--growth-interval", "--growth-factor", "--backoff-factor"}) {
    if (line_.text(name) && !scaling.is_dynamic) {
      throw InputError(name + ": expected with --loss-scale dynamic");
    }
  }
  return scaling;
}

training::TrainOptions TrainCommandLine::options() const {
  training::TrainOptions options;
  options.shape = {.batch = line_.count("--batch", 1, 1), .seq = line_.count("--seq", 1, 128)};
  options.accumulation = line_.count("--accumulation", 1, 1);
  options.dtype = model.dtype;
  if (const auto& master = line_.text("--master-dtype")) {
    const auto dtype = bench::dtype_of_text(*master);
    if (!dtype || (*dtype != Dtype::f32 && *dtype != model.dtype)) {
      throw InputError("--master-dtype " + *master + ": expected f32" +
                       (model.dtype == Dtype::f32
                            ? ""
                            : " or " + std::string(name_of(model.dtype)) + ", that of --dtype"));
    }
    options.master_dtype = *dtype;
  }
  options.schedule = {.rate = line_.number("--lr", 0, 1e3, 1e-3),
                      .final_rate = line_.number("--min-lr", 0, 1e3, 0),
                      .warmup = line_.count("--warmup", 0, 0),
                      .steps = line_.count("--steps", 1, 1)};
  const std::string schedule = line_.text("--schedule").value_or("constant");
  if (schedule == "cosine") {
    options.schedule.kind = training::Schedule::Kind::cosine;
  } else if (schedule != "constant") {
    throw InputError("--schedule " + schedule + ": unknown; expected constant, cosine");
  } else if (line_.text("--min-lr")) {
    throw InputError("--min-lr: expected with --schedule cosine");
  }
  options.optimizer = {.beta1 = line_.number("--beta1", 0, 0.999999, 0.9),
                       .beta2 = line_.number("--beta2", 0, 0.999999, 0.95),
                       .eps = line_.number("--eps", 0, 1, 1e-8),
                       .decay = line_.number("--weight-decay", 0, 1e3, 0.1)};
  options.clip = line_.number("--clip", 0, 1e9, 1.0);
  options.scaling = loss_scaling();
  options.micro_batches = line_.count("--micro-batches", 1, 0);
  return options;
}

nn::LlamaConfig TrainCommandLine::model_config() const {
  nn::LlamaConfig config = nn::read_config(model.folder);
  const auto& ternary = line_.text("--ternary");
  const bool is_ternary =
      ternary ? bench::parse_count("--ternary", *ternary, 0, 1) == 1 : config.ternary;
  if (config.ternary && !is_ternary) {
    throw InputError("--ternary 0: " + (model.folder / "config.json").string() +
                     " has the quantization_config of a ternary model, expected 1");
  }
  return is_ternary ? nn::with_ternary(std::move(config)) : config;
}

std::string TrainCommandLine::checkpointing() const {
  const auto& blocks = line_.text("--checkpoint-blocks");
  if (checkpoint_ && blocks == "none") {
    throw InputError("--checkpoint-blocks none: expected without --checkpoint");
  }
  return blocks.value_or(checkpoint_ ? "all" : "none");
}

RunOptions TrainCommandLine::run_options() const {
  const int ranks = ranks::world().size();
  const auto& shards = line_.text("--save-shards");
  if (shards && line_.count("--save-shards", 1, 1) > ranks) {
    throw InputError("--save-shards " + *shards + ": expected at most the " +
                     std::to_string(ranks) + (ranks == 1 ? " rank" : " ranks") + " that write");
  }
  return {.steps = line_.count("--steps", 1, 1),
          .save_every = line_.count("--save-every", 0, 0),
          .save_shards = static_cast<int>(line_.count("--save-shards", 1, 0)),
          .out = line_.text("--out").value_or(""),
          .log = line_.text("--log").value_or(""),
          .profile = profile_,
          .backend = model.backend,
          .threads = model.threads};
}

}  // namespace katt::impl
