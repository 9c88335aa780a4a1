#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "drivers/options/command_line.hpp"
#include "ranks/groups.hpp"

namespace katt::impl {

/// More ranks are a typing error.
inline constexpr std::int64_t most_ranks = 1 << 16;

/// The ranks that hold a model together, and this rank's among the replicas of that model.
struct Replicas {
  ranks::Groups model{};
  ranks::Communicator others{};
};

/// The division of a model among ranks: the options of every command that mpirun may start on
/// several ranks.
struct LayoutOptions {
  std::optional<std::string> tensor, pipeline, context, zero;
  std::optional<std::string> sequence_parallel, context_variant, virtual_stages, micro_batches;
  ranks::Layout layout{};

  void add_to(CommandLine& line);
  /// The same options for inference: a command line of training is valid here, too.
  void add_inference_to(CommandLine& line);
  /// Reads the texts for all ranks of the program or, for a forecast, for `ranks` ranks; 0: as many
  /// as the options name when the program has one rank. Throws InputError.
  void resolve();
  void resolve_forecast(int ranks);
  /// The text of an option of this name; null when it is none of these.
  [[nodiscard]] std::optional<std::string>* text(const std::string& name);
  /// The groups of this rank. All ranks call it.
  [[nodiscard]] ranks::Groups groups() const;
  /// The groups of inference, which cuts no sequence: --tensor x --pipeline ranks hold a model
  /// together, and the replicas work independently. All ranks call it.
  [[nodiscard]] Replicas replicas() const;

 private:
  void add_model_to(CommandLine& line);
};

}  // namespace katt::impl
