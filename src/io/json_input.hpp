#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <variant>

#include <nlohmann/json_fwd.hpp>

namespace katt::io::impl {

/// Parses a JSON text from elsewhere. Throws InputError of one line, "NAME: …", for text that is
/// not JSON, a key given twice in one object, and objects or arrays nested deeper than `max_depth`
/// (before any memory is spent on them).
[[nodiscard]] nlohmann::json parse_json(const std::string& name, std::string_view text,
                                        int max_depth);

/// The content of a text file of at most `max_bytes`. Throws InputError naming the file;
/// `expected` completes the message where it is missing, e.g. "a Hugging Face configuration".
[[nodiscard]] std::string read_text(const std::filesystem::path& path, std::size_t max_bytes,
                                    const std::string& expected);

/// The value that a std::variant holds, as JSON.
template <class Json, class Variant>
[[nodiscard]] Json json_of(const Variant& value) {
  return std::visit([](const auto& held) { return Json(held); }, value);
}

}  // namespace katt::io::impl
