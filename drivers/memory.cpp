#include <cstdio>

#include <nlohmann/json.hpp>

#include "core/execution.hpp"
#include "core/text.hpp"
#include "drivers/options/layout_options.hpp"
#include "drivers/options/model_options.hpp"
#include "drivers/runtime/commands.hpp"
#include "drivers/runtime/messages.hpp"
#include "drivers/runtime/runtime.hpp"
#include "drivers/runtime/scratch.hpp"
#include "memory/tracker.hpp"
#include "nn/inference/session.hpp"
#include "plan/axes.hpp"
#include "training/checkpointing.hpp"

namespace katt::impl {
namespace {

constexpr const char* memory_usage =
    "katt memory --model DIR --batch N --seq N --dtype T [--checkpoint]";

/// A use of memory: the forecast, by purpose, and the peak of a run.
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

/// Memory of the rank in the options' groups.
template <class Exec>
Forecast forecast_inference(const Exec& exec, const ModelOptions& options,
                            const nn::LlamaConfig& config, nn::SessionOptions session_options,
                            bool measure) {
  const auto memory = nn::inference_memory(exec, config, options.dtype, session_options);
  Forecast forecast{"inference",
                    {{"parameters", memory.parameters},
                     {"kv_cache", memory.kv_cache},
                     {"activations", memory.activations},
                     {"workspace", memory.workspace}}};
  if (memory.communication > 0) forecast.parts.emplace_back("communication", memory.communication);
  if (!measure) return forecast;
  check_fits(
      options.folder.string() + ": inference",
      forecast.total() * ranks_on_memory(session_options.groups.all.ranks_on_host(), options),
      options.backend);
  const memory::Scope scope;
  const auto model =
      nn::open_model(exec, options.folder, options.dtype, options.seed, session_options.groups);
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
  if (memory.communication > 0) forecast.parts.emplace_back("communication", memory.communication);
  if (!measure) return forecast;
  check_fits(options.folder.string() + ": training",
             forecast.total() * ranks_on_memory(train.groups.all.ranks_on_host(), options),
             options.backend);
  const training::TokenData data(
      std::vector<std::int32_t>(static_cast<std::size_t>(train.shape.seq + 1), 0),
      config.vocab_size, "zeros");
  const memory::Scope scope;
  training::Trainer<Exec> trainer(exec, config, train, options.folder, options.seed);
  (void)trainer.step(data);
  forecast.measured = scope.peak_bytes();
  return forecast;
}

/// Memory that every rank needs for training.
struct RankForecast {
  ranks::Place place;
  Forecast training;
};

void print_line(const std::string& name, std::size_t bytes) {
  std::printf("  %-14s%12s\n", name.c_str(),
              bench::human_bytes(static_cast<double>(bytes)).c_str());
}

void print(const Forecast& forecast) {
  std::printf("%s\n", forecast.name);
  for (const auto& [part, bytes] : forecast.parts) print_line(part, bytes);
  print_line("total", forecast.total());
  if (forecast.measured > 0) print_line("measured peak", forecast.measured);
}

void print(const std::vector<RankForecast>& ranks) {
  if (ranks.size() == 1) return print(ranks[0].training);
  std::printf("training on %zu ranks: %s; the first of them\n", ranks.size(),
              ranks::to_text(ranks[0].place.layout).c_str());
  print(ranks[0].training);
  std::printf("  %6s%8s%7s%9s%6s%14s%16s\n", "rank", "tensor", "stage", "context", "data", "total",
              "measured peak");
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    const ranks::Place& place = ranks[r].place;
    const Forecast& training = ranks[r].training;
    std::printf("  %6zu%8d%7d%9d%6d%14s%16s\n", r, place.tensor, place.stage, place.context,
                place.data, bench::human_bytes(static_cast<double>(training.total())).c_str(),
                training.measured > 0
                    ? bench::human_bytes(static_cast<double>(training.measured)).c_str()
                    : "");
  }
}

nlohmann::ordered_json to_json(const Forecast& forecast) {
  nlohmann::ordered_json entry;
  for (const auto& [part, bytes] : forecast.parts) entry[std::string(part) + "_bytes"] = bytes;
  entry["total_bytes"] = forecast.total();
  if (forecast.measured > 0) entry["measured_bytes"] = forecast.measured;
  return entry;
}

void print_json(const Forecast& inference, const std::vector<RankForecast>& ranks) {
  nlohmann::ordered_json object{{"inference", to_json(inference)},
                                {"training", to_json(ranks[0].training)}};
  if (ranks.size() > 1) {
    for (std::size_t r = 0; r < ranks.size(); ++r) {
      auto entry = to_json(ranks[r].training);
      entry["rank"] = r;
      entry["tensor"] = ranks[r].place.tensor;
      entry["stage"] = ranks[r].place.stage;
      entry["context"] = ranks[r].place.context;
      entry["data"] = ranks[r].place.data;
      object["ranks"].push_back(std::move(entry));
    }
  }
  std::printf("%s\n", object.dump().c_str());
}

}  // namespace

int memory_command(const Invocation& invocation) {
  CommandLine line("katt memory", "Forecast the memory of a LLaMA, for inference and training");
  ModelOptions options;
  LayoutOptions layout;
  bool checkpoint = false, measure = false;
  options.add_to(line);
  line.option("--batch", "sequences (default: 1)");
  line.option("--seq", "tokens of a sequence (default: 512)");
  line.option("--accumulation",
              "microbatches of a step, which ranks may share (default: the ranks' number)");
  layout.add_to(line);
  line.option("--micro-batches", "as for katt train");
  line.option("--ranks",
              "ranks to forecast for (default: those of mpirun, else those that the layout names)");
  line.option("--checkpoint-blocks", "as for katt train");
  line.flag("--checkpoint", checkpoint, "compute activations again in the backward pass");
  line.flag("--measure", measure, "run a step of each and report its measured peak");
  line.example("katt memory --model DIR --batch 8 --seq 1024 --checkpoint",
               "for inference and training, by purpose");
  line.example("katt memory --model DIR --batch 8 --seq 1024 --dtype bf16 --measure",
               "and the measured peak of a step");
  line.example("katt memory --model DIR --tensor 2 --pipeline 2 --ranks 8",
               "of every rank of eight");
  if (!line.parse(invocation)) return 0;
  options.resolve(line, memory_usage);
  const auto& ranks_text = line.text("--ranks");
  layout.resolve_forecast(
      line,
      ranks_text ? static_cast<int>(bench::parse_count("--ranks", *ranks_text, 1, most_ranks)) : 0);
  const int ranks = layout.layout.ranks();
  const bool is_run = ranks::world().size() == ranks;
  if (measure && !is_run) {
    throw InputError("--measure: the program has " + std::to_string(ranks::world().size()) +
                     " ranks, expected the " + std::to_string(ranks) + " of the layout");
  }
  const std::string blocks = line.text("--checkpoint-blocks").value_or(checkpoint ? "all" : "none");
  check_blocks(blocks, ranks);
  const std::int64_t rows = line.count("--batch", 1, 1);
  const std::int64_t tokens = line.count("--seq", 1, 512);
  const nn::LlamaConfig config = nn::read_config(options.folder);
  training::TrainOptions train{.shape = {.batch = rows, .seq = tokens},
                               .accumulation = line.count("--accumulation", 1, layout.layout.data),
                               .dtype = options.dtype,
                               .micro_batches = line.count("--micro-batches", 1, 0)};

  const Runtime runtime(options.threads, options.device);
  visit_backend(options.backend, options.threads, [&](const auto& exec) {
    allocate_scratch(exec);
    train.recompute =
        training::plan_checkpointing(exec, config, train, "--checkpoint-blocks", blocks).recompute;
    // Inference has only tensor parallel ranks and stages.
    nn::SessionOptions session{.batch = rows, .capacity = tokens};
    const ranks::Layout of_session{.tensor = layout.layout.tensor,
                                   .pipeline = layout.layout.pipeline};
    const bool measures_session = measure && of_session.ranks() == ranks;
    session.groups = measures_session ? ranks::Groups(ranks::world(), of_session)
                                      : ranks::Groups(ranks::Place(of_session, 0));
    const Forecast inference = forecast_inference(exec, options, config, session, measures_session);
    std::vector<RankForecast> all;
    for (int rank = 0; rank < ranks; ++rank) {
      const ranks::Place place(layout.layout, rank);
      train.groups = ranks::Groups(place);
      all.push_back({place, forecast_training(exec, options, config, train, false)});
    }
    tell_threads(options.threads);
    tell_more(options.resolved_text());
    if (measure) {
      tell_note(nn::parameters_note(options.folder));
      train.groups = layout.groups();
      const auto own = forecast_training(exec, options, config, train, true).measured;
      const auto measured = ranks::world().gather(static_cast<double>(own));
      for (std::size_t r = 0; r < all.size(); ++r) {
        all[r].training.measured = static_cast<std::size_t>(measured[r]);
      }
    }
    if (options.json) return print_json(inference, all);
    print(inference);
    print(all);
  });
  return 0;
}

}  // namespace katt::impl
