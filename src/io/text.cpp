#include "io/text.hpp"

#include <algorithm>

namespace katt::io::impl {

namespace {

/// Bytes of the UTF-8 character that a text begins with; 0 where it begins with none (RFC 3629).
std::size_t character_bytes(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned first = byte(0);
  if (first < 0x80) return 1;
  const std::size_t bytes = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : 2;
  if (first < 0xC2 || first > 0xF4 || text.size() < bytes) return 0;
  for (std::size_t i = 1; i < bytes; ++i) {
    if ((byte(i) & 0xC0U) != 0x80) return 0;
  }
  // too long a form, a surrogate, or beyond U+10FFFF
  const unsigned second = byte(1);
  const bool is_odd = (first == 0xE0 && second < 0xA0) || (first == 0xED && second >= 0xA0) ||
                      (first == 0xF0 && second < 0x90) || (first == 0xF4 && second >= 0x90);
  return is_odd ? 0 : bytes;
}

}  // namespace

std::string printable(std::string_view text) {
  constexpr std::size_t longest = 160;
  std::string line;
  for (std::size_t at = 0; at < text.size();) {
    if (line.size() >= longest) return line + "...";
    const std::size_t bytes = character_bytes(text.substr(at));
    const auto first = static_cast<unsigned char>(text[at]);
    if (bytes == 0 || first < 0x20 || first == 0x7F) line += '?';
    else line += text.substr(at, bytes);
    at += std::max<std::size_t>(bytes, 1);
  }
  return line;
}

std::string shape_text(const std::vector<std::int64_t>& shape) {
  std::string text;
  for (const std::int64_t extent : shape) {
    text += (text.empty() ? "" : ", ") + (extent < 0 ? "any" : std::to_string(extent));
  }
  return "(" + text + (shape.size() == 1 ? ",)" : ")");
}

}  // namespace katt::io::impl
