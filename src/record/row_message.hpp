#pragma once

#include "io/message.hpp"
#include "record/results.hpp"

/// Results and their origin as bytes, for another process of the same program.
namespace katt::bench {

/// Adds a value to a message, and takes it out again. Instantiated for std::vector<RowResult>, io::Attributes,
/// std::vector<io::CeilingRow> and std::vector<std::uint64_t>.
template <class T>
void add(io::impl::MessageWriter& message, const T& value);
template <class T>
[[nodiscard]] T take(io::impl::MessageReader& message);

}  // namespace katt::bench
