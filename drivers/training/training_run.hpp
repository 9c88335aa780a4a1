#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "core/backend.hpp"
#include "io/hdf5/result_file.hpp"
#include "io/outputs.hpp"
#include "memory/tracker.hpp"
#include "training/checkpointing.hpp"
#include "training/trainer.hpp"

/// The loop around a trainer: tokens, progress, log, checkpoints, an orderly stop.
namespace katt::impl {

/// Dataset `tokens` (or `train/tokens`) of an HDF5 file: (N) integers. Throws InputError when one
/// is not in 0 … vocab_size − 1.
[[nodiscard]] training::TokenData tokens_from_hdf5(const std::filesystem::path& path,
                                                   std::int64_t vocab_size);

struct RunOptions {
  std::int64_t steps = 1;       ///< steps of the whole run, including those before it was continued
  std::int64_t save_every = 0;  ///< steps between checkpoints; 0: at the end only
  int save_shards = 0;          ///< files of a checkpoint; 0: training::suggested_shards()
  std::filesystem::path out;    ///< folder of the checkpoint; empty: none
  std::filesystem::path log;    ///< HDF5 file; empty: none
  training::Checkpointing checkpointing{};  ///< for the log
  bool profile = false;                     ///< say a profile of a step, and put it into the log
  Backend backend = Backend::openmp;        ///< backend of the trainer, for the profile
  int threads = 0;
};

struct RunSummary {
  std::int64_t steps = 0;
  std::int64_t skipped = 0;
  double tokens_per_s = 0;
  float first_loss = 0, last_loss = 0;
  bool was_stopped = false;
  std::size_t peak_bytes = 0;  ///< peak of the scope, before a profile's ceilings are measured
};

/// Locks `out` and `log`, which may exist, for the run. Throws InputError when another process
/// writes them or they cannot be written.
[[nodiscard]] io::Outputs claim_targets(const RunOptions& options);

/// A remark that the learning rate jumps, because the continued run had another schedule; empty
/// when it does not.
[[nodiscard]] std::string schedule_note(const std::vector<training::StepLog>& log,
                                        const training::Schedule& schedule);

/// Throws InputError when the file of the log is there and is not that of the run in `options.out`:
/// a log holds the first of the run's steps.
void check_continued_log(const RunOptions& options, const std::vector<training::StepLog>& log);

/// Reserves the disk space of a save, which each save of a run needs beside the previous one.
/// Throws std::runtime_error.
void ask_for_space(const nn::LlamaConfig& config, const RunOptions& options, int ranks);

/// Runs the remaining steps. Saves the run when `stop` is set, and at the end. It reports a failed
/// save before the end and tries again with the next one; it tries the last save twice more, then
/// throws std::runtime_error that says what is on disk.
template <class Exec>
RunSummary run(training::Trainer<Exec>& trainer, const training::TokenData& data,
               const RunOptions& options, const std::atomic<bool>& stop,
               const memory::Scope& scope);

/// Writes the log: datasets loss, grad_norm, lr, time_s, loss_scale and skipped, one value a step;
/// attributes that describe the model and the training, with `checkpoint_blocks` and, for each
/// tensor behind the choice of checkpointing, `recompute_NAME_bytes` and `recompute_NAME_s`; and
/// the profile of a step, if there is one.
void write_log(const std::filesystem::path& path, const std::vector<training::StepLog>& log,
               const training::TrainOptions& training, const RunOptions& options,
               const io::Profile& profile = {});

}  // namespace katt::impl
