#pragma once

#include <array>
#include <cstddef>
#include <filesystem>
#include <stdexcept>
#include <string>
#include <vector>

#include "training/trainer.hpp"

/// A training run on disk. All ranks write and read it at once.
///
/// A folder holds a Hugging Face checkpoint, `config.json` and `model.safetensors` in f32, and
/// `training_state.safetensors` (training/state_file.hpp). Each of several shards is a file,
/// written by its own rank, `model-step20-00001-of-00004.safetensors`, and the index
/// `model.safetensors.index.json` names the shard of each tensor. Tensors are whole in their file,
/// for every layout: their parts travel in chunks of some MiB to the rank that writes them, which
/// bounds the memory of a save.
///
/// Every file is synced and renamed. Shards get new names, the indices follow, and only then the
/// replaced files are removed. So a kill at any instant leaves a whole state and a whole model. The
/// state comes first: a run continues from it alone. `config.json` comes last, and that of another
/// model goes before the model: no folder looks like a model whose parameters it lacks.
namespace katt::training {

/// An array over the layout's elements, in the memory of the execution space; on disk it is f32.
struct StateArray {
  std::string prefix;         ///< prefix of its tensors' names: "m."
  std::byte* data = nullptr;  ///< first element
  bool is_cut = false;  ///< true: it holds only the pieces of this rank, as ZeRO-1 distributes them
  Dtype dtype = Dtype::f32;  ///< dtype in memory
};

/// The state of a run on this rank; the first array holds the parameters.
struct RunArrays {
  const nn::LlamaConfig& config;      ///< the model
  const TrainOptions& options;        ///< of the run
  const nn::ParameterLayout& layout;  ///< place of each tensor
  const Sharing& sharing;             ///< what ranks share
  std::array<StateArray, 3> arrays;   ///< parameters and both moments
};

/// A save that failed, with the first reason. All ranks throw it.
class SaveError : public std::runtime_error {
 public:
  /// `with_state`: has_state.
  SaveError(const std::string& reason, bool with_state)
      : std::runtime_error(reason), has_state(with_state) {}
  bool has_state;  ///< the new state is there, from which a run continues
};

/// One shard for each 2 GiB of the model, at most one a rank.
[[nodiscard]] int suggested_shards(const nn::LlamaConfig& config, int ranks);

/// Writes a run in `shards` shards, at most one a rank; 0: suggested_shards(). All ranks call it,
/// and it returns when all have written. Throws SaveError on all ranks when one cannot write.
template <class Exec>
void write_run(const Exec& exec, const std::filesystem::path& folder, const RunArrays& run,
               const TrainingState& state, int shards);

/// Reads a run into the arrays, each rank its part. Throws InputError as state_of(), and when the
/// tensors belong to another model.
template <class Exec>
[[nodiscard]] TrainingState read_run(const Exec& exec, const std::filesystem::path& folder,
                                     const RunArrays& run);

}  // namespace katt::training
