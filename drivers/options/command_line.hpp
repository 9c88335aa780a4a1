#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace katt::impl {

/// The options of one subcommand. Values stay text: the code that knows their meaning checks them,
/// with the same messages as for a file. Options may be spelled with '_' for '-'.
class CommandLine {
 public:
  /// `name` as in "katt sweep".
  CommandLine(const std::string& name, const std::string& description);
  ~CommandLine();
  CommandLine(const CommandLine&) = delete;
  CommandLine& operator=(const CommandLine&) = delete;

  void positional(const std::string& name, std::optional<std::string>& value,
                  const std::string& help);
  /// Any number of positional arguments.
  void positionals(const std::string& name, std::vector<std::string>& values,
                   const std::string& help);
  /// `names` as in "-o,--output". The value stays empty when the option is missing.
  void option(const std::string& names, std::optional<std::string>& value, const std::string& help,
              const std::string& group = "Options");
  void flag(const std::string& names, bool& value, const std::string& help);

  /// Text below the list of options in the help.
  void footer(const std::string& text);

  /// Fills the values in. Returns false when the user asked for help, and it was printed. Throws
  /// InputError for all arguments other than the options above.
  [[nodiscard]] bool parse(std::span<const std::string> arguments);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace katt::impl
