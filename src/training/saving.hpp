#pragma once

#include <array>
#include <cstddef>
#include <filesystem>
#include <string>

#include "training/trainer.hpp"

/// A training run on disk, written and read by all ranks at once.
///
/// A folder holds a Hugging Face checkpoint, `config.json` and `model.safetensors` in f32, and
/// `training_state.safetensors` (training/state_file.hpp). Of several shards each is a file of its
/// own, written by a rank of its own, `model-step20-00001-of-00004.safetensors`, and the index
/// `model.safetensors.index.json` says which holds which tensor. Tensors are whole in their file,
/// whatever the layout: their parts travel in chunks of some MiB to the rank that writes them, which
/// bounds the memory that a save takes.
///
/// Every file is synced and renamed; shards get names that no file has, the indices come after them,
/// and only then what they replace is removed. So a kill at any instant leaves the last whole save.
/// `config.json` comes last: no folder looks like a model without parameters.
namespace katt::training {

/// An array over the layout's elements, in the memory of the execution space; on disk it is f32.
struct StateArray {
  std::string prefix;  ///< of its tensors' names: "m."
  std::byte* data = nullptr;
  bool is_cut = false;  ///< it holds the pieces of this rank alone, as ZeRO-1 shares them out
  Dtype dtype = Dtype::f32;
};

/// The state of a run where it lies on this rank; the first array is the parameters.
struct RunArrays {
  const nn::LlamaConfig& config;
  const TrainOptions& options;
  const nn::ParameterLayout& layout;
  const Sharing& sharing;
  std::array<StateArray, 3> arrays;
};

/// One for each 2 GiB of the model, at most one a rank.
[[nodiscard]] int suggested_shards(const nn::LlamaConfig& config, int ranks);

/// Writes a run in so many shards, at most one a rank; 0: suggested_shards(). All ranks call it, and
/// it returns when all of them have written. Throws std::runtime_error, on all of them, when one cannot write.
template <class Exec>
void write_run(const Exec& exec, const std::filesystem::path& folder, const RunArrays& run,
               const TrainingState& state, int shards);

/// Reads a run into the arrays, each rank its part. Throws InputError as state_of(), and where the
/// tensors are those of another model.
template <class Exec>
[[nodiscard]] TrainingState read_run(const Exec& exec, const std::filesystem::path& folder,
                                     const RunArrays& run);

}  // namespace katt::training
