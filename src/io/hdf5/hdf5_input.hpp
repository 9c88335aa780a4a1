#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "io/hdf5/hdf5_reader.hpp"

namespace katt::io::impl {

class MessageWriter;

/// An HDF5 file from elsewhere, which an Hdf5Reader in a child process reads. For every content of
/// the file, this process gets a value or an InputError of one line that names the file.
///
/// The reason for a process: libhdf5 trusts the addresses and sizes in a file. In 1.10.8 an
/// undefined address in a superblock, a B-tree or a heap makes it copy from a null pointer, a
/// corrupt global heap leads it out of its buffers or round in circles, and a compressed chunk that
/// unpacks to too little is read past its end; each release mends some of these faults and none
/// promises to mend all. A check of our own before it would be a second HDF5 parser, and a signal
/// handler would continue with the memory that the crash left. So this process never opens a
/// foreign file with HDF5: it forks once for each file and exchanges messages with the child,
/// tensors in blocks.
class Hdf5Input : public NamedFile {
 public:
  explicit Hdf5Input(std::filesystem::path path);
  ~Hdf5Input();

  /// The same as the members of Hdf5Reader.
  [[nodiscard]] bool has(std::string_view name) const;
  [[nodiscard]] bool has_attribute(std::string_view name) const;
  [[nodiscard]] RootNames root_names() const;
  [[nodiscard]] std::optional<Scalar> attribute(std::string_view name) const;
  [[nodiscard]] ScalarMap attributes_of(std::string_view name, const std::string& expected) const;
  [[nodiscard]] DatasetInfo describe(std::string_view name, const std::string& expected,
                                     const Handle& table = {}) const;
  /// `info` describes the dataset.
  [[nodiscard]] std::size_t readable_count(std::string_view name, const DatasetInfo& info,
                                           std::size_t memory_bytes) const;
  /// Reads all elements of a dataset as `memory_type`. `out` holds the readable_count() of them.
  void read(std::string_view name, hid_t memory_type, std::span<std::byte> out) const;

 private:
  /// Returns the result of `function`; every failure of the child becomes an InputError that names
  /// the object.
  template <class Function>
  auto guard(std::string_view object, const Function& function) const;
  template <class Take>
  auto ask(const MessageWriter& request, std::string_view object, const Take& take) const;

  std::unique_ptr<ChildProcess> child_;
};

}  // namespace katt::io::impl
