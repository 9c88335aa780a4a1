#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "drivers/options/completion.hpp"
#include "drivers/runtime/commands.hpp"

namespace katt::impl {

/// Larger counts are typing errors.
inline constexpr std::int64_t largest_count = 1 << 24;

/// "--seq-q" of seq_q.
[[nodiscard]] std::string dashed(std::string name);

/// The options of one subcommand. Values are texts: what they mean is checked where it is known,
/// with the same messages as for a file. Options may be spelled with '_' for '-'. Every command has
/// --help, --verbose and --quiet (drivers/runtime/messages.hpp).
class CommandLine {
 public:
  /// `name` as in "katt sweep".
  CommandLine(const std::string& name, const std::string& description);
  ~CommandLine();
  CommandLine(const CommandLine&) = delete;
  CommandLine& operator=(const CommandLine&) = delete;

  /// `values`: those that a shell offers.
  void positional(const std::string& name, const std::string& help, Values values = {});
  /// Any number of positional arguments.
  void positionals(const std::string& name, std::vector<std::string>& given,
                   const std::string& help, Values values = {});
  /// `names` as in "-o,--output".
  void option(const std::string& names, const std::string& help,
              const std::string& group = "Options") {
    option(names, help, Values(), group);
  }
  void option(const std::string& names, const std::string& help, Values values,
              const std::string& group = "Options");
  void flag(const std::string& names, bool& value, const std::string& help);
  /// Calls f with the text of an option while the line is read, before an unknown option is refused.
  void when_given(const std::string& name, std::function<void(const std::string&)> f);

  /// Text below the list of options in the help.
  void footer(const std::string& text);
  /// A command that the help ends with, and what it does.
  void example(const std::string& command, const std::string& what);

  /// The first argument that is neither an option nor the value of one, as far as the options are
  /// known: the others take a value. Empty where there is none.
  [[nodiscard]] std::string first_positional(std::span<const std::string> arguments) const;

  /// Fills the values in and sets the volume of messages. Returns false when the user asked for
  /// help, or a shell for candidates, and they were printed. Throws InputError for all arguments
  /// other than the options above.
  [[nodiscard]] bool parse(const Invocation& invocation);

  /// The text of an option, by any of its names; empty where it was not given, or there is none of that name.
  [[nodiscard]] const std::optional<std::string>& text(const std::string& name) const;
  /// The text of an option that must be given and not empty. Throws InputError; `usage` ends its message.
  [[nodiscard]] const std::string& required(const std::string& name,
                                            const std::string& usage) const;
  /// The text as a count or a number, or what holds where the option was not given. Throws InputError.
  [[nodiscard]] std::int64_t count(const std::string& name, std::int64_t minimum,
                                   std::int64_t fallback) const;
  [[nodiscard]] double number(const std::string& name, double minimum, double maximum,
                              double fallback) const;
  /// The options that were given, but for some, with their texts: "--batch 2 --profile".
  [[nodiscard]] std::string given(const std::set<std::string>& but) const;
  /// Gives an option a text where it has none; false where there is no option of that name.
  bool set_default(const std::string& name, const std::string& text);
  /// An InputError's hint: the option that is nearest to a name; "" where none is.
  [[nodiscard]] std::string suggestion(const std::string& name) const;

 private:
  void refuse_missing_values(const std::vector<std::string>& arguments) const;
  void add(const std::string& names, const std::string& help, Values values,
           const std::string& group);
  void print_candidates(std::span<const std::string> words) const;

  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace katt::impl
