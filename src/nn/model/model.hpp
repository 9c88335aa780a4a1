#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "io/safetensors.hpp"
#include "nn/config.hpp"
#include "nn/device_memory.hpp"
#include "nn/model/ternary.hpp"
#include "nn/parameters.hpp"
#include "ranks/groups.hpp"

namespace katt::nn {

/// A LLaMA in the memory of an execution space: its configuration and its parameters in one dtype,
/// or the part of them that one of several ranks holds. The projections of a ternary model are packed
/// and have no other form.
template <class Exec>
class Llama {
 public:
  /// Parameters are zero.
  Llama(Exec exec, LlamaConfig config, Dtype dtype, const ranks::Groups& groups = {});

  [[nodiscard]] const Exec& exec() const { return exec_; }  ///< instance that filled the memory
  [[nodiscard]] const ranks::Groups& groups() const { return groups_; }  ///< ranks that share it
  /// Configuration of the whole model.
  [[nodiscard]] const LlamaConfig& config() const { return config_; }
  /// Where each tensor of this rank lies in the flat array.
  [[nodiscard]] const ParameterLayout& layout() const { return layout_; }
  [[nodiscard]] Dtype dtype() const { return dtype_; }  ///< of all parameters
  /// The tensors by name, in the flat array.
  [[nodiscard]] const Weights& weights() const { return weights_; }
  /// The flat array of the layout.
  [[nodiscard]] void* data() const { return memory_.data(); }
  /// The packed projections of a ternary model.
  [[nodiscard]] const TernaryWeights<Exec>& ternary() const { return ternary_; }
  /// Bytes of the flat array and the packed projections.
  [[nodiscard]] std::size_t bytes() const { return memory_.bytes() + ternary_.bytes(); }

 private:
  Exec exec_;
  LlamaConfig config_;
  ranks::Groups groups_;
  ParameterLayout layout_;
  Dtype dtype_;
  DeviceMemory<Exec> memory_;
  Weights weights_;
  TernaryWeights<Exec> ternary_;
};

/// Fills a flat array of the dtype from a checkpoint, and `ternary` with the packed projections,
/// quantised from values of the dtype. Throws InputError that names a tensor which is missing, has
/// another shape than in the configuration, or is not part of the model.
template <class Exec>
void load_parameters(const Exec& exec, const LlamaConfig& config, const ParameterLayout& layout,
                     const io::Safetensors& file, Dtype dtype, void* data,
                     const TernaryWeights<Exec>* ternary = nullptr);

/// Fills it at random: weights normal with mean 0 and standard deviation initializer_range, norms
/// 1, biases 0. A seed gives the same values on every machine and for every part.
template <class Exec>
void randomize_parameters(const Exec& exec, const LlamaConfig& config,
                          const ParameterLayout& layout, std::uint64_t seed, Dtype dtype,
                          void* data, const TernaryWeights<Exec>* ternary = nullptr);

/// True when the folder holds a checkpoint's tensors, in one file or in shards.
[[nodiscard]] bool holds_parameters(const std::filesystem::path& folder);

/// A remark for the user of a folder's model: its parameters are random, or the name of the
/// checkpoint that is read of two. Empty when there is exactly one.
[[nodiscard]] std::string parameters_note(const std::filesystem::path& folder);

/// Throws as load_parameters() would for the folder's checkpoint, before anything of its size is
/// allocated: the sizes of a configuration may be absurd.
void check_folder(const LlamaConfig& config, const ParameterLayout& layout,
                  const std::filesystem::path& folder);

/// Fills it from the folder of a model, or at random when the folder holds only `config.json`.
template <class Exec>
void initialize_parameters(const Exec& exec, const LlamaConfig& config,
                           const ParameterLayout& layout, const std::filesystem::path& folder,
                           std::uint64_t seed, Dtype dtype, void* data,
                           const TernaryWeights<Exec>* ternary = nullptr);

/// The model of a folder, or a rank's part of it: `config.json` with `model.safetensors`, else with
/// its shards, else alone (random parameters from the seed).
template <class Exec>
Llama<Exec> open_model(const Exec& exec, const std::filesystem::path& folder, Dtype dtype,
                       std::uint64_t seed, const ranks::Groups& groups = {});

/// Reads values.size() elements of a parameter (a part of a tensor of the file), from its element
/// `first` on; in the file its name has the prefix. Throws as io::Safetensors::read().
void read_part(const io::Safetensors& file, const std::string& prefix, const Parameter& parameter,
               std::int64_t first, std::span<float> values);

}  // namespace katt::nn
