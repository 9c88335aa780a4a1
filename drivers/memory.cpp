#include <cstdio>

#include <nlohmann/json.hpp>

#include "bench/text.hpp"
#include "core/execution.hpp"
#include "drivers/commands.hpp"
#include "drivers/model_options.hpp"
#include "drivers/runtime.hpp"
#include "drivers/scratch.hpp"
#include "memory/tracker.hpp"
#include "nn/session.hpp"
#include "training/checkpointing.hpp"

namespace katt::impl {
namespace {

constexpr const char* usage = "katt memory --model DIR --batch N --seq N --dtype T [--checkpoint]";

/// A use of memory: what is forecast, by purpose, and the peak of a run.
struct Forecast {
  const char* name;
  std::vector<std::pair<const char*, std::size_t>> parts;
  std::size_t measured = 0;

  [[nodiscard]] std::size_t total() const {
    std::size_t sum = 0;
    for (const auto& [part, bytes] : parts) sum += bytes;
    return sum;
  }
};

template <class Exec>
Forecast forecast_inference(const Exec& exec, const ModelOptions& options,
                            const nn::LlamaConfig& config, nn::SessionOptions session_options,
                            bool measure) {
  const nn::ParameterLayout layout(config);
  nn::Arena nowhere;
  const auto weights = nn::bind_weights(config, layout, options.dtype,
                                        nowhere.tensor<1>(options.dtype, {layout.size()}).data);
  const nn::Session<Exec> dry(exec, config, options.dtype, weights, session_options, true);
  Forecast forecast{
      "inference",
      {{"parameters", static_cast<std::size_t>(layout.size()) * size_of(options.dtype)},
       {"kv_cache", dry.cache_bytes()},
       {"activations", dry.activation_bytes()},
       {"workspace", dry.workspace_bytes()}}};
  if (!measure) return forecast;
  check_fits("inference", forecast.total(), options.backend);
  const memory::Scope scope;
  const auto model = nn::open_model(exec, options.folder, options.dtype, options.seed);
  nn::Session<Exec> session(model, session_options);
  (void)session.append(std::vector<std::int64_t>(
      static_cast<std::size_t>(session_options.batch * session_options.capacity), 0));
  forecast.measured = scope.peak_bytes();
  return forecast;
}

template <class Exec>
Forecast forecast_training(const Exec& exec, const ModelOptions& options,
                           const nn::LlamaConfig& config, const training::TrainOptions& train,
                           bool measure) {
  const auto memory = training::training_memory(exec, config, train);
  Forecast forecast{"training",
                    {{"parameters", memory.parameters},
                     {"gradients", memory.gradients},
                     {"optimizer", memory.optimizer},
                     {"activations", memory.activations},
                     {"workspace", memory.workspace}}};
  if (!measure) return forecast;
  check_fits("training", forecast.total(), options.backend);
  const training::TokenData data(
      std::vector<std::int32_t>(static_cast<std::size_t>(train.shape.seq + 1), 0),
      config.vocab_size, "zeros");
  const memory::Scope scope;
  training::Trainer<Exec> trainer(exec, config, train, options.folder, options.seed);
  (void)trainer.step(data);
  forecast.measured = scope.peak_bytes();
  return forecast;
}

void print(const Forecast& forecast) {
  const auto line = [](const std::string& name, std::size_t bytes) {
    std::printf("  %-14s%12s\n", name.c_str(),
                bench::human_bytes(static_cast<double>(bytes)).c_str());
  };
  std::printf("%s\n", forecast.name);
  for (const auto& [part, bytes] : forecast.parts) line(part, bytes);
  line("total", forecast.total());
  if (forecast.measured > 0) line("measured peak", forecast.measured);
}

void print_json(const std::vector<Forecast>& forecasts) {
  nlohmann::ordered_json object;
  for (const Forecast& forecast : forecasts) {
    auto& entry = object[forecast.name];
    for (const auto& [part, bytes] : forecast.parts) entry[std::string(part) + "_bytes"] = bytes;
    entry["total_bytes"] = forecast.total();
    if (forecast.measured > 0) entry["measured_bytes"] = forecast.measured;
  }
  std::printf("%s\n", object.dump().c_str());
}

}  // namespace

int memory_command(const Invocation& invocation) {
  CommandLine line("katt memory", "Forecast the memory of a LLaMA, for inference and training");
  ModelOptions options;
  std::optional<std::string> batch, seq, blocks;
  bool checkpoint = false, measure = false;
  options.add_to(line);
  line.option("--batch", batch, "sequences (default: 1)");
  line.option("--seq", seq, "tokens of a sequence (default: 512)");
  line.option("--checkpoint-blocks", blocks, "as for katt train");
  line.flag("--checkpoint", checkpoint, "compute activations again in the backward pass");
  line.flag("--measure", measure, "run a step of each and report its measured peak");
  if (!line.parse(invocation.arguments)) return 0;
  options.resolve(usage);
  const std::int64_t rows = count_option("--batch", batch, 1, 1);
  const std::int64_t tokens = count_option("--seq", seq, 1, 512);
  const nn::LlamaConfig config = nn::read_config(options.folder);
  training::TrainOptions train{.shape = {.batch = rows, .seq = tokens}, .dtype = options.dtype};

  const Runtime runtime(options.threads);
  const auto forecasts = visit_backend(options.backend, options.threads, [&](const auto& exec) {
    allocate_scratch(exec);
    train.recompute = training::plan_checkpointing(exec, config, train, "--checkpoint-blocks",
                                                   blocks.value_or(checkpoint ? "all" : "none"))
                          .recompute;
    return std::vector{
        forecast_inference(exec, options, config, {.batch = rows, .capacity = tokens}, measure),
        forecast_training(exec, options, config, train, measure)};
  });
  if (options.json) {
    print_json(forecasts);
  } else {
    for (const Forecast& forecast : forecasts) print(forecast);
  }
  return 0;
}

}  // namespace katt::impl
