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

/// How several ranks share a model: the options of every command that mpirun may start on many.
struct LayoutOptions {
  ranks::Layout layout{};

  void add_to(CommandLine& line);
  /// The same, as inference takes them: a command line may be that of a training.
  void add_inference_to(CommandLine& line);
  /// Reads the texts: of all ranks of the program, or, for a forecast, of so many; 0: as many as the
  /// options name where the program has one rank. Throws InputError.
  void resolve(const CommandLine& line) { resolve_forecast(line, ranks::world().size()); }
  void resolve_forecast(const CommandLine& line, int ranks);
  /// The groups of this rank. All ranks call it.
  [[nodiscard]] ranks::Groups groups() const;
  /// Those of inference, which cuts no sequence: --tensor x --pipeline ranks hold a model together,
  /// and as many such replicas as there are work apart. All ranks call it.
  [[nodiscard]] Replicas replicas() const;

 private:
  void add_model_to(CommandLine& line);
};

}  // namespace katt::impl
