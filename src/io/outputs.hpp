#pragma once

#include <filesystem>
#include <list>
#include <optional>
#include <string>
#include <vector>

#include "io/atomic_file.hpp"

/// The commands' promises for the files that they write: no output is an input or another output,
/// no file is replaced unless the user asks for it, and no file has two writers.
namespace katt::io {

/// A file, or a folder of files, and the option that names it: {"--log", "log.h5"}.
struct NamedPath {
  std::string option;
  std::filesystem::path path;
};

/// Name of this machine in its network.
[[nodiscard]] std::string host_name();

/// True when two paths are one file, also by links; for two missing paths, true when writing both
/// would make one file.
[[nodiscard]] bool same_file(const std::filesystem::path& a, const std::filesystem::path& b);

/// Throws InputError when a path is empty, and when an output is the same file as another output or
/// an input, or as a file in an input folder.
void check_distinct(const std::vector<NamedPath>& outputs, const std::vector<NamedPath>& inputs);

/// The file of the lock on an output (FileLock).
[[nodiscard]] std::filesystem::path lock_of(const std::filesystem::path& path);

/// A lock on a file that this process writes, by a hidden file beside it (`.NAME.katt-lock`) that
/// holds the process's number. The lock ends with the object, and with the process in any case: the
/// file that a killed process leaves is not locked.
class FileLock {
 public:
  enum class IfTaken { refuse, wait };
  /// Throws InputError "FILE: is being written by process N". `stays`: a signal that ends the
  /// program leaves the hidden file, as a kill does.
  explicit FileLock(const std::filesystem::path& path, IfTaken if_taken = IfTaken::refuse,
                    bool stays = false);
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
  /// Throws InputError when the output cannot be written, when another process writes it, or when
  /// it exists and `replaces` is false; the message then ends with `expected`. `stays`: as for
  /// FileLock.
  void claim(const NamedPath& output, bool replaces,
             const std::string& expected = "a new file, or --overwrite", bool stays = false);

 private:
  std::list<FileLock> locks_;
};

}  // namespace katt::io
