#include <algorithm>
#include <array>
#include <cstdio>

#include <nlohmann/json.hpp>

#include "core/execution.hpp"
#include "core/text.hpp"
#include "drivers/runtime/commands.hpp"
#include "drivers/runtime/messages.hpp"
#include "drivers/runtime/runtime.hpp"
#include "drivers/runtime/scratch.hpp"
#include "drivers/training/train_options.hpp"
#include "io/atomic_file.hpp"
#include "io/json_input.hpp"
#include "io/outputs.hpp"
#include "io/printable.hpp"
#include "memory/pool.hpp"
#include "memory/tracker.hpp"
#include "process/sha256.hpp"
#include "record/json.hpp"
#include "sweep/sweep_ranks.hpp"
#include "training/checkpointing.hpp"
#include "training/state_file.hpp"

namespace katt::impl {
namespace {

constexpr int interrupted = 130;

struct Trained {
  RunSummary summary;
  training::Checkpointing checkpointing;
  memory::PoolStatistics pool;
};

nlohmann::ordered_json costs_json(const std::vector<training::RecomputeCost>& costs) {
  auto object = nlohmann::ordered_json::object();
  for (const training::RecomputeCost& cost : costs) {
    object[training::name_of(cost.part)] = {{"bytes", cost.bytes}, {"time_s", cost.time_s}};
  }
  return object;
}

void print_summary(const Trained& trained, std::size_t peak_bytes, bool json) {
  const RunSummary& summary = trained.summary;
  if (json) {
    const nlohmann::ordered_json object{
        {"steps", summary.steps},
        {"skipped", summary.skipped},
        {"stopped", summary.was_stopped},
        {"first_loss", summary.first_loss},
        {"last_loss", summary.last_loss},
        {"tokens_s", summary.tokens_per_s},
        {"peak_bytes", peak_bytes},
        {"checkpoint_blocks", trained.checkpointing.text},
        {"recompute", costs_json(trained.checkpointing.costs)},
        {"pool", nlohmann::ordered_json::parse(trained.pool.json())}};
    std::printf("%s\n", bench::dumped(object).c_str());
    return;
  }
  std::printf(
      "%s after %lld steps (%lld skipped): loss %.4f to %.4f, %.0f tokens/s, peak memory %s\n",
      summary.was_stopped ? "stopped" : "done", static_cast<long long>(summary.steps),
      static_cast<long long>(summary.skipped), summary.first_loss, summary.last_loss,
      summary.tokens_per_s, bench::human_bytes(static_cast<double>(peak_bytes)).c_str());
}

/// Says the choice that met a budget.
void tell_costs(const training::Checkpointing& checkpointing) {
  if (checkpointing.costs.empty()) return;
  tell("computed again: " + io::impl::printable(checkpointing.text) + "; measured a block:");
  for (const training::RecomputeCost& cost : checkpointing.costs) {
    std::array<char, 96> text{};
    std::snprintf(text.data(), text.size(), "  %-9s%10s%10s", training::name_of(cost.part),
                  bench::human_bytes(static_cast<double>(cost.bytes)).c_str(),
                  bench::human_seconds(cost.time_s).c_str());
    tell(text.data());
  }
}

/// A trained model keeps its tokenizer. They come before the first step: what cannot be read or
/// written is said at once.
void copy_companions(const TrainCommandLine& line, const std::filesystem::path& out) {
  const std::filesystem::path folder = line.model.folder;
  if (out.empty() || io::same_file(folder, out)) return;
  for (const std::string& name : line.companions()) {
    io::write_file(out / name,
                   io::impl::read_text(folder / name, max_companion_bytes, "a file of a model"));
  }
  if (!line.overwrite) return;
  std::error_code ignored;  // those of a model that was there before
  for (const std::string& name : line.companions(false))
    std::filesystem::remove(out / name, ignored);
}

template <class Exec>
Trained train(const Exec& exec, const TrainCommandLine& line) {
  const memory::Scope scope;
  RunOptions run = line.run_options();
  nn::LlamaConfig config = line.model_config();
  const training::TokenData data = line.data(config.vocab_size);
  training::TrainOptions options = line.options();
  data.check(options.shape.seq);
  if (const ranks::Communicator& ranks = ranks::world(); ranks.size() > 1) {
    bench::check_alike(ranks, "has another config.json", nn::config_json_f32(config));
    bench::check_alike(ranks, "has other tokens", bench::sha256(data.bytes()));
  }
  options.groups = line.layout.groups();
  training::check_ranks(config, options);
  const bool is_first = options.groups.all.rank() == 0;
  check_blocks(line.checkpointing(), options.groups.all.size());
  run.checkpointing = training::plan_checkpointing(exec, config, options, "--checkpoint-blocks",
                                                   line.checkpointing());
  options.recompute = run.checkpointing.recompute;
  check_fits(line.model.folder.string() + ": training",
             training::training_memory(exec, config, options).total() *
                 ranks_on_memory(options.groups.all.ranks_on_host(), line.model),
             line.model.backend);
  const nn::Pool<Exec> pool("katt::train::pool");
  training::Trainer<Exec> trainer(exec, std::move(config), options, line.model.folder,
                                  line.model.seed, pool);
  const nn::ParameterLayout whole(trainer.config());
  io::Outputs outputs;
  bench::together(options.groups.all, [&] {
    if (!is_first) return;
    outputs = claim_targets(run);
    if (line.resume) training::remove_unfinished(run.out);  // only the lock marked it as ours
  });
  if (is_first) ask_for_space(trainer.config(), run, options.groups.all.size());
  // once no other process can write the run
  const bool continues = line.resume && training::holds_run(run.out);
  if (continues) trainer.resume(run.out);
  bench::together(options.groups.all, [&] {
    if (!is_first) return;
    if (line.resume) check_continued_log(run, trainer.log());
    copy_companions(line, run.out);
  });
  if (is_first) {
    tell_threads(line.model.threads);
    tell_costs(run.checkpointing);
    tell_note(continues ? schedule_note(trainer.log(), options.schedule)
                        : nn::parameters_note(line.model.folder));
    tell_more(line.model.resolved_text());
    const ranks::Layout& layout = options.groups.place.layout;
    const std::string shared = layout.ranks() > 1 ? ", " + std::to_string(layout.ranks()) +
                                                        " ranks: " + ranks::to_text(layout)
                                                  : "";
    std::array<char, 48> millions{};
    std::snprintf(millions.data(), millions.size(), "%.2f",
                  static_cast<double>(whole.count()) / 1e6);
    tell(std::string(millions.data()) + " million parameters, " + std::to_string(data.size()) +
         " tokens of data, " + std::string(name_of(options.dtype)) + shared);
  }
  const RunSummary summary =
      impl::run(trainer, data, run, stop_on_signals("stopping after this step"), scope);
  return {summary, run.checkpointing, pool.statistics()};
}

}  // namespace

int train_command(const Invocation& invocation) {
  TrainCommandLine line;
  if (!line.parse(invocation)) return 0;
  line.check_output();
  const Runtime runtime(line.model.threads, line.model.device);
  return visit_backend(line.model.backend, line.model.threads, [&](const auto& exec) {
    allocate_scratch(exec);
    const Trained trained = train(exec, line);
    const auto peaks = ranks::world().gather(static_cast<double>(trained.summary.peak_bytes));
    print_summary(trained, static_cast<std::size_t>(*std::ranges::max_element(peaks)),
                  line.model.json);
    return trained.summary.was_stopped ? interrupted : 0;
  });
}

}  // namespace katt::impl
