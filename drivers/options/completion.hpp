#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "op/registry.hpp"

/// Words that a shell offers while a command line is typed (drivers/completion.cpp).
namespace katt::impl {

/// The values of an option or of a positional argument.
struct Values {
  std::function<std::vector<std::string>()> words{};  ///< computed when a shell asks
  std::vector<std::string> endings{};                 ///< of files, ".h5"; "" means every file
  bool folders = false;                               ///< folders are values
  bool is_list = false;                               ///< several words, with commas between them
};

[[nodiscard]] Values one_of(std::vector<std::string> words);
[[nodiscard]] Values some_of(std::vector<std::string> words);
[[nodiscard]] Values files(std::vector<std::string> endings);
[[nodiscard]] Values folders();
[[nodiscard]] Values backend_values();  ///< the backends of this build
[[nodiscard]] Values dtype_values();
[[nodiscard]] Values operator_values(const bench::Registry& registry);

/// An option as completion sees it.
struct CompletedOption {
  std::vector<std::string> names{};  ///< "-o", "--output"
  bool takes_value = true;
  Values values{};
};

/// The options and positional arguments of a command; the last of these repeats if `repeats`.
struct CompletedCommand {
  std::vector<CompletedOption> options{};
  std::vector<Values> positionals{};
  bool repeats = false;
};

/// The candidates for the last of the words, which follow the command's name. Files are for the
/// shell to find: ":files .toml .h5" asks for files with these endings, ":files" for any, and
/// ":folders" for folders. The part of "--option=value" before the value is not repeated.
[[nodiscard]] std::vector<std::string> candidates(const CompletedCommand& command,
                                                  std::span<const std::string> words);

}  // namespace katt::impl
