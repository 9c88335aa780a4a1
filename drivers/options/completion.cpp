#include "drivers/options/completion.hpp"

#include <algorithm>
#include <utility>

#include "core/text.hpp"
#include "plan/operator_axes.hpp"

namespace katt::impl {
namespace {

const CompletedOption* find(const CompletedCommand& command, const std::string& name) {
  const auto found = std::ranges::find_if(command.options, [&](const CompletedOption& option) {
    return std::ranges::find(option.names, name) != option.names.end();
  });
  return found == command.options.end() ? nullptr : &*found;
}

/// The values that begin as `typed` does. The items of a list before its last one stay as they are,
/// and are not offered again.
std::vector<std::string> values_for(const Values& values, const std::string& typed) {
  const std::size_t comma = values.is_list ? typed.rfind(',') : std::string::npos;
  const std::size_t begin = comma == std::string::npos ? 0 : comma + 1;
  const std::string before = typed.substr(0, begin);
  const std::string current = typed.substr(begin);
  const std::vector<std::string> given = bench::split(before, ',');
  std::vector<std::string> found;
  for (const std::string& word : values.words ? values.words() : std::vector<std::string>()) {
    if (word.starts_with(current) && std::ranges::find(given, word) == given.end()) {
      found.push_back(before + word);
    }
  }
  if (!values.endings.empty()) {
    found.push_back(":files" +
                    (values.endings.front().empty() ? "" : " " + bench::join(values.endings, " ")));
  } else if (values.folders) {
    found.emplace_back(":folders");
  }
  return found;
}

/// The names of options that begin as `typed` does; short ones where it is as short.
std::vector<std::string> names_for(const CompletedCommand& command, const std::string& typed) {
  std::vector<std::string> found;
  for (const CompletedOption& option : command.options) {
    for (const std::string& name : option.names) {
      const bool is_short = !name.starts_with("--");
      if (name.starts_with(typed) && (!is_short || typed == "-" || typed == name)) {
        found.push_back(name);
      }
    }
  }
  return found;
}

}  // namespace

Values one_of(std::vector<std::string> words) {
  return {.words = [words = std::move(words)] { return words; }};
}

Values some_of(std::vector<std::string> words) {
  Values values = one_of(std::move(words));
  values.is_list = true;
  return values;
}

Values files(std::vector<std::string> endings) { return {.endings = std::move(endings)}; }

Values folders() { return {.folders = true}; }

Values backend_values() { return {.words = bench::built_backends}; }

Values dtype_values() { return {.words = bench::dtype_names}; }

Values operator_values(const bench::Registry& registry) {
  return {.words = [&registry] {
    std::vector<std::string> names;
    for (const bench::Operator* op : registry.all()) names.push_back(op->name());
    return names;
  }};
}

std::vector<std::string> candidates(const CompletedCommand& command,
                                    std::span<const std::string> words) {
  if (words.empty()) return {};
  const std::string& typed = words.back();
  const CompletedOption* open = nullptr;  // the option whose value comes next
  std::size_t place = 0;
  for (const std::string& word : words.first(words.size() - 1)) {
    if (std::exchange(open, nullptr) != nullptr) continue;
    if (!word.starts_with("-")) {
      ++place;
    } else if (word.find('=') == std::string::npos) {
      const CompletedOption* const option = find(command, word);
      open = option != nullptr && option->takes_value ? option : nullptr;
    }
  }
  if (open != nullptr) return values_for(open->values, typed);
  if (const auto equals = typed.find('='); typed.starts_with("-") && equals != std::string::npos) {
    const CompletedOption* const option = find(command, typed.substr(0, equals));
    return option == nullptr ? std::vector<std::string>()
                             : values_for(option->values, typed.substr(equals + 1));
  }
  if (typed.starts_with("-")) return names_for(command, typed);
  const std::size_t count = command.positionals.size();
  if (command.repeats && count > 0) place = std::min(place, count - 1);
  if (place < count) return values_for(command.positionals[place], typed);
  return typed.empty() ? names_for(command, "--") : std::vector<std::string>();
}

}  // namespace katt::impl
