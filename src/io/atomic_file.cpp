#include "io/atomic_file.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <random>
#include <stdexcept>
#include <string>
#include <system_error>
#include <utility>

#include "core/error.hpp"

namespace katt::io {

namespace {

namespace fs = std::filesystem;

/// Symbolic links followed before giving up, as the kernel does.
constexpr int max_links = 40;

constexpr mode_t permissions = 0777;

std::string describe(int error) { return std::generic_category().message(error); }

fs::path folder_of(const fs::path& path) {
  return path.has_parent_path() ? path.parent_path() : fs::path(".");
}

/// True when an errno means a wrong place, false when it means a machine in trouble.
bool blames_the_path(int error) {
  constexpr std::array trouble{ENOSPC, EDQUOT, EFBIG, EIO, ENOMEM, EMFILE, ENFILE};
  return std::find(trouble.begin(), trouble.end(), error) == trouble.end();
}

[[noreturn]] void throw_failed(const fs::path& path, const char* what, int error) {
  throw std::runtime_error(path.string() + ": " + what + ": " + describe(error));
}

void sync_folder(const fs::path& folder) {
  const int descriptor = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) throw_failed(folder, "cannot be synced", errno);
  const int error = ::fsync(descriptor) == 0 ? 0 : errno;
  ::close(descriptor);
  // EINVAL: this kind of file system cannot sync a folder
  if (error != 0 && error != EINVAL) throw_failed(folder, "cannot be synced", error);
}

/// Scratch files of a file are called PREFIX, six letters, SUFFIX.
std::string prefix_of(const fs::path& target) {
  return "." + target.filename().string() + ".katt-";
}
constexpr std::string_view suffix = ".part";
constexpr std::size_t letters = 6;

std::string random_letters() {
  constexpr std::string_view alphabet = "abcdefghijklmnopqrstuvwxyz0123456789";
  static std::random_device device;
  std::string text;
  for (std::size_t i = 0; i < letters; ++i) text += alphabet[device() % alphabet.size()];
  return text;
}

/// Removes scratch files whose programs are gone: a running program holds a lock on its scratch
/// file.
void remove_leftovers(const fs::path& target) {
  std::error_code ignored;
  const std::string prefix = prefix_of(target);
  for (const auto& entry : fs::directory_iterator(folder_of(target), ignored)) {
    const std::string name = entry.path().filename().string();
    if (name.size() != prefix.size() + letters + suffix.size() || !name.starts_with(prefix) ||
        !name.ends_with(suffix)) {
      continue;
    }
    const int descriptor =
        ::open(entry.path().c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (descriptor < 0) continue;
    if (::flock(descriptor, LOCK_EX | LOCK_NB) == 0) ::unlink(entry.path().c_str());
    ::close(descriptor);
  }
}

/// The names that end_by_signal() removes, and the process that owns them: a child made by fork()
/// inherits its parent's handlers.
std::array<std::atomic<const char*>, 64> removed_on_signal{};
std::atomic<pid_t> owner{0};

}  // namespace

namespace impl {

void throw_unwritable(const fs::path& path, int error) {
  const std::string message = path.string() + ": cannot be written: " + describe(error);
  if (blames_the_path(error)) {
    throw InputError(message + "; expected a file name in a folder that can be written");
  }
  throw std::runtime_error(message);
}

int write_all(int descriptor, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(descriptor, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return written < 0 ? errno : EIO;
    bytes = bytes.subspan(static_cast<std::size_t>(written));
  }
  return 0;
}

bool is_same(int descriptor, const fs::path& path) {
  struct stat open {
  }, named{};
  return ::fstat(descriptor, &open) == 0 && ::lstat(path.c_str(), &named) == 0 &&
         open.st_dev == named.st_dev && open.st_ino == named.st_ino;
}

RemovedOnSignal::RemovedOnSignal(const char* path) : slot_(0) {
  owner = ::getpid();
  for (; slot_ < removed_on_signal.size(); ++slot_) {
    const char* none = nullptr;
    if (removed_on_signal[slot_].compare_exchange_strong(none, path)) return;
  }
}

RemovedOnSignal::~RemovedOnSignal() {
  if (slot_ < removed_on_signal.size()) removed_on_signal[slot_] = nullptr;
}

}  // namespace impl

fs::path written_path(const fs::path& path) {
  std::error_code error;
  fs::path target = path;
  for (int hops = 0; hops < max_links && fs::is_symlink(target, error); ++hops) {
    target = folder_of(target) / fs::read_symlink(target, error);
  }
  if (fs::is_symlink(target, error)) impl::throw_unwritable(path, ELOOP);
  return target;
}

AtomicFile::AtomicFile(const fs::path& path) : named_(path), target_(written_path(path)) {
  std::error_code error;
  const fs::file_status status = fs::status(target_, error);
  if (!target_.has_filename() || fs::is_directory(status)) {
    throw InputError(path.string() + ": is a folder, expected the name of a file");
  }
  // a device or a pipe would be replaced by a file
  if (fs::exists(status) && !fs::is_regular_file(status)) {
    throw InputError(path.string() + ": is not a regular file, expected the name of a file");
  }
  fs::create_directories(folder_of(target_), error);
  if (error) impl::throw_unwritable(path, error.value());

  remove_leftovers(target_);
  struct stat old {};
  const bool replaces = ::stat(target_.c_str(), &old) == 0;
  const mode_t mode = replaces ? old.st_mode & permissions : 0666;
  while (true) {
    temporary_ = folder_of(target_) / (prefix_of(target_) + random_letters());
    temporary_ += suffix;
    descriptor_ =
        ::open(temporary_.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, mode);
    if (descriptor_ < 0 && errno == EEXIST) continue;
    if (descriptor_ < 0) impl::throw_unwritable(path, errno);
    (void)::flock(descriptor_, LOCK_EX);  // a file system without locks keeps leftovers
    if (impl::is_same(descriptor_, temporary_)) break;
    ::close(descriptor_);  // removed as a leftover before it was locked
  }
  on_signal_.emplace(temporary_.c_str());
  if (!replaces) return;
  // the owner stays when root replaces another user's file
  if (::fchown(descriptor_, old.st_uid, old.st_gid) != 0) errno = 0;
  if (::fchmod(descriptor_, mode) != 0) errno = 0;
}

AtomicFile::~AtomicFile() {
  if (descriptor_ < 0) return;
  ::unlink(temporary_.c_str());
  ::close(descriptor_);
}

void AtomicFile::write(std::span<const std::byte> bytes) const {
  if (const int error = impl::write_all(descriptor_, bytes); error != 0) {
    throw_failed(named_, "cannot be written", error);
  }
}

void AtomicFile::write(std::string_view text) const { write(std::as_bytes(std::span(text))); }

void AtomicFile::reserve(std::uint64_t bytes) const {
  if (bytes == 0 || ::fallocate(descriptor_, 0, 0, static_cast<off_t>(bytes)) == 0) return;
  if (const int error = errno; !blames_the_path(error)) {
    throw_failed(named_, "cannot be written", error);
  }
}

void AtomicFile::commit() {
  if (::fsync(descriptor_) != 0) throw_failed(named_, "cannot be written", errno);
  if (::rename(temporary_.c_str(), target_.c_str()) != 0) {
    throw_failed(named_, "cannot be replaced", errno);
  }
  on_signal_.reset();
  ::close(std::exchange(descriptor_, -1));
  sync_folder(folder_of(target_));
}

void write_file(const fs::path& path, std::string_view content) {
  AtomicFile target(path);
  target.write(content);
  target.commit();
}

void end_by_signal(int signal) {
  if (owner == ::getpid()) {
    for (const auto& path : removed_on_signal) {
      if (const char* const name = path; name != nullptr) ::unlink(name);
    }
  }
  ::signal(signal, SIG_DFL);
  ::raise(signal);
}

void remove_scratch_on_signals() {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    struct sigaction now {};
    if (::sigaction(signal, nullptr, &now) == 0 && now.sa_handler == SIG_DFL) {
      ::signal(signal, end_by_signal);
    }
  }
}

}  // namespace katt::io
