#pragma once

#include <algorithm>
#include <string>

#include <nlohmann/json.hpp>

namespace katt::test {

/// The fault of a message that refuses an input; empty for a right one: one line of UTF-8 of at
/// most 4000 bytes, without control characters.
inline std::string complaint_about_line(const std::string& line) {
  if (line.empty()) return "without a word";
  const auto is_odd = [](char c) { return (c >= 0 && c < 0x20) || c == 0x7F; };
  if (std::ranges::any_of(line, is_odd)) return "with control characters in the line";
  try {
    (void)nlohmann::json(line).dump();
  } catch (const nlohmann::json::exception&) {
    return "with a line that is no UTF-8";
  }
  return line.size() > 4000 ? "with a line of more than 4000 bytes" : "";
}

}  // namespace katt::test
