#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace katt::io::impl {

/// Text fit for a terminal, on one line: control characters and bytes outside UTF-8 become "\x1b",
/// a character of C1 becomes its two bytes.
std::string escaped(std::string_view text);

/// Text of a foreign file made fit for a message: escaped, and not too long.
std::string printable(std::string_view text);

/// "(2, 3)"; an extent of -1 is printed as "any".
std::string shape_text(const std::vector<std::int64_t>& shape);

/// The product of the extents; it does not check that 64 bits hold it.
std::size_t element_count(const std::vector<std::int64_t>& shape);

}  // namespace katt::io::impl
