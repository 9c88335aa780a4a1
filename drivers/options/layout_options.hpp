#pragma once

#include <cstdint>

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

/// Throws InputError for blocks of --checkpoint-blocks that several ranks cannot choose together.
void check_blocks(const std::string& blocks, int ranks);

/// The division of a model among ranks: the options of every command that mpirun may start on
/// several ranks.
struct LayoutOptions {
  ranks::Layout layout{};

  void add_to(CommandLine& line);
  /// The same options for inference: a command line of training is valid here, too.
  void add_inference_to(CommandLine& line);
  /// Reads the texts: of all ranks of the program, whose options must be the same, or, for a
  /// forecast, of so many; 0: as many as the options name where the program has one rank. Throws
  /// InputError.
  void resolve(const CommandLine& line);
  void resolve_forecast(const CommandLine& line, int ranks);
  /// The groups of this rank. All ranks call it.
  [[nodiscard]] ranks::Groups groups() const;
  /// The groups of inference, which cuts no sequence: --tensor x --pipeline ranks hold a model
  /// together, and the replicas work independently. All ranks call it.
  [[nodiscard]] Replicas replicas() const;

 private:
  void add_model_to(CommandLine& line);
};

}  // namespace katt::impl
