#include "drivers/options/command_line.hpp"

#include <algorithm>
#include <iostream>

#include <CLI/CLI.hpp>

#include "core/error.hpp"
#include "core/text.hpp"

namespace katt::impl {
namespace {

/// "--tile_q=32" → "--tile-q=32".
std::string normalised(std::string argument) {
  if (!argument.starts_with("--")) return argument;
  const auto end =
      argument.begin() + static_cast<std::ptrdiff_t>(std::min(argument.find('='), argument.size()));
  std::replace(argument.begin(), end, '_', '-');
  return argument;
}

}  // namespace

struct CommandLine::Impl {
  CLI::App app;
  std::vector<std::string> known;  ///< option names, for suggestions
};

CommandLine::CommandLine(const std::string& name, const std::string& description)
    : impl_(std::make_unique<Impl>()) {
  impl_->app.name(name);
  impl_->app.description(description);
  impl_->app.get_formatter()->column_width(30);
}

CommandLine::~CommandLine() = default;

void CommandLine::positional(const std::string& name, std::optional<std::string>& value,
                             const std::string& help) {
  impl_->app
      .add_option_function<std::string>(
          name, [&value](const std::string& text) { value = text; }, help)
      ->type_name("");
}

void CommandLine::positionals(const std::string& name, std::vector<std::string>& values,
                              const std::string& help) {
  impl_->app.add_option(name, values, help)->type_name("");
}

void CommandLine::option(const std::string& names, std::optional<std::string>& value,
                         const std::string& help, const std::string& group) {
  impl_->app
      .add_option_function<std::string>(
          names, [&value](const std::string& text) { value = text; }, help)
      ->type_name("")
      ->group(group);
  for (const std::string& name : bench::split(names, ',')) impl_->known.push_back(name);
}

void CommandLine::flag(const std::string& names, bool& value, const std::string& help) {
  impl_->app.add_flag(names, value, help);
  for (const std::string& name : bench::split(names, ',')) impl_->known.push_back(name);
}

void CommandLine::footer(const std::string& text) { impl_->app.footer(text); }

bool CommandLine::parse(std::span<const std::string> arguments) {
  std::vector<std::string> reversed;  // CLI11 takes the last one first
  for (const std::string& argument : arguments) reversed.push_back(normalised(argument));
  std::reverse(reversed.begin(), reversed.end());
  try {
    impl_->app.parse(reversed);
  } catch (const CLI::CallForHelp&) {
    std::cout << impl_->app.help();
    return false;
  } catch (const CLI::ExtrasError&) {
    auto extras = impl_->app.remaining();
    const auto option = std::find_if(extras.begin(), extras.end(),
                                     [](const std::string& text) { return text.starts_with("-"); });
    if (option == extras.end()) {
      throw InputError(impl_->app.get_name() + " " + extras.front() +
                       ": unexpected argument; lists are written with commas, 64,128");
    }
    const std::string name = option->substr(0, option->find('='));
    const std::string near = bench::suggestion(name, impl_->known);
    throw InputError(name + ": unknown option; " +
                     (near.empty() ? impl_->app.get_name() + " --help lists what there is" : near));
  } catch (const CLI::ArgumentMismatch& error) {
    // what() begins with one of the option's names
    const std::string what = error.what();
    const std::string name = what.substr(0, what.find(':'));
    const CLI::Option* const option = impl_->app.get_option_no_throw(name);
    const bool given = option != nullptr && option->count() > 1;
    throw InputError(impl_->app.get_name() + ": " +
                     (option != nullptr ? option->get_name(false, true) : name) +
                     (given ? ": is given more than once, expected one value; lists are written "
                              "with commas"
                            : ": the value is missing"));
  } catch (const CLI::ParseError& error) {
    throw InputError(impl_->app.get_name() + ": " + error.what());
  }
  return true;
}

}  // namespace katt::impl
