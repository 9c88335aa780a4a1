#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "dist/groups.hpp"
#include "drivers/command_line.hpp"

namespace katt::impl {

/// More ranks are a typing error.
inline constexpr std::int64_t most_ranks = 1 << 16;

/// How several ranks share a model: the options of every command that mpirun may start on many.
struct LayoutOptions {
  std::optional<std::string> tensor, pipeline, context, zero;
  std::optional<std::string> sequence_parallel, context_variant, virtual_stages;
  dist::Layout layout{};

  void add_to(CommandLine& line);
  /// The options of inference.
  void add_model_to(CommandLine& line);
  /// Reads the texts: of all ranks of the program, or, for a forecast, of so many; 0: as many as the
  /// options name where the program has one rank. Throws InputError.
  void resolve();
  void resolve_forecast(int ranks);
  /// Throws InputError where ranks would be left.
  void expect_model_alone(const std::string& command) const;
  /// The text of an option of this name; null where it is none of these.
  [[nodiscard]] std::optional<std::string>* text(const std::string& name);
  /// The groups of this rank. All ranks call it.
  [[nodiscard]] dist::Groups groups() const;
};

}  // namespace katt::impl
