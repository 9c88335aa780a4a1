#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "io/safetensors.hpp"
#include "training/trainer.hpp"

/// The file that a training run is continued from: `training_state.safetensors`, or its shards.
/// Tensors "parameters.NAME", "m.NAME" and "v.NAME" are masters and moments of the tensor NAME of
/// the model, all f32; "log.loss", … have a value a step; counters and what must be the same when
/// the run goes on are metadata.
namespace katt::training {

/// Its name, in the folder of a run.
inline constexpr const char* state_file = "training_state.safetensors";

/// Whether a folder holds a run that can be continued.
[[nodiscard]] bool holds_run(const std::filesystem::path& folder);

/// What is stored beside the arrays.
struct StateContents {
  std::map<std::string, std::string> metadata;
  std::map<std::string, std::vector<float>> tensors;  ///< of rank 1
};
[[nodiscard]] StateContents contents_of(const nn::LlamaConfig& config, const TrainOptions& options,
                                        const TrainingState& state);

/// Reads it back. Throws InputError, naming the file, what it holds and what was expected, where
/// the run was made with another batch, sequence, accumulation, dtype (of the masters, too) or loss
/// scaling, or is ternary where this one is not: its continuation would be another run.
[[nodiscard]] TrainingState state_of(const std::filesystem::path& path, const io::Safetensors& file,
                                     const nn::LlamaConfig& config, const TrainOptions& options);

}  // namespace katt::training
