#include <algorithm>
#include <stdexcept>
#include <utility>

#include "io/atomic_file.hpp"
#include "io/hdf5/case_file.hpp"
#include "io/hdf5/hdf5_output.hpp"
#include "io/hdf5/result_table.hpp"

namespace katt::io {

namespace {

template <class T>
void put(std::vector<std::pair<std::string, T>>& entries, std::string name, T value) {
  const auto known = std::ranges::find(entries, name, &std::pair<std::string, T>::first);
  if (known != entries.end()) {
    known->second = std::move(value);
  } else {
    entries.emplace_back(std::move(name), std::move(value));
  }
}

template <class Tensor>
void check_size(const std::string& name, const Tensor& tensor) {
  std::int64_t count = 1;
  for (const std::int64_t extent : tensor.shape) count *= extent;
  if (count != std::ssize(tensor.values)) {
    throw std::invalid_argument("tensor " + name + ": its shape asks for " + std::to_string(count) +
                                " values, but it holds " + std::to_string(tensor.values.size()));
  }
}

}  // namespace

void TensorFile::set(std::string name, FloatTensor tensor) {
  check_size(name, tensor);
  put(tensors_, std::move(name), std::move(tensor));
}

void TensorFile::set_integers(std::string name, IntTensor tensor) {
  check_size(name, tensor);
  put(integer_tensors_, std::move(name), std::move(tensor));
}

void TensorFile::set_profile(std::string name, Profile profile) {
  put(profiles_, std::move(name), std::move(profile));
}

void TensorFile::set_attribute(std::string name, Attribute value) {
  put(attributes_, std::move(name), std::move(value));
}

void TensorFile::write(const std::filesystem::path& path) const {
  impl::silence_errors();
  AtomicFile target(path);
  impl::MemoryFile file;
  for (const auto& [name, tensor] : tensors_) {
    impl::write_dataset(file.get(), name, H5T_NATIVE_FLOAT, tensor.shape, tensor.values.data());
  }
  for (const auto& [name, tensor] : integer_tensors_) {
    impl::write_dataset(file.get(), name, H5T_NATIVE_INT64, tensor.shape, tensor.values.data());
  }
  for (const auto& [name, profile] : profiles_) impl::write_profile(file.get(), name, profile);
  for (const auto& [name, value] : attributes_) impl::write_attribute(file.get(), name, value);
  target.write(file.close());
  target.commit();
}

}  // namespace katt::io
