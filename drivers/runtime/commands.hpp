#pragma once

#include <span>
#include <string>

#include "op/registry.hpp"

namespace katt::impl {

/// The arguments of a subcommand.
struct Invocation {
  const bench::Registry& registry;
  std::span<const std::string> arguments;  ///< after the subcommand's name
  std::string command{};                   ///< the whole command line, for the provenance
  bool completes = false;  ///< a shell asks what may stand for the last argument: nothing runs
};

/// The subcommands. Each returns the exit status; InputError means 2.
int sweep_command(const Invocation& invocation);
int merge_command(const Invocation& invocation);
int run_command(const Invocation& invocation);
int referee_command(const Invocation& invocation);
int tune_command(const Invocation& invocation);
int replay_command(const Invocation& invocation);  ///< `katt tune --replay`
int info_command(const Invocation& invocation);
int completion_command(const Invocation& invocation);
int logits_command(const Invocation& invocation);
int generate_command(const Invocation& invocation);
int train_command(const Invocation& invocation);
int memory_command(const Invocation& invocation);

}  // namespace katt::impl
