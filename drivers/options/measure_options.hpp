#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "drivers/options/command_line.hpp"
#include "drivers/runtime/commands.hpp"
#include "io/outputs.hpp"
#include "plan/sweep_file.hpp"

namespace katt::impl {

/// What the operator or sweep file of a command line asks for, before its options are read: they
/// are the axes of the operator. Throws InputError where the target is unknown; empty with --help
/// alone.
[[nodiscard]] bench::SweepRequest read_target(const Invocation& invocation);

/// Whether a request names the backend, or leaves it to a default that it is.
[[nodiscard]] bool asks_for(std::span<const bench::SweepEntry> entries, Backend backend);

/// The options of the commands that measure: the axes of every operator of a request, and the
/// settings of the measuring contract.
class MeasureOptions {
 public:
  /// Adds the options, and the target, to a command line. Lives as long as it.
  MeasureOptions(CommandLine& line, const bench::SweepRequest& request);

  /// Puts what was typed into the request. Throws InputError of one line.
  void apply(bench::SweepRequest& request) const;
  /// The device of --device, for a request that apply() has filled in. Throws InputError.
  [[nodiscard]] std::optional<int> device(const bench::SweepRequest& request) const;
  /// The files that these options name: the sweep file of the request, where it has one.
  [[nodiscard]] std::vector<io::NamedPath> inputs(const bench::SweepRequest& request) const;

 private:
  using Names = std::vector<std::string>;
  void add(Names& options, const std::string& key, const std::string& alias,
           const std::string& help, const char* group);

  CommandLine& line_;
  bool cold_ = false;
  Names axes_, settings_;
};

}  // namespace katt::impl
