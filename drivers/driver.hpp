#pragma once

#include "op/registry.hpp"

namespace katt {

/// The program `katt` with its built-in operators: parses the arguments, runs the subcommand, and
/// returns the exit status (0 done, 1 a case failed, 2 bad usage or input, 130 interrupted). A
/// user's own program registers variants first and then calls this.
int driver_main(int argc, char** argv);

/// The same with the caller's registry, for further operators.
int driver_main(int argc, char** argv, const bench::Registry& registry);

}  // namespace katt
