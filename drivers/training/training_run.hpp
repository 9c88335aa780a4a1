#pragma once

#include <atomic>
#include <cstdint>
#include <cstdio>
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

/// Dataset `tokens` (or `train/tokens`) of an HDF5 file: (N) integers. Throws InputError where one
/// is not in 0 … vocab_size − 1.
[[nodiscard]] training::TokenData tokens_from_hdf5(const std::filesystem::path& path,
                                                   std::int64_t vocab_size);

struct RunOptions {
  std::int64_t steps = 1;       ///< of the whole run, those before it was continued included
  std::int64_t save_every = 0;  ///< steps between checkpoints; 0: at the end only
  int save_shards = 0;          ///< files of a checkpoint; 0: as training::suggested_shards() says
  std::filesystem::path out;    ///< folder of the checkpoint; empty: none
  std::filesystem::path log;    ///< HDF5 file; empty: none
  training::Checkpointing checkpointing{};  ///< for the log
  std::FILE* progress = nullptr;
  bool profile = false;  ///< tell where the time of a step goes, on `progress` and in the log
  Backend backend = Backend::openmp;  ///< that the trainer runs on, for the profile
  int threads = 0;
};

struct RunSummary {
  std::int64_t steps = 0;
  std::int64_t skipped = 0;
  double tokens_per_s = 0;
  float first_loss = 0, last_loss = 0;
  bool was_stopped = false;
  std::size_t peak_bytes = 0;  ///< of the scope, before a profile's ceilings are measured
};

/// Locks `out` and `log`, which may be there, for the run. Throws InputError where another process
/// writes them or they cannot be written.
[[nodiscard]] io::Outputs claim_targets(const RunOptions& options);

/// Says where the learning rate jumps, since the run that was continued had another schedule; empty where
/// it does not.
[[nodiscard]] std::string schedule_note(const std::vector<training::StepLog>& log,
                                        const training::Schedule& schedule);

/// Asks for the disk space of a save, which the saves of a run need beside the one before. Throws
/// std::runtime_error.
void ask_for_space(const nn::LlamaConfig& config, const RunOptions& options, int ranks);

/// Runs the steps that are left. When `stop` is set, or at the end, the run is saved. A save that
/// fails before the end is told and tried again with the next one, the last one twice more; then
/// std::runtime_error says what is on disk.
template <class Exec>
RunSummary run(training::Trainer<Exec>& trainer, const training::TokenData& data,
               const RunOptions& options, const std::atomic<bool>& stop,
               const memory::Scope& scope);

/// Writes the log: datasets loss, grad_norm, lr, time_s, loss_scale and skipped, one value a step;
/// attributes that say what was trained how, `checkpoint_blocks` among them, and of each tensor
/// that checkpointing was chosen by `recompute_NAME_bytes` and `recompute_NAME_s`; and the profile
/// of a step, if one was taken.
void write_log(const std::filesystem::path& path, const std::vector<training::StepLog>& log,
               const training::TrainOptions& training, const RunOptions& options,
               const io::Profile& profile = {});

}  // namespace katt::impl
