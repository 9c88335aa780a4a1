#pragma once

#include <hdf5.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <random>
#include <string>
#include <vector>

#include "io/hdf5/hdf5_handle.hpp"
#include "tests/message_of.hpp"
#include "tests/temporary_folder.hpp"

namespace katt::test {

/// True when a folder holds a scratch file of a present or past writer (io::AtomicFile).
inline bool holds_a_part(const std::filesystem::path& folder) {
  return std::ranges::any_of(std::filesystem::directory_iterator(folder),
                             [](const auto& entry) { return entry.path().extension() == ".part"; });
}

/// Writes HDF5 files as other programs do, the odd ones included.
class Hdf5Builder {
 public:
  explicit Hdf5Builder(const std::filesystem::path& path)
      : file_(H5Fcreate(path.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT)) {}

  [[nodiscard]] hid_t file() const { return file_.get(); }

  /// A dataset with the given property list; without data it stays unwritten.
  void dataset(const std::string& name, hid_t file_type, const std::vector<hsize_t>& shape,
               hid_t memory_type, const void* data, hid_t creation = H5P_DEFAULT) {
    const Handle space(H5Screate_simple(static_cast<int>(shape.size()), shape.data(), nullptr));
    const Handle set(H5Dcreate2(file(), name.c_str(), file_type, space.get(), H5P_DEFAULT, creation,
                                H5P_DEFAULT));
    if (data != nullptr) H5Dwrite(set.get(), memory_type, H5S_ALL, H5S_ALL, H5P_DEFAULT, data);
  }

  void floats(const std::string& name, const std::vector<hsize_t>& shape,
              const std::vector<float>& values) {
    dataset(name, H5T_IEEE_F32LE, shape, H5T_NATIVE_FLOAT, values.data());
  }

  void attribute(const std::string& name, hid_t type, const void* data, hsize_t count = 0) {
    const Handle space(count == 0 ? H5Screate(H5S_SCALAR) : H5Screate_simple(1, &count, nullptr));
    const Handle made(
        H5Acreate2(file(), name.c_str(), type, space.get(), H5P_DEFAULT, H5P_DEFAULT));
    H5Awrite(made.get(), type, data);
  }

  void integer(const std::string& name, std::int64_t value) {
    attribute(name, H5T_NATIVE_INT64, &value);
  }
  void real(const std::string& name, double value) { attribute(name, H5T_NATIVE_DOUBLE, &value); }
  void text(const std::string& name, const std::string& value) {
    const Handle type(H5Tcopy(H5T_C_S1));
    H5Tset_size(type.get(), H5T_VARIABLE);
    H5Tset_cset(type.get(), H5T_CSET_UTF8);
    const char* pointer = value.c_str();
    attribute(name, type.get(), &pointer);
  }

  /// numpy's boolean: an enumeration over int8.
  static io::impl::Handle boolean_type() {
    Handle type(H5Tenum_create(H5T_STD_I8LE));
    for (std::int8_t value = 0; value < 2; ++value) {
      H5Tenum_insert(type.get(), value == 0 ? "FALSE" : "TRUE", &value);
    }
    return type;
  }

 private:
  using Handle = io::impl::Handle;
  Handle file_;
};

}  // namespace katt::test
