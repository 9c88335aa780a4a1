#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string_view>

namespace katt::io {

namespace impl {

/// Throws as AtomicFile does for an errno: InputError where the place is wrong, std::runtime_error
/// where the machine is in trouble (a full disk, a quota, a failing device).
[[noreturn]] void throw_unwritable(const std::filesystem::path& path, int error);

/// Writes all of it. Returns 0, or the errno.
[[nodiscard]] int write_all(int descriptor, std::span<const std::byte> bytes);

/// Has a signal that ends the program (end_by_signal()) remove a file, for the life of this object.
class RemovedOnSignal {
 public:
  /// `path` must outlive the object.
  explicit RemovedOnSignal(const char* path);
  ~RemovedOnSignal();
  RemovedOnSignal(const RemovedOnSignal&) = delete;
  RemovedOnSignal& operator=(const RemovedOnSignal&) = delete;

 private:
  std::size_t slot_;
};

}  // namespace impl

/// A file that appears, or changes, in one step: the new content is written to a hidden scratch file
/// beside it (`.NAME.katt-XXXXXX.part`), synced, and renamed over it. Whoever opens the file, after a
/// kill or a power cut too, finds the old content or the new one, never a part. The file keeps the
/// mode that it has. Of several programs that write a file at once the last one's content stays,
/// whole.
class AtomicFile {
 public:
  /// Creates the missing folders above `path` and an empty scratch file, after it has removed those
  /// of killed programs. Throws InputError naming the path when that is not possible, and where it is
  /// something other than a regular file; std::runtime_error on a full disk.
  explicit AtomicFile(const std::filesystem::path& path);
  /// Removes the scratch file unless commit() has made it the file.
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  /// Where the new content is until commit().
  [[nodiscard]] const std::filesystem::path& temporary() const { return temporary_; }
  /// Appends to the new content. Throws std::runtime_error: "FILE: cannot be written: No space left
  /// on device".
  void write(std::span<const std::byte> bytes) const;
  void write(std::string_view text) const;
  /// Asks the file system for the space of so many bytes, where it can be asked. Throws as write().
  void reserve(std::uint64_t bytes) const;
  /// Makes the scratch file the file. Throws std::runtime_error, and then the old content is intact.
  void commit();

 private:
  std::filesystem::path named_;   ///< as the caller says it, for messages
  std::filesystem::path target_;  ///< what it links to
  std::filesystem::path temporary_;
  int descriptor_ = -1;
  std::optional<impl::RemovedOnSignal> on_signal_;
};

/// Replaces a file's content in one step.
void write_file(const std::filesystem::path& path, std::string_view content);

/// The file that is replaced when `path` is written: links are followed, also to what is missing.
[[nodiscard]] std::filesystem::path written_path(const std::filesystem::path& path);

/// Has SIGINT, SIGTERM and SIGHUP, unless they are handled or ignored already, remove the scratch
/// files and end the program.
void remove_scratch_on_signals();

/// The handler: removes the scratch files of this process and ends it by the signal.
void end_by_signal(int signal);

}  // namespace katt::io
