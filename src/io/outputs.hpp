#pragma once

#include <filesystem>
#include <list>
#include <optional>
#include <string>
#include <vector>

#include "io/atomic_file.hpp"

/// What the commands promise of the files that they write: no output is an input or another output,
/// none is replaced unless that is asked for, and none has two writers.
namespace katt::io {

/// A file, or a folder of files, and the option that names it: {"--log", "log.h5"}.
struct NamedPath {
  std::string option;
  std::filesystem::path path;
};

/// Whether two paths are one file, by links too; of two that are missing, whether writing both would
/// make one.
[[nodiscard]] bool same_file(const std::filesystem::path& a, const std::filesystem::path& b);

/// Throws InputError where an output is the same file as another one or as an input, or as a file in
/// an input that is a folder.
void check_distinct(const std::vector<NamedPath>& outputs, const std::vector<NamedPath>& inputs);

/// A lock on a file that this process writes, by a hidden file beside it (`.NAME.katt-lock`) that
/// holds the process's number. It ends with the object, and with the process however that ends; what
/// a killed process leaves of it is no lock.
class FileLock {
 public:
  enum class IfTaken { refuse, wait };
  /// Throws InputError "FILE: is being written by process N".
  explicit FileLock(const std::filesystem::path& path, IfTaken if_taken = IfTaken::refuse);
  ~FileLock();
  FileLock(const FileLock&) = delete;
  FileLock& operator=(const FileLock&) = delete;

 private:
  std::filesystem::path path_;
  int descriptor_ = -1;
  std::optional<impl::RemovedOnSignal> on_signal_;
};

/// The outputs of a command, locked from claim() to the end of the object's life.
class Outputs {
 public:
  /// Throws InputError where the output cannot be written, another process writes it, or it exists
  /// and `replaces` is false; the message ends with what was `expected` then.
  void claim(const NamedPath& output, bool replaces,
             const std::string& expected = "a new file, or --overwrite");

 private:
  std::list<FileLock> locks_;
};

}  // namespace katt::io
