#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "io/safetensors.hpp"
#include "training/trainer.hpp"

/// The file from which a training run continues: `training_state.safetensors`, or its shards.
/// Tensors "parameters.NAME", "m.NAME" and "v.NAME" are masters and moments of the tensor NAME of
/// the model, all f32; "log.loss", … have a value a step; counters and the options that must stay
/// the same are metadata.
namespace katt::training {

/// Its name, in the folder of a run.
inline constexpr const char* state_file = "training_state.safetensors";

/// True when a folder holds a run that can continue.
[[nodiscard]] bool holds_run(const std::filesystem::path& folder);

/// The shards of model.safetensors or of the state in a folder, also the temporaries of a killed
/// save, whose names begin with a dot: a save replaces them.
[[nodiscard]] std::vector<std::string> shards_in(const std::filesystem::path& folder,
                                                 const std::string& file);

/// Removes what a first save that broke off has left: shards that no index names.
void remove_unfinished(const std::filesystem::path& folder);

/// The state beside the arrays.
struct StateContents {
  std::map<std::string, std::string> metadata;
  std::map<std::string, std::vector<float>> tensors;  ///< of rank 1
};
[[nodiscard]] StateContents contents_of(const nn::LlamaConfig& config, const TrainOptions& options,
                                        const TrainingState& state);

/// Reads it back. Throws InputError, naming the file, what it holds and what was expected, when the
/// run used another batch, sequence, accumulation, dtype (of weights or masters) or loss scaling,
/// or when only one of the two is ternary: its continuation would be another run.
[[nodiscard]] TrainingState state_of(const std::filesystem::path& path, const io::Safetensors& file,
                                     const nn::LlamaConfig& config, const TrainOptions& options);

}  // namespace katt::training
