#pragma once

#include <string>

#include "drivers/options/layout_options.hpp"
#include "drivers/options/model_options.hpp"
#include "drivers/training/training_run.hpp"

namespace katt::impl {

/// The options of `katt train`, from the command line and, for those not given there, from a TOML
/// file whose keys are their names.
class TrainCommandLine {
 public:
  TrainCommandLine();

  /// False when help was asked for. Throws InputError.
  [[nodiscard]] bool parse(std::span<const std::string> arguments);

  ModelOptions model;
  LayoutOptions layout;
  bool resume = false, overwrite = false;

  /// What the texts mean, but for the checkpointing. Throws InputError.
  [[nodiscard]] training::TrainOptions options() const;
  /// The text of the checkpointing.
  [[nodiscard]] std::string checkpointing() const;
  /// The model's configuration, made ternary where that is asked for. Throws InputError.
  [[nodiscard]] nn::LlamaConfig model_config() const;
  [[nodiscard]] RunOptions run_options() const;
  [[nodiscard]] training::TokenData data(std::int64_t vocab_size) const;
  /// Throws InputError where an output is there already and is neither resumed nor replaced, and
  /// where it is an input or another output.
  void check_output() const;

 private:
  void read_config();
  [[nodiscard]] training::LossScaling loss_scaling() const;

  CommandLine line_;
  bool checkpoint_ = false;
  bool profile_ = false;
};

}  // namespace katt::impl
