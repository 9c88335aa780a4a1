#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "io/hdf5/hdf5_handle.hpp"

namespace katt::io::impl {

/// Returns `result`. When it is negative, HDF5's sign of failure, throws std::runtime_error "cannot
/// WHAT: REASON".
hid_t require(hid_t result, const std::string& what);

/// An HDF5 file in memory; this program writes its bytes (io/atomic_file.hpp). If HDF5 wrote the
/// file itself and failed, the file would stay open in the library, which crashes on it when the
/// program ends.
class MemoryFile {
 public:
  /// An empty file. Its format is that of HDF5 1.8, which every reader knows.
  MemoryFile();
  /// A copy of a file on disk. Throws std::runtime_error.
  explicit MemoryFile(const std::filesystem::path& path);

  [[nodiscard]] hid_t get() const { return file_.get(); }
  /// Closes the file. Its bytes live as long as this object.
  [[nodiscard]] std::span<const std::byte> close();

 private:
  /// The memory that free() frees.
  struct Free {
    void operator()(void* memory) const { std::free(memory); }
  };
  std::unique_ptr<std::unique_ptr<void, Free>> bytes_;  ///< bytes of the closed file, at a fixed
                                                        ///< address
  Handle file_;
};

/// The group of that path, created with those above it where missing.
Handle open_group(hid_t file, const std::string& path);

/// Creates a dataset of `type` and writes `data`. Without dimensions it is a scalar.
void write_dataset(hid_t group, const std::string& name, hid_t type,
                   const std::vector<std::int64_t>& shape, const void* data);

/// Makes, or replaces, a scalar attribute: text (variable-length UTF-8), int64 or float64.
void write_attribute(hid_t object, const std::string& name,
                     const std::variant<std::string, std::int64_t, double>& value);

/// A fixed-length, null-padded UTF-8 type of `width` bytes.
Handle text_type(std::size_t width);

/// text in `width` bytes: padded with zeros, or cut before the first character that does not fit.
void copy_text(const std::string& text, char* out, std::size_t width);

}  // namespace katt::io::impl
