#pragma once

#include "io/message.hpp"
#include "record/results.hpp"

/// Results and their origin as bytes, for another process of the same program.
namespace katt::bench {

void add(io::impl::MessageWriter& message, const RowResult& row);
[[nodiscard]] RowResult take_row(io::impl::MessageReader& message);

void add(io::impl::MessageWriter& message, const io::Attributes& attributes);
[[nodiscard]] io::Attributes take_attributes(io::impl::MessageReader& message);

void add(io::impl::MessageWriter& message, const std::vector<io::CeilingRow>& ceilings);
[[nodiscard]] std::vector<io::CeilingRow> take_ceilings(io::impl::MessageReader& message);

}  // namespace katt::bench
