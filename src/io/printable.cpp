#include "io/printable.hpp"

#include <algorithm>

namespace katt::io::impl {

namespace {

/// Bytes of the UTF-8 character that a text begins with; 0 when it begins with none (RFC 3629).
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

/// A character of the sets C0 and C1 of ISO 6429, which terminals obey.
bool is_control(std::string_view character) {
  const auto first = static_cast<unsigned char>(character[0]);
  return first < 0x20 || first == 0x7F ||
         (first == 0xC2 && static_cast<unsigned char>(character[1]) < 0xA0);
}

std::string escaped_up_to(std::string_view text, std::size_t longest) {
  constexpr std::string_view digits = "0123456789abcdef";
  std::string line;
  while (!text.empty()) {
    if (line.size() >= longest) return line + "...";
    const std::size_t bytes = character_bytes(text);
    const std::string_view character = text.substr(0, std::max<std::size_t>(bytes, 1));
    if (bytes > 0 && !is_control(character)) {
      line += character;
    } else {
      for (const char byte : character) {
        const auto value = static_cast<unsigned char>(byte);
        line += {'\\', 'x', digits[value / 16], digits[value % 16]};
      }
    }
    text.remove_prefix(character.size());
  }
  return line;
}

}  // namespace

std::string escaped(std::string_view text) { return escaped_up_to(text, text.size() * 4); }

std::string printable(std::string_view text) { return escaped_up_to(text, 160); }

std::string shape_text(const std::vector<std::int64_t>& shape) {
  std::string text;
  for (const std::int64_t extent : shape) {
    text += (text.empty() ? "" : ", ") + (extent < 0 ? "any" : std::to_string(extent));
  }
  return "(" + text + (shape.size() == 1 ? ",)" : ")");
}

std::size_t element_count(const std::vector<std::int64_t>& shape) {
  std::size_t count = 1;
  for (const std::int64_t extent : shape) count *= static_cast<std::size_t>(extent);
  return count;
}

}  // namespace katt::io::impl
