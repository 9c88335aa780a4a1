#pragma once

#include <hdf5.h>

#include <cstdint>
#include <filesystem>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "io/hdf5/case_file.hpp"
#include "io/hdf5/hdf5_handle.hpp"
#include "memory/transfer.hpp"
#include "nn/config.hpp"
#include "nn/model/model.hpp"
#include "tests/cases/folders.hpp"

namespace katt::test {

/// Folders of Hugging Face checkpoints, each with the results of transformers and PyTorch in
/// expected.h5: that of the tree, then others.
inline std::vector<std::filesystem::path> checkpoints() {
  std::vector<std::filesystem::path> found;
  for (const auto& folder : case_folders()) {
    const auto checkpoint = folder / "llama_tiny";
    if (found.empty() || std::filesystem::exists(checkpoint)) found.push_back(checkpoint);
  }
  return found;
}

inline io::CaseFile expected_of(const std::filesystem::path& checkpoint) {
  return io::CaseFile(checkpoint / "expected.h5");
}

inline std::vector<std::int64_t> expected_integers(const std::filesystem::path& checkpoint,
                                                   const std::string& dataset) {
  return expected_of(checkpoint).integers(dataset, {-1}, "(N)").values;
}

/// An option of the training in expected.h5, an attribute of its group /train.
inline double training_attribute(const std::filesystem::path& checkpoint, const char* name) {
  const io::impl::Handle file(
      H5Fopen((checkpoint / "expected.h5").c_str(), H5F_ACC_RDONLY, H5P_DEFAULT));
  const io::impl::Handle attribute(
      H5Aopen_by_name(file.get(), "train", name, H5P_DEFAULT, H5P_DEFAULT));
  double value = std::numeric_limits<double>::quiet_NaN();
  H5Aread(attribute.get(), H5T_NATIVE_DOUBLE, &value);
  return value;
}

/// Memory of copies to and from a device beside the forecast of a model: two pinned chunks.
template <class Exec>
double staging_bytes() {
  return memory::host_accessible<Exec>
             ? 0.0
             : 2.0 * static_cast<double>(memory::Transfer<Exec>::default_chunk_bytes);
}

/// A configuration of a model that is random and small; `changes` are merged into it.
inline nn::LlamaConfig small_config(const nlohmann::json& changes = nlohmann::json::object()) {
  nlohmann::json config = {
      {"model_type", "llama"},    {"vocab_size", 97},       {"hidden_size", 48},
      {"intermediate_size", 80},  {"num_hidden_layers", 4}, {"num_attention_heads", 6},
      {"num_key_value_heads", 3}, {"head_dim", 8},          {"initializer_range", 0.1}};
  config.update(changes);
  return nn::parse_config("small", config.dump());
}

template <class Exec>
nn::Llama<Exec> random_model(Dtype dtype, nn::LlamaConfig config = small_config()) {
  nn::Llama<Exec> model(Exec(), std::move(config), dtype);
  nn::randomize_parameters(model.exec(), model.config(), model.layout(), 3, dtype, model.data());
  return model;
}

}  // namespace katt::test
