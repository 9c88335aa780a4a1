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

/// True when a request names the backend, or the backend is its default.
[[nodiscard]] bool asks_for(std::span<const bench::SweepEntry> entries, Backend backend);

/// The options of the commands that measure: the axes of every operator of a request, and the
/// settings of the measuring contract.
class MeasureOptions {
 public:
  /// Adds the options and the target to a command line that has all its flags, and must live as
  /// long as it. The axes of the operator are options, so it reads the operator or the sweep file
  /// into `request` first: nothing with --help alone, or where a shell asks before there is one.
  /// Throws InputError when the target is unknown.
  MeasureOptions(CommandLine& line, const Invocation& invocation, bench::SweepRequest& request);

  /// Puts the typed values into the request. Throws InputError of one line.
  void apply(bench::SweepRequest& request) const;
  /// The device of --device, for a request that apply() has filled in. Throws InputError.
  [[nodiscard]] std::optional<int> device(const bench::SweepRequest& request) const;
  /// The files that these options name: the sweep file of the request, candidates, programs.
  [[nodiscard]] std::vector<io::NamedPath> inputs(const bench::SweepRequest& request) const;

 private:
  using Names = std::vector<std::string>;
  void add(Names& options, const std::string& key, const std::string& alias,
           const std::string& help, const char* group, Values values = {});

  CommandLine& line_;
  bool cold_ = false, untrusted_ = false;
  Names axes_, settings_;
};

}  // namespace katt::impl
