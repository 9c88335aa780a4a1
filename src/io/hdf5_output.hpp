#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <variant>
#include <vector>

#include "io/hdf5_handle.hpp"

namespace katt::io::impl {

/// Returns `result` unless it is HDF5's sign of failure, a negative number: then throws
/// std::runtime_error "cannot WHAT: REASON".
hid_t require(hid_t result, const std::string& what);

/// Creates, or empties, a file for writing. Its format is that of HDF5 1.8, which every reader
/// knows.
Handle create_output(const std::filesystem::path& path);

/// Opens an existing file for changing.
Handle open_output(const std::filesystem::path& path);

/// Closes a file that was written. Throws std::runtime_error when its last bytes cannot be written.
void close_output(Handle file, const std::filesystem::path& path);

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
