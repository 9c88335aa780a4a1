#pragma once

#include <cstddef>
#include <filesystem>
#include <span>

namespace katt::io::impl {

/// A regular file mapped into memory, read only.
class MappedFile {
 public:
  /// Throws InputError naming the file; `expected` completes the message, e.g. "a safetensors
  /// file".
  MappedFile(const std::filesystem::path& path, const char* expected);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&&) = delete;

  [[nodiscard]] std::span<const std::byte> bytes() const { return bytes_; }

 private:
  std::span<const std::byte> bytes_;
};

}  // namespace katt::io::impl
