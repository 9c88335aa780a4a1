#include "drivers/options/command_line.hpp"

#include <algorithm>
#include <cstdio>
#include <iostream>
#include <list>
#include <map>
#include <utility>

#include <CLI/CLI.hpp>

#include "core/error.hpp"
#include "core/text.hpp"
#include "drivers/runtime/messages.hpp"
#include "plan/axes.hpp"

namespace katt::impl {
namespace {

/// "--tile_q=32" → "--tile-q=32"; "-o=FILE" → "-oFILE": CLI11 would take "=FILE" for the value.
std::string normalised(std::string argument) {
  if (!argument.starts_with("--")) {
    const bool has_value =
        argument.size() > 3 && argument[0] == '-' && argument[1] != '=' && argument[2] == '=';
    return has_value ? argument.erase(2, 1) : argument;
  }
  const auto end =
      argument.begin() + static_cast<std::ptrdiff_t>(std::min(argument.find('='), argument.size()));
  std::replace(argument.begin(), end, '_', '-');
  return argument;
}

}  // namespace

std::string dashed(std::string name) {
  std::ranges::replace(name, '_', '-');
  return "--" + name;
}

struct CommandLine::Impl {
  CLI::App app;
  std::vector<std::string> known;  ///< option names, for suggestions
  std::list<std::optional<std::string>> values;
  std::map<std::string, std::optional<std::string>*> by_name;
  std::map<std::string, const bool*> flags;
  std::map<const CLI::Option*, Values> completed;
  std::string footer, examples;
  bool verbose = false, quiet = false;
};

CommandLine::CommandLine(const std::string& name, const std::string& description)
    : impl_(std::make_unique<Impl>()) {
  impl_->app.name(name);
  impl_->app.description(description);
  impl_->app.get_formatter()->column_width(30);
  flag("-v,--verbose", impl_->verbose, "say more: what was resolved, and every variant that ran");
  flag("-q,--quiet", impl_->quiet, "say nothing but errors and results");
}

CommandLine::~CommandLine() = default;

void CommandLine::add(const std::string& names, const std::string& help, Values values,
                      const std::string& group) {
  std::optional<std::string>& value = impl_->values.emplace_back();
  for (const std::string& name : bench::split(names, ',')) impl_->by_name[name] = &value;
  CLI::Option* const added = impl_->app.add_option_function<std::string>(
      names,
      [&value, name = names.substr(0, names.find(','))](const std::string& text) {
        if (text.empty()) throw InputError(name + ": is empty, expected a value");
        value = text;
      },
      help);
  added->type_name("")->group(group);
  impl_->completed[added] = std::move(values);
}

void CommandLine::positional(const std::string& name, const std::string& help, Values values) {
  add(name, help, std::move(values), "");
}

void CommandLine::positionals(const std::string& name, std::vector<std::string>& given,
                              const std::string& help, Values values) {
  CLI::Option* const added = impl_->app.add_option(name, given, help);
  added->type_name("");
  impl_->completed[added] = std::move(values);
}

void CommandLine::option(const std::string& names, const std::string& help, Values values,
                         const std::string& group) {
  add(names, help, std::move(values), group);
  for (const std::string& name : bench::split(names, ',')) impl_->known.push_back(name);
}

void CommandLine::flag(const std::string& names, bool& value, const std::string& help) {
  impl_->app.add_flag(names, value, help);
  for (const std::string& name : bench::split(names, ',')) {
    impl_->known.push_back(name);
    impl_->flags[name] = &value;
  }
}

void CommandLine::when_given(const std::string& name, std::function<void(const std::string&)> f) {
  impl_->app.get_option(name)->each(std::move(f));
}

void CommandLine::footer(const std::string& text) { impl_->footer += text + "\n"; }

void CommandLine::example(const std::string& command, const std::string& what) {
  impl_->examples += "  " + command + "\n      " + what + "\n";
}

std::string CommandLine::first_positional(std::span<const std::string> arguments) const {
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const std::string argument = normalised(arguments[i]);
    if (!argument.starts_with("-")) return argument;
    if (argument.find('=') != std::string::npos) continue;
    if (!argument.starts_with("--") && argument.size() > 2) continue;  // -oFILE
    const CLI::Option* const known = impl_->app.get_option_no_throw(argument);
    const bool is_flag = known != nullptr && known->get_items_expected_max() == 0;
    if (!is_flag) ++i;
  }
  return {};
}

void CommandLine::print_candidates(std::span<const std::string> words) const {
  CompletedCommand command;
  for (const CLI::Option* option : std::as_const(impl_->app).get_options()) {
    const auto found = impl_->completed.find(option);
    Values values = found == impl_->completed.end() ? Values() : found->second;
    if (option->get_positional()) {
      command.repeats = option->get_items_expected_max() > 1;
      command.positionals.push_back(std::move(values));
    } else if (!option->get_group().empty()) {  // hidden ones have no group
      CompletedOption& added = command.options.emplace_back();
      for (const std::string& name : option->get_snames()) added.names.push_back("-" + name);
      for (const std::string& name : option->get_lnames()) added.names.push_back("--" + name);
      added.takes_value = option->get_items_expected_max() > 0;
      added.values = std::move(values);
    }
  }
  std::vector<std::string> normal;
  for (const std::string& word : words) normal.push_back(normalised(word));
  for (const std::string& one : candidates(command, normal)) std::printf("%s\n", one.c_str());
}

/// CLI11 would take the next argument for a value that is missing: of `--out=`, and of `--out --json`.
void CommandLine::refuse_missing_values(const std::vector<std::string>& arguments) const {
  const auto option_of = [&](const std::string& argument) -> const CLI::Option* {
    const std::string name = argument.substr(0, argument.find('='));
    return name.starts_with("-") ? impl_->app.get_option_no_throw(name) : nullptr;
  };
  for (std::size_t i = 0; i < arguments.size() && arguments[i] != "--"; ++i) {
    const CLI::Option* const option = option_of(arguments[i]);
    if (option == nullptr || option->get_items_expected_max() == 0) continue;
    const auto equals = arguments[i].find('=');
    const bool is_empty = equals == std::string::npos
                              ? i + 1 < arguments.size() && option_of(arguments[i + 1]) != nullptr
                              : equals + 1 == arguments[i].size();
    if (is_empty) {
      throw InputError(impl_->app.get_name() + ": " + option->get_name(false, true) +
                       ": the value is missing");
    }
    if (equals == std::string::npos) ++i;
  }
}

bool CommandLine::parse(const Invocation& invocation) {
  if (invocation.completes) {
    print_candidates(invocation.arguments);
    return false;
  }
  std::vector<std::string> reversed;  // CLI11 takes the last one first
  for (const std::string& argument : invocation.arguments) {
    reversed.push_back(normalised(argument));
  }
  refuse_missing_values(reversed);
  std::reverse(reversed.begin(), reversed.end());
  try {
    impl_->app.parse(reversed);
  } catch (const CLI::CallForHelp&) {
    impl_->app.footer(impl_->footer + (impl_->footer.empty() ? "" : "\n") + "Examples:\n" +
                      impl_->examples);
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
    const std::string near = suggestion(name);
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
  if (impl_->verbose && impl_->quiet) {
    throw InputError("--verbose and --quiet exclude each other, expected one of them");
  }
  set_volume(impl_->verbose ? Volume::verbose : impl_->quiet ? Volume::quiet : Volume::usual);
  return true;
}

const std::optional<std::string>& CommandLine::text(const std::string& name) const {
  static const std::optional<std::string> none;
  const auto found = impl_->by_name.find(name);
  return found == impl_->by_name.end() ? none : *found->second;
}

const std::string& CommandLine::required(const std::string& name, const std::string& usage) const {
  const std::optional<std::string>& given = text(name);
  if (!given) throw InputError(name + " is missing: " + usage);
  return *given;
}

std::int64_t CommandLine::count(const std::string& name, std::int64_t minimum,
                                std::int64_t fallback) const {
  return text(name) ? bench::parse_count(name, *text(name), minimum, largest_count) : fallback;
}

double CommandLine::number(const std::string& name, double minimum, double maximum,
                           double fallback) const {
  return text(name) ? bench::parse_number(name, *text(name), minimum, maximum) : fallback;
}

std::string CommandLine::given(const std::set<std::string>& but) const {
  std::string text;
  const auto add = [&](const std::string& name, const std::string& value) {
    if (!name.starts_with("--") || but.contains(name)) return;
    text += (text.empty() ? "" : " ") + name + (value.empty() ? "" : " " + value);
  };
  for (const auto& [name, value] : impl_->by_name) {
    if (*value) add(name, value->value());
  }
  for (const auto& [name, value] : impl_->flags) {
    if (*value) add(name, "");
  }
  return text;
}

bool CommandLine::set_default(const std::string& name, const std::string& text) {
  const auto found = impl_->by_name.find(name);
  if (found == impl_->by_name.end()) return false;
  if (!*found->second) *found->second = text;
  return true;
}

std::string CommandLine::suggestion(const std::string& name) const {
  return bench::suggestion(name, impl_->known);
}

}  // namespace katt::impl
