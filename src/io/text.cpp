#include "io/text.hpp"

#include <algorithm>

namespace katt::io::impl {

std::string printable(std::string_view text) {
  constexpr std::size_t longest = 160;
  std::string line(text.substr(0, longest));
  std::ranges::replace_if(
      line, [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7F; }, '?');
  return text.size() > longest ? line + "..." : line;
}

std::string shape_text(const std::vector<std::int64_t>& shape) {
  std::string text;
  for (const std::int64_t extent : shape) {
    text += (text.empty() ? "" : ", ") + (extent < 0 ? "any" : std::to_string(extent));
  }
  return "(" + text + (shape.size() == 1 ? ",)" : ")");
}

}  // namespace katt::io::impl
