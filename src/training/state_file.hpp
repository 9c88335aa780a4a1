#pragma once

#include <filesystem>

#include "training/trainer.hpp"

/// A training run on disk.
namespace katt::training {

/// The file, in the folder of a run, that it is continued from.
inline constexpr const char* state_file = "training_state.safetensors";

/// Writes a Hugging Face checkpoint (`config.json`, `model.safetensors` in f32) and
/// `training_state.safetensors`: masters, moments, counters and log, all that read_state() needs.
/// Each file is replaced in one step, so that a kill at any instant leaves a run that can be
/// continued. Throws InputError when the folder cannot be written.
void write_run(const std::filesystem::path& folder, const nn::LlamaConfig& config,
               const nn::ParameterLayout& layout, const TrainOptions& options,
               const TrainingState& state);

/// Reads the state of a run back. Throws InputError, naming the file, what it holds and what was
/// expected, where it is of another model or was made with another batch, sequence, accumulation or
/// dtype: its continuation would be another run.
[[nodiscard]] TrainingState read_state(const std::filesystem::path& folder,
                                       const nn::ParameterLayout& layout,
                                       const TrainOptions& options);

}  // namespace katt::training
