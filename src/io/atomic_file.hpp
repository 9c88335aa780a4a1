#pragma once

#include <filesystem>

namespace katt::io {

/// A file that appears, or changes, in one step: the new content is written to a hidden temporary
/// beside it (`.NAME.PROCESS.part`), synced, and renamed over it. Whoever opens the file, after a
/// kill or a power cut too, finds the old content or the new one, never a part. Of several programs
/// that write a file at once the last one's content stays, whole.
class AtomicFile {
 public:
  /// Creates the missing folders above `path` and an empty temporary; what killed programs of this
  /// host left is removed first. Throws InputError naming the path when that is not possible, and
  /// where it is something other than a regular file.
  explicit AtomicFile(const std::filesystem::path& path);
  /// Removes the temporary unless commit() has made it the file.
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  /// Where to write the new content.
  [[nodiscard]] const std::filesystem::path& temporary() const { return temporary_; }
  /// Fills the temporary with the present content of the file. Throws std::runtime_error.
  void copy_current() const;
  /// Makes the temporary the file. Throws std::runtime_error, and then the old content is intact.
  void commit();

 private:
  std::filesystem::path target_;
  std::filesystem::path temporary_;
  bool committed_ = false;
};

}  // namespace katt::io
