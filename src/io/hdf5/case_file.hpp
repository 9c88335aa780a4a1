#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/dtype.hpp"
#include "io/hdf5/result_file.hpp"

namespace katt::io {

/// A float32 tensor of a file, row-major.
struct FloatTensor {
  std::vector<std::int64_t> shape;
  std::vector<float> values;
};

/// An int64 tensor of a file, row-major (positions, key lengths, targets, block masks, tokens).
struct IntTensor {
  std::vector<std::int64_t> shape;
  std::vector<std::int64_t> values;
};

/// An operator case (HDF5, read only): inputs as datasets at the root, parameters as root
/// attributes. The reader treats the file as hostile: every failure is an InputError of one line
/// that names the file and the dataset or attribute, what it holds and what was expected.
class CaseFile {
 public:
  /// `dtype` replaces the attribute of that name, to run a case in another dtype.
  explicit CaseFile(const std::filesystem::path& path, std::optional<Dtype> dtype = std::nullopt);
  ~CaseFile();
  CaseFile(const CaseFile&) = delete;
  CaseFile& operator=(const CaseFile&) = delete;

  [[nodiscard]] const std::filesystem::path& path() const;
  /// Names of the datasets at the root.
  [[nodiscard]] bool has(std::string_view dataset) const;
  [[nodiscard]] bool has_attribute(std::string_view name) const;

  /// The constructor's `dtype`, else the attribute `dtype`: "f32", "f16" or "bf16".
  [[nodiscard]] Dtype dtype() const;
  [[nodiscard]] std::int64_t integer(std::string_view attribute) const;
  [[nodiscard]] std::int64_t integer(std::string_view attribute, std::int64_t fallback) const;
  /// The same of an attribute that is 0, or 1; 0 where it is missing.
  [[nodiscard]] std::int64_t flag(std::string_view attribute) const;
  [[nodiscard]] double real(std::string_view attribute) const;
  [[nodiscard]] double real(std::string_view attribute, double fallback) const;
  [[nodiscard]] std::string text(std::string_view attribute, std::string_view fallback) const;

  /// Extents of a dataset of the given rank. `axes` is its documentation, e.g. "(B, Hq, Sq, D)".
  [[nodiscard]] std::vector<std::int64_t> shape(std::string_view dataset, int rank,
                                                std::string_view axes) const;
  /// Reads a dataset of exactly the given shape (a floating-point type, converted to float32).
  /// An extent of -1 accepts any length.
  [[nodiscard]] FloatTensor floats(std::string_view dataset, const std::vector<std::int64_t>& shape,
                                   std::string_view axes) const;
  /// Reads a floating-point dataset of one axis, which may be empty.
  [[nodiscard]] std::vector<float> column(std::string_view dataset) const;
  /// Reads an integer dataset of exactly the given shape (any integer type, converted to int64).
  [[nodiscard]] IntTensor integers(std::string_view dataset, const std::vector<std::int64_t>& shape,
                                   std::string_view axes) const;
  /// Throws InputError for a dataset or an attribute at the root that was never asked for, where its
  /// name is one letter from one that was and that the file lacks: `kv_lens`, `casual`.
  void refuse_misspelt() const;
  /// Throws the InputError that names the dataset, "FILE: dataset NAME: MESSAGE", or the attribute.
  [[noreturn]] void reject(std::string_view name, const std::string& message) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Named tensors and attributes that become an HDF5 file in one step: written to a temporary beside
/// it, synced, and renamed, so that a partial file is never seen.
class TensorFile {
 public:
  void set(std::string name, FloatTensor tensor);
  void set_integers(std::string name, IntTensor tensor);
  /// A profile, as a table of that name.
  void set_profile(std::string name, Profile profile);
  void set_attribute(std::string name, Attribute value);
  /// The float tensors in the order of set().
  [[nodiscard]] const std::vector<std::pair<std::string, FloatTensor>>& tensors() const {
    return tensors_;
  }
  /// Throws InputError when the folder cannot be written.
  void write(const std::filesystem::path& path) const;

 private:
  std::vector<std::pair<std::string, FloatTensor>> tensors_;
  std::vector<std::pair<std::string, IntTensor>> integer_tensors_;
  std::vector<std::pair<std::string, Profile>> profiles_;
  Attributes attributes_;
};

}  // namespace katt::io
