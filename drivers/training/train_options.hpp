#pragma once

#include <cstddef>
#include <filesystem>
#include <string>
#include <vector>

#include "drivers/options/layout_options.hpp"
#include "drivers/options/model_options.hpp"
#include "drivers/training/training_run.hpp"

namespace katt::impl {

/// Most bytes of a file that a trained model keeps of its model, e.g. a tokenizer.
inline constexpr std::size_t max_companion_bytes = std::size_t{1} << 30;

/// The options of `katt train`, from the command line and, for options missing there, from a TOML
/// file with their names as keys.
class TrainCommandLine {
 public:
  TrainCommandLine();

  /// As CommandLine::parse().
  [[nodiscard]] bool parse(const Invocation& invocation);

  ModelOptions model;
  LayoutOptions layout;
  bool resume = false, overwrite = false;

  /// The meaning of the texts, except checkpointing. Throws InputError.
  [[nodiscard]] training::TrainOptions options() const;
  /// The text of the checkpointing.
  [[nodiscard]] std::string checkpointing() const;
  /// The model's configuration, ternary on request. Throws InputError.
  [[nodiscard]] nn::LlamaConfig model_config() const;
  [[nodiscard]] RunOptions run_options() const;
  [[nodiscard]] training::TokenData data(std::int64_t vocab_size) const;
  /// The files of the model's folder that a trained model needs as well, and of which --out gets a
  /// copy: tokenizer and settings of generation, by their names in Hugging Face's folders. Unless `present`, those
  /// that it lacks.
  [[nodiscard]] std::vector<std::string> companions(bool present = true) const;
  /// Throws InputError when an existing output is neither resumed nor replaced, and when an output
  /// is an input or another output.
  void check_output() const;

 private:
  void read_config();
  /// True when a file that is in the folder of --out may be replaced: as --overwrite says, or, with
  /// --resume, as part of a run, of a first save that was killed, or as the copy of a companion.
  [[nodiscard]] bool may_replace(const std::filesystem::path& file) const;
  [[nodiscard]] training::LossScaling loss_scaling() const;

  CommandLine line_;
  bool checkpoint_ = false;
  bool profile_ = false;
};

}  // namespace katt::impl
