#include "drivers/training/training_run.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <limits>
#include <list>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>

#include "core/execution.hpp"
#include "core/stopwatch.hpp"
#include "core/text.hpp"
#include "drivers/runtime/messages.hpp"
#include "drivers/runtime/model_profile.hpp"
#include "drivers/training/train_options.hpp"
#include "io/hdf5/case_file.hpp"
#include "measure/profile.hpp"
#include "training/saving.hpp"
#include "training/state_file.hpp"

namespace katt::impl {

namespace {

using training::StepLog;
using training::Trainer;
using training::TrainOptions;

/// "step 12/500 loss 3.214 norm 1.22 lr 1.0e-03 5120 tokens/s, 3 min 20 s left", at most one a
/// second.
class ProgressLine {
 public:
  explicit ProgressLine(std::int64_t steps) : out_(messages()), steps_(steps) {}

  void show(const StepLog& step, std::int64_t done, double tokens_per_s, double left_s) {
    if (out_ == nullptr) return;
    const bool is_due = done == steps_ || step.skipped || !shown_ || shown_->seconds() >= 1.0;
    if (!is_due) return;
    shown_.emplace();
    const long left = std::lround(left_s);
    std::fprintf(out_, "step %lld/%lld loss %.4f norm %.3g lr %.2e %.0f tokens/s, ",
                 static_cast<long long>(done), static_cast<long long>(steps_), step.loss,
                 step.grad_norm, step.rate, tokens_per_s);
    if (left >= 60) std::fprintf(out_, "%ld min ", left / 60);
    std::fprintf(out_, "%ld s left", left % 60);
    if (step.skipped) std::fprintf(out_, ", skipped: not finite at loss scale %g", step.loss_scale);
    std::fprintf(out_, "\n");
    std::fflush(out_);
  }

 private:
  std::FILE* out_;
  std::int64_t steps_;
  std::optional<Stopwatch> shown_;  ///< since the last line
};

/// Saves a run, by all ranks at once.
template <class Exec>
class Saver {
 public:
  Saver(const Trainer<Exec>& trainer, const RunOptions& options)
      : trainer_(trainer), options_(options), saved_(trainer.steps()) {}

  /// Saves, and reports a failure.
  void save() {
    const std::string failure = attempt();
    if (failure.empty()) return;
    tell("step " + std::to_string(trainer_.steps()) + " is not saved: " + failure +
         "; the next save tries again");
  }

  /// Saves, tries again after a failure, and throws std::runtime_error that says what is on disk.
  void save_last() {
    constexpr int attempts = 3;
    constexpr std::chrono::seconds pause(1);
    std::string failure = attempt();
    for (int again = 1; again < attempts && !failure.empty(); ++again) {
      std::this_thread::sleep_for(pause);
      failure = attempt();
    }
    if (failure.empty()) return;
    if (!options_.out.empty()) {
      failure += "; " + (saved_ > 0 ? options_.out.string() + " holds step " +
                                          std::to_string(saved_) + ", --resume goes on there"
                                    : "nothing of the run is saved");
    }
    throw std::runtime_error(failure);
  }

 private:
  /// The reason of a failure; "" on success. The same on all ranks.
  std::string attempt() {
    const ranks::Communicator& ranks = trainer_.options().groups.all;
    std::string failure;
    try {
      if (!options_.out.empty()) trainer_.save(options_.out, options_.save_shards);
      saved_ = trainer_.steps();
    } catch (const std::exception& error) {
      // a failure of this rank alone ends the job: the others do not know of it
      const auto* const known = dynamic_cast<const training::SaveError*>(&error);
      if (ranks.size() > 1 && known == nullptr) throw;
      if (known != nullptr && known->has_state) saved_ = trainer_.steps();
      if (ranks.rank() == 0) training::remove_unfinished(options_.out);
      return error.what();
    }
    if (ranks.rank() == 0 && !options_.log.empty()) {
      try {
        write_log(options_.log, trainer_.log(), trainer_.options(), options_);
      } catch (const std::exception& error) {
        failure = error.what();
      }
    }
    return ranks.broadcast_text(failure, 0);
  }

  const Trainer<Exec>& trainer_;
  const RunOptions& options_;
  std::int64_t saved_;  ///< steps of the last saved state
};

}  // namespace

training::TokenData tokens_from_hdf5(const std::filesystem::path& path, std::int64_t vocab_size) {
  const io::CaseFile file(path);
  const char* dataset = !file.has("tokens") && file.has("train/tokens") ? "train/tokens" : "tokens";
  const std::vector<std::int64_t> values = file.integers(dataset, {-1}, "(N)").values;
  return {values, vocab_size, path.string() + ": dataset " + dataset};
}

training::TokenData TrainCommandLine::data(std::int64_t vocab_size) const {
  if (line_.text("--data")) return tokens_from_hdf5(*line_.text("--data"), vocab_size);
  return training::TokenData::from_bytes(*line_.text("--text"), vocab_size);
}

io::Outputs claim_targets(const RunOptions& options) {
  io::Outputs outputs;
  if (!options.out.empty()) {
    // --resume takes the files of a first save that broke off for its own where the lock stayed
    outputs.claim({"--out", options.out / training::state_file}, true, "",
                  !training::holds_run(options.out));
  }
  if (!options.log.empty()) outputs.claim({"--log", options.log}, true);
  return outputs;
}

void check_continued_log(const RunOptions& options, const std::vector<StepLog>& log) {
  std::error_code ignored;
  if (options.log.empty() || !std::filesystem::is_regular_file(options.log, ignored)) return;
  const std::string expected =
      "; expected the log of the run in " + options.out.string() + ", or a new file";
  const auto reject = [&](const std::string& held) {
    throw InputError("--log " + options.log.string() + ": " + held + expected);
  };
  try {
    const io::CaseFile file(options.log);
    for (const auto& [name, member] : std::array<std::pair<const char*, float StepLog::*>, 3>{
             {{"loss", &StepLog::loss}, {"lr", &StepLog::rate}, {"time_s", &StepLog::time_s}}}) {
      if (!file.has(name)) reject(std::string("holds no dataset ") + name);
      const std::vector<float> held = file.column(name);
      if (held.size() > log.size()) {
        reject("holds " + std::to_string(held.size()) + " steps, the run has " +
               std::to_string(log.size()));
      }
      for (std::size_t i = 0; i < held.size(); ++i) {
        if (std::bit_cast<std::uint32_t>(held[i]) == std::bit_cast<std::uint32_t>(log[i].*member)) {
          continue;
        }
        reject("is the log of another run: step " + std::to_string(i + 1) + " has another " + name);
      }
    }
  } catch (const InputError& error) {
    const std::string message = error.what();
    if (message.ends_with(expected)) throw;
    throw InputError("--log " + message + expected);
  }
}

void ask_for_space(const nn::LlamaConfig& config, const RunOptions& options, int ranks) {
  if (options.out.empty()) return;
  const auto shards = static_cast<std::uint64_t>(
      options.save_shards > 0 ? options.save_shards : training::suggested_shards(config, ranks));
  const auto parameters = static_cast<std::uint64_t>(nn::ParameterLayout(config).count());
  try {
    std::list<io::AtomicFile> asked;
    // a shard of the model, and one of the state: parameters and two moments
    for (std::uint64_t shard = 0; shard < shards; ++shard) {
      for (const std::uint64_t arrays : {1, 3}) {
        asked.emplace_back(options.out / training::state_file)
            .reserve(parameters * arrays * sizeof(float) / shards);
      }
    }
  } catch (const std::runtime_error& error) {
    throw std::runtime_error(
        std::string(error.what()) + "; a save takes " +
        bench::human_bytes(static_cast<double>(parameters * 4 * sizeof(float))));
  }
}

std::string schedule_note(const std::vector<StepLog>& log, const training::Schedule& schedule) {
  if (log.empty() || std::ssize(log) >= schedule.steps) return "";
  const double was = log.back().rate;
  const double would_be = schedule.at(std::ssize(log) - 1);
  if (std::abs(was - would_be) <= 1e-6 * std::max(was, schedule.rate)) return "";
  std::array<char, 96> rates{};
  std::snprintf(rates.data(), rates.size(), "%.2e of step %td to %.2e", was, std::ssize(log),
                schedule.at(std::ssize(log)));
  return std::string("--resume: the learning rate goes from ") + rates.data() +
         ": the run was begun with another schedule (--steps, --lr, --schedule, --warmup, "
         "--min-lr)";
}

template <class Exec>
RunSummary run(Trainer<Exec>& trainer, const training::TokenData& data, const RunOptions& options,
               const std::atomic<bool>& stop, const memory::Scope& scope) {
  const ranks::Communicator& ranks = trainer.options().groups.all;
  const TrainOptions& training = trainer.options();
  const double step_tokens =
      static_cast<double>(training.shape.tokens()) * static_cast<double>(training.accumulation);
  ProgressLine progress(options.steps);
  Saver<Exec> saver(trainer, options);
  RunSummary summary;
  const std::int64_t first = trainer.steps();
  bench::Profiler profiler;
  double profiled_s = 0;
  const Stopwatch watch;
  // A signal may come to some of the ranks alone: they stop after the same step.
  const auto is_stopped = [&] { return ranks.sum(stop ? 1 : 0) > 0; };
  while (trainer.steps() < options.steps && !is_stopped()) {
    if (options.profile) profiler.start();
    const StepLog step = trainer.step(data);
    profiler.stop();
    profiled_s += step.time_s;
    const auto done = static_cast<double>(trainer.steps() - first);
    const double elapsed_s = watch.seconds();
    summary.tokens_per_s = done * step_tokens / elapsed_s;
    summary.skipped += step.skipped ? 1 : 0;
    progress.show(step, trainer.steps(), summary.tokens_per_s,
                  elapsed_s / done * static_cast<double>(options.steps - trainer.steps()));
    const bool has_learnt = summary.skipped < trainer.steps() - first;
    if (options.save_every > 0 && trainer.steps() % options.save_every == 0 &&
        trainer.steps() < options.steps && has_learnt) {
      saver.save();
    }
  }
  const bool all_skipped = trainer.steps() > first && summary.skipped == trainer.steps() - first;
  if (all_skipped && !(training.scaling.is_dynamic && std::isfinite(trainer.log().back().loss))) {
    throw std::runtime_error("every step was skipped: its gradients are not finite (loss " +
                             bench::to_text(trainer.log().back().loss) + "); nothing is saved");
  }
  saver.save_last();
  summary.peak_bytes = scope.peak_bytes();
  if (ranks.rank() == 0 && options.profile && trainer.steps() > first) {
    io::Profile profile = profiler.mean(trainer.steps() - first, profiled_s);
    tell_profile(profile, options.backend, options.threads, training.dtype);
    if (!options.log.empty()) {
      write_log(options.log, trainer.log(), training, options, profile);
    }
  }
  summary.steps = trainer.steps();
  summary.was_stopped = trainer.steps() < options.steps;
  if (!trainer.log().empty()) {
    summary.first_loss = trainer.log().front().loss;
    summary.last_loss = trainer.log().back().loss;
  }
  return summary;
}

void write_log(const std::filesystem::path& path, const std::vector<StepLog>& log,
               const TrainOptions& training, const RunOptions& options,
               const io::Profile& profile) {
  io::TensorFile file;
  describe_run(file, "train", options.backend, options.threads, training.dtype, profile);
  const training::Checkpointing& checkpointing = options.checkpointing;
  const auto column = [&](const char* name, auto value_of) {
    io::FloatTensor tensor{{static_cast<std::int64_t>(log.size())}, {}};
    for (const StepLog& step : log) tensor.values.push_back(value_of(step));
    file.set(name, std::move(tensor));
  };
  column("loss", [](const StepLog& step) { return step.loss; });
  column("grad_norm", [](const StepLog& step) { return step.grad_norm; });
  column("lr", [](const StepLog& step) { return step.rate; });
  column("time_s", [](const StepLog& step) { return step.time_s; });
  column("loss_scale", [](const StepLog& step) { return step.loss_scale; });
  column("pipeline_idle", [](const StepLog& step) { return step.pipeline_idle; });
  column("skipped", [](const StepLog& step) { return step.skipped ? 1.0F : 0.0F; });
  file.set_attribute("batch", training.shape.batch);
  file.set_attribute("seq", training.shape.seq);
  file.set_attribute("accumulation", training.accumulation);
  file.set_attribute("checkpoint_blocks", checkpointing.text);
  for (const training::RecomputeCost& cost : checkpointing.costs) {
    const std::string prefix = std::string("recompute_") + training::name_of(cost.part);
    file.set_attribute(prefix + "_bytes", static_cast<std::int64_t>(cost.bytes));
    file.set_attribute(prefix + "_s", cost.time_s);
  }
  file.write(path);
}

#define KATT_INSTANTIATE_RUN(Exec)                                                             \
  template RunSummary run<Exec>(Trainer<Exec>&, const training::TokenData&, const RunOptions&, \
                                const std::atomic<bool>&, const memory::Scope&);

KATT_FOR_EACH_EXEC(KATT_INSTANTIATE_RUN)

}  // namespace katt::impl
