#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "io/hdf5_handle.hpp"

namespace katt::io::impl {

/// Text of a foreign file made fit for a one-line message: no control characters, not too long.
std::string printable(std::string_view text);

/// "(2, 3)"; an extent of -1 is printed as "any".
std::string shape_text(const std::vector<std::int64_t>& shape);

/// What a type holds, for messages: "float32", "uint8", "text", "a compound type" …
std::string type_text(hid_t type);

/// Value of a scalar attribute. Booleans and enumerations are integers.
using Scalar = std::variant<std::int64_t, double, std::string>;

/// An HDF5 file from elsewhere, opened read-only and treated as hostile: nothing outside the file
/// is followed or loaded, sizes are checked before anything is allocated, and every failure is an
/// InputError of one line that names the file, the object, what it holds and what was expected.
class Hdf5Input {
 public:
  explicit Hdf5Input(std::filesystem::path path);

  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  [[nodiscard]] hid_t file() const { return file_.get(); }

  /// Whether the root holds a link of that name.
  [[nodiscard]] bool has(std::string_view name) const;
  [[nodiscard]] bool has_attribute(std::string_view name) const;
  /// A root attribute, or nothing where it is missing.
  [[nodiscard]] std::optional<Scalar> attribute(std::string_view name) const;

  /// Opens a dataset of the root whose data lie wholly in this file. `expected` completes the
  /// message where it is missing, e.g. "shape (B, Hq, Sq, D)".
  [[nodiscard]] Handle dataset(std::string_view name, const std::string& expected) const;
  [[nodiscard]] std::vector<std::int64_t> extents(const Handle& dataset, std::string_view name,
                                                  const std::string& expected) const;
  /// Number of elements of a dataset that can be read: it fits this machine's memory when an
  /// element takes `memory_bytes`, and the file really stores it.
  [[nodiscard]] std::size_t readable_count(const Handle& dataset, std::string_view name,
                                           const std::vector<std::int64_t>& extents,
                                           std::size_t memory_bytes) const;
  /// Reads all elements of a dataset as `memory_type`.
  void read(const Handle& dataset, std::string_view name, hid_t memory_type,
            std::span<std::byte> out) const;

  [[noreturn]] void reject(const std::string& message) const;
  [[noreturn]] void reject_dataset(std::string_view name, const std::string& message) const;
  [[noreturn]] void reject_attribute(std::string_view name, const std::string& message) const;

 private:
  void check_link(const std::string& name) const;
  void check_storage(const Handle& dataset, std::string_view name) const;

  std::filesystem::path path_;
  Handle access_;  // link access that follows no external link
  Handle file_;
};

}  // namespace katt::io::impl
