#include "io/json_input.hpp"

#include <fstream>
#include <set>
#include <system_error>
#include <vector>

#include <nlohmann/json.hpp>

#include "core/error.hpp"
#include "io/printable.hpp"

namespace katt::io::impl {

nlohmann::json parse_json(const std::string& name, std::string_view text, int max_depth) {
  using Event = nlohmann::json::parse_event_t;
  std::vector<std::set<std::string>> keys;  // keys of the open objects
  const auto refuse = [&](const std::string& message) { throw InputError(name + ": " + message); };
  // The parser itself keeps no stack frame per level, so depth costs only memory.
  const auto watch = [&](int depth, Event event, nlohmann::json& value) {
    switch (event) {
      case Event::object_start: keys.emplace_back(); [[fallthrough]];
      case Event::array_start:
        if (depth >= max_depth) {
          refuse("is JSON nested deeper than the expected " + std::to_string(max_depth) +
                 " levels");
        }
        break;
      case Event::key:
        if (!keys.back().insert(value.get<std::string>()).second) {
          refuse("holds the key \"" + printable(value.get<std::string>()) +
                 "\" twice, expected it once");
        }
        break;
      case Event::object_end: keys.pop_back(); break;
      default: break;
    }
    return true;
  };
  try {
    return nlohmann::json::parse(text.begin(), text.end(), watch);
  } catch (const nlohmann::json::exception& error) {
    // "[json.exception.parse_error.101] parse error at line 1, column 2: …"
    const std::string what = error.what();
    refuse("is not valid JSON: " + printable(what.substr(what.find("] ") + 2)));
  }
  return {};
}

std::string read_text(const std::filesystem::path& path, std::size_t max_bytes,
                      const std::string& expected) {
  namespace fs = std::filesystem;
  std::error_code error;
  const auto refuse = [&](const std::string& message) {
    throw InputError(path.string() + ": " + message);
  };
  if (!fs::exists(path, error)) refuse("no such file, expected " + expected);
  if (!fs::is_regular_file(path, error)) refuse("is not a regular file, expected " + expected);
  const auto bytes = fs::file_size(path, error);
  if (error || bytes > max_bytes) {
    refuse("holds " + std::to_string(bytes) + " bytes, expected " + expected + " of at most " +
           std::to_string(max_bytes));
  }
  std::ifstream in(path, std::ios::binary);
  std::string text(bytes, '\0');
  if (!in.read(text.data(), static_cast<std::streamsize>(bytes)) && bytes > 0) {
    refuse("cannot be read, expected " + expected);
  }
  return text;
}

}  // namespace katt::io::impl
