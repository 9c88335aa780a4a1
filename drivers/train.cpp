#include <cstdio>

#include <nlohmann/json.hpp>

#include "bench/text.hpp"
#include "drivers/commands.hpp"
#include "drivers/runtime.hpp"
#include "drivers/train_options.hpp"
#include "memory/tracker.hpp"
#include "training/checkpointing.hpp"
#include "training/state_file.hpp"

namespace katt::impl {
namespace {

constexpr int interrupted = 130;

void print_summary(const training::RunSummary& summary, std::size_t peak_bytes, bool json) {
  if (json) {
    const nlohmann::ordered_json object{
        {"steps", summary.steps},         {"skipped", summary.skipped},
        {"stopped", summary.was_stopped}, {"first_loss", summary.first_loss},
        {"last_loss", summary.last_loss}, {"tokens_s", summary.tokens_per_s},
        {"peak_bytes", peak_bytes}};
    std::printf("%s\n", object.dump().c_str());
    return;
  }
  std::printf(
      "%s after %lld steps (%lld skipped): loss %.4f to %.4f, %.0f tokens/s, peak memory %s\n",
      summary.was_stopped ? "stopped" : "done", static_cast<long long>(summary.steps),
      static_cast<long long>(summary.skipped), summary.first_loss, summary.last_loss,
      summary.tokens_per_s, bench::human_bytes(static_cast<double>(peak_bytes)).c_str());
}

template <class Exec>
training::RunSummary train(const Exec& exec, const TrainCommandLine& line) {
  const training::RunOptions run = line.run_options();
  std::error_code ignored;
  const bool continues =
      line.resume && std::filesystem::exists(run.out / training::state_file, ignored);
  nn::LlamaConfig config = nn::read_config(line.model.folder);
  const training::TokenData data = line.data(config.vocab_size);
  training::TrainOptions options = line.options(config.num_hidden_layers);
  if (const auto budget = line.memory_budget()) {
    options.recompute = training::checkpointing_for_budget(exec, config, options, *budget);
  }
  data.check(options.shape.seq);
  check_fits("training", training::training_memory(exec, config, options).total(),
             line.model.backend);
  training::Trainer<Exec> trainer(exec, std::move(config), options, line.model.folder,
                                  line.model.seed);
  if (continues) trainer.set_state(training::read_state(run.out, trainer.layout(), options));
  std::fprintf(stderr, "%.2f million parameters, %lld tokens of data, %s\n",
               static_cast<double>(trainer.layout().count()) / 1e6,
               static_cast<long long>(data.size()), std::string(name_of(options.dtype)).c_str());
  return training::run(trainer, data, run, stop_on_signals());
}

}  // namespace

int train_command(const Invocation& invocation) {
  TrainCommandLine line;
  if (!line.parse(invocation.arguments)) return 0;
  line.check_output();
  const Runtime runtime(line.model.threads);
  const memory::Scope scope;
  const training::RunSummary summary = visit_backend(
      line.model.backend, line.model.threads, [&](const auto& exec) { return train(exec, line); });
  print_summary(summary, scope.peak_bytes(), line.model.json);
  return summary.was_stopped ? interrupted : 0;
}

}  // namespace katt::impl
