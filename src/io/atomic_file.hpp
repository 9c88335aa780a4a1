#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string_view>

namespace katt::io {

namespace impl {

/// Throws as AtomicFile does for an errno: InputError for a wrong place, std::runtime_error for a
/// machine in trouble (a full disk, a quota, a failing device).
[[noreturn]] void throw_unwritable(const std::filesystem::path& path, int error);

/// Writes all bytes. Returns 0, or the errno.
[[nodiscard]] int write_all(int descriptor, std::span<const std::byte> bytes);

/// True when the path still names the open file.
[[nodiscard]] bool is_same(int descriptor, const std::filesystem::path& path);

/// Makes a signal that ends the program (end_by_signal()) remove a file, while this object lives.
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

/// A file that appears, or changes, in one step: the new content is written to a hidden scratch
/// file beside it (`.NAME.katt-XXXXXX.part`), synced, and renamed over it. A reader finds the old
/// content or the new one, never a part, even after a kill or a power cut. The file keeps its mode.
/// When several programs write a file at once, the content of the last one stays, whole.
class AtomicFile {
 public:
  /// Removes the scratch files of killed programs, then creates the missing folders above `path`
  /// and an empty scratch file. Throws InputError naming the path when that is not possible, or
  /// when the path is not a regular file; std::runtime_error on a full disk.
  explicit AtomicFile(const std::filesystem::path& path);
  /// Removes the scratch file unless commit() has made it the file.
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  /// The file that holds the new content until commit().
  [[nodiscard]] const std::filesystem::path& temporary() const { return temporary_; }
  /// Appends to the new content. Throws std::runtime_error: "FILE: cannot be written: No space left
  /// on device".
  void write(std::span<const std::byte> bytes) const;
  void write(std::string_view text) const;
  /// Reserves space for this many bytes, if the file system can. Throws as write().
  void reserve(std::uint64_t bytes) const;
  /// Makes the scratch file the file. Throws std::runtime_error, and then the old content is intact.
  void commit();

 private:
  std::filesystem::path named_;   ///< as the caller writes it, for messages
  std::filesystem::path target_;  ///< the target of its links
  std::filesystem::path temporary_;
  int descriptor_ = -1;
  std::optional<impl::RemovedOnSignal> on_signal_;
};

/// Replaces a file's content in one step.
void write_file(const std::filesystem::path& path, std::string_view content);

/// The file that a write to `path` replaces: this function follows links, also to a missing file.
[[nodiscard]] std::filesystem::path written_path(const std::filesystem::path& path);

/// Makes SIGINT, SIGTERM and SIGHUP remove the scratch files and end the program, unless the
/// program already handles or ignores them.
void remove_scratch_on_signals();

/// The handler: removes the scratch files of this process and ends it by the signal.
void end_by_signal(int signal);

}  // namespace katt::io
