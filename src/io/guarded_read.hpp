#pragma once

#include <functional>
#include <optional>
#include <string>

namespace katt::io::impl {

/// The bytes that `read` returns, computed in a child process of its own; nothing where it returns
/// nothing, crashes, or takes longer than `limit_s` seconds. For the two things that HDF5 1.10 does
/// not do safely on a damaged file, where every other corruption ends in an error code: in the
/// global heap, where variable-length text lies, it follows corrupt sizes and indices out of its
/// buffers or without end; and a compressed chunk that unpacks to less than its size is read past
/// its end.
[[nodiscard]] std::optional<std::string> read_guarded(
    const std::function<std::optional<std::string>()>& read, unsigned limit_s);

}  // namespace katt::io::impl
