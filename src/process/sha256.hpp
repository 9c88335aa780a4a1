#pragma once

#include <filesystem>
#include <span>
#include <string>

namespace katt::bench {

/// The SHA-256 of bytes as 64 hexadecimal digits (FIPS 180-4).
[[nodiscard]] std::string sha256(std::span<const unsigned char> bytes);

/// The SHA-256 of a file's contents. Throws std::runtime_error when it cannot be read.
[[nodiscard]] std::string sha256_of_file(const std::filesystem::path& path);

}  // namespace katt::bench
