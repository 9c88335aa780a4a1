#include "drivers/options/prompts.hpp"

#include <sstream>

#include "core/error.hpp"
#include "drivers/options/model_options.hpp"
#include "io/json_input.hpp"

namespace katt::impl {
namespace {

constexpr std::size_t max_file_bytes = std::size_t{1} << 30;

}  // namespace

std::string line_of(const std::filesystem::path& path, std::size_t prompt) {
  return path.string() + ":" + std::to_string(prompt + 1);
}

Prompts read_prompts(const std::filesystem::path& path) {
  std::istringstream file(io::impl::read_text(path, max_file_bytes, "a file of prompts"));
  Prompts prompts;
  for (std::string line; std::getline(file, line);) {
    const std::string where = line_of(path, prompts.size());
    if (line.ends_with('\r')) line.pop_back();  // line ends of Windows
    if (line.find_first_not_of(" \t\r") == std::string::npos) {
      throw InputError(where + ": holds nothing, expected token ids: 1,2,3");
    }
    prompts.push_back(parse_tokens(line, where));
  }
  if (prompts.empty()) {
    throw InputError(path.string() + ": holds nothing, expected a prompt a line: 1,2,3");
  }
  return prompts;
}

void check_vocabulary(std::span<const std::int64_t> tokens, const std::string& where,
                      std::int64_t vocab_size) {
  for (const std::int64_t token : tokens) {
    if (token < vocab_size) continue;
    throw InputError(where + ": token " + std::to_string(token) + ": expected 0 to " +
                     std::to_string(vocab_size - 1) + ", the vocabulary of the model");
  }
}

}  // namespace katt::impl
