#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace katt::io::impl {

/// Text of a foreign file made fit for a one-line message: UTF-8 without control characters, and
/// not too long.
std::string printable(std::string_view text);

/// "(2, 3)"; an extent of -1 is printed as "any".
std::string shape_text(const std::vector<std::int64_t>& shape);

}  // namespace katt::io::impl
