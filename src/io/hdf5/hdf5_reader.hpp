#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "io/hdf5/hdf5_handle.hpp"
#include "process/child_process.hpp"

namespace katt::io::impl {

/// Value of a scalar attribute. Booleans and enumerations are integers.
using Scalar = std::variant<std::int64_t, double, std::string>;

/// "holds 3", for messages.
[[nodiscard]] std::string holds(const Scalar& value);

/// The attributes of an object by name.
using ScalarMap = std::map<std::string, Scalar, std::less<>>;

/// Names at the root of a file.
struct RootNames {
  std::vector<std::string> links;  ///< of datasets and groups
  std::vector<std::string> attributes;
};

/// The element type of a dataset. Enumerations (numpy's booleans are one) are integers.
enum class ElementKind : std::uint8_t { real, integer, unsigned_integer, table, other };

/// One column of a table.
struct ColumnInfo {
  std::string name;
  std::string type;          ///< for messages: "float64", "text"
  bool is_expected = false;  ///< of the type requested under its name
  bool is_int64 = false;
};

struct DatasetInfo {
  std::vector<std::int64_t> shape;
  ElementKind kind = ElementKind::other;
  std::string type;                 ///< for messages: "float32", "a compound type"
  std::vector<ColumnInfo> columns;  ///< of a table
};

/// A file in the messages of its InputErrors: one line that names the file and the object.
class NamedFile {
 public:
  explicit NamedFile(std::filesystem::path path) : path_(std::move(path)) {}

  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  [[noreturn]] void reject(const std::string& message) const;
  [[noreturn]] void reject_dataset(std::string_view name, const std::string& message) const;
  [[noreturn]] void reject_attribute(std::string_view name, const std::string& message) const;

 private:
  std::filesystem::path path_;
};

/// An HDF5 file from elsewhere, opened read-only and treated as hostile. The reader follows and
/// loads nothing outside the file and checks sizes before it allocates. Every failure that HDF5
/// reports is an InputError of one line that names the file, the object, what it holds and what was
/// expected. A crash of HDF5 ends the process of the reader: see Hdf5Input.
class Hdf5Reader : public NamedFile {
 public:
  explicit Hdf5Reader(std::filesystem::path path);

  /// True when the root holds a link of that name.
  [[nodiscard]] bool has(std::string_view name) const;
  [[nodiscard]] bool has_attribute(std::string_view name) const;
  [[nodiscard]] RootNames root_names() const;
  /// A root attribute, or nothing when it is missing.
  [[nodiscard]] std::optional<Scalar> attribute(std::string_view name) const;
  /// All attributes of the group or dataset at a path. `expected` completes the message where it is
  /// missing.
  [[nodiscard]] ScalarMap attributes_of(std::string_view name, const std::string& expected) const;

  /// Describes a dataset of the root whose data lie wholly in this file. `expected` completes the
  /// message when it is missing, e.g. "shape (B, Hq, Sq, D)". The columns of a table are compared
  /// with those of `table`, a compound type.
  [[nodiscard]] DatasetInfo describe(std::string_view name, const std::string& expected,
                                     const Handle& table) const;
  /// Number of elements of a dataset that can be read: it fits this machine's memory when an
  /// element takes `memory_bytes`, and the file really stores it.
  [[nodiscard]] std::size_t readable_count(std::string_view name, std::size_t memory_bytes) const;
  /// Sends all elements of a dataset as `memory_type`, row-major.
  void read(std::string_view name, const Handle& memory_type, Reply& reply) const;

 private:
  /// The group or dataset of that path.
  [[nodiscard]] Handle open_object(std::string_view name, const std::string& expected) const;
  [[nodiscard]] Handle open(std::string_view name, const std::string& expected) const;
  [[nodiscard]] std::vector<std::string> attribute_names(const Handle& object,
                                                         std::string_view name) const;
  [[nodiscard]] Scalar read_attribute(const Handle& attribute, std::string_view name) const;
  [[nodiscard]] std::vector<std::int64_t> extents(const Handle& dataset, std::string_view name,
                                                  const std::string& expected) const;
  void check_link(const std::string& name) const;
  void check_storage(const Handle& dataset, std::string_view name) const;

  Handle access_;  // link access that follows no external link
  Handle file_;
};

}  // namespace katt::io::impl
