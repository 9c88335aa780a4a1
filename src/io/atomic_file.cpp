#include "io/atomic_file.hpp"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>

#include "core/error.hpp"

namespace katt::io {

namespace {

namespace fs = std::filesystem;

/// Symbolic links followed before giving up, as the kernel does.
constexpr int max_links = 40;

std::string describe(int error) { return std::generic_category().message(error); }

fs::path folder_of(const fs::path& path) {
  return path.has_parent_path() ? path.parent_path() : fs::path(".");
}

/// Whether an error says that the place is wrong, rather than that the machine is in trouble.
bool blames_the_path(int error) {
  return error != ENOSPC && error != EDQUOT && error != EIO && error != EMFILE && error != ENFILE;
}

[[noreturn]] void throw_unwritable(const fs::path& path, int error) {
  const std::string message = path.string() + ": cannot be written: " + describe(error);
  if (blames_the_path(error)) {
    throw InputError(message + "; expected a file name in a folder that can be written");
  }
  throw std::runtime_error(message);
}

void sync(const fs::path& path, int flags) {
  const int descriptor = ::open(path.c_str(), flags | O_CLOEXEC);
  if (descriptor < 0) throw std::runtime_error(path.string() + ": " + describe(errno));
  const int error = ::fsync(descriptor) == 0 ? 0 : errno;
  ::close(descriptor);
  // EINVAL: this kind of file system has no such thing as syncing a folder
  if (error != 0 && error != EINVAL) {
    throw std::runtime_error(path.string() + ": cannot be synced: " + describe(error));
  }
}

/// What temporaries of a file are called, around the id of the process that writes them.
std::string prefix_of(const fs::path& target) { return "." + target.filename().string() + "."; }
constexpr std::string_view suffix = ".part";

/// Removes temporaries whose processes are gone.
void remove_leftovers(const fs::path& target) {
  std::error_code ignored;
  const std::string prefix = prefix_of(target);
  for (const auto& entry : fs::directory_iterator(folder_of(target), ignored)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with(prefix) || !name.ends_with(suffix)) continue;
    const char* const end = name.data() + name.size() - suffix.size();
    pid_t process = 0;
    const auto parsed = std::from_chars(name.data() + prefix.size(), end, process);
    if (parsed.ec != std::errc() || parsed.ptr != end || process <= 0) continue;
    if (::kill(process, 0) != 0 && errno == ESRCH) ::unlink(entry.path().c_str());
  }
}

}  // namespace

AtomicFile::AtomicFile(const fs::path& path) : target_(path) {
  std::error_code error;
  // through a symbolic link the file it points to is replaced, not the link
  for (int hops = 0; hops < max_links && fs::is_symlink(target_, error); ++hops) {
    target_ = folder_of(target_) / fs::read_symlink(target_, error);
  }
  const fs::file_status status = fs::status(target_, error);
  if (!target_.has_filename() || fs::is_directory(status)) {
    throw InputError(path.string() + ": is a folder, expected the name of a file");
  }
  // a device or a pipe would be replaced by a file
  if (fs::exists(status) && !fs::is_regular_file(status)) {
    throw InputError(path.string() + ": is not a regular file, expected the name of a file");
  }
  if (fs::is_symlink(target_, error)) throw_unwritable(path, ELOOP);
  fs::create_directories(folder_of(target_), error);
  if (error) throw_unwritable(path, error.value());

  remove_leftovers(target_);
  std::string name = prefix_of(target_) + std::to_string(::getpid());
  temporary_ = folder_of(target_) / name.append(suffix);
  ::unlink(temporary_.c_str());
  const int descriptor = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (descriptor < 0) throw_unwritable(path, errno);
  ::close(descriptor);
}

AtomicFile::~AtomicFile() {
  if (!committed_) ::unlink(temporary_.c_str());
}

void AtomicFile::copy_current() const {
  std::error_code error;
  fs::copy_file(target_, temporary_, fs::copy_options::overwrite_existing, error);
  if (error) {
    throw std::runtime_error(target_.string() + ": cannot be copied: " + error.message());
  }
}

void AtomicFile::commit() {
  sync(temporary_, O_RDONLY);
  if (::rename(temporary_.c_str(), target_.c_str()) != 0) {
    throw std::runtime_error(target_.string() + ": cannot be replaced: " + describe(errno));
  }
  committed_ = true;
  sync(folder_of(target_), O_RDONLY | O_DIRECTORY);
}

}  // namespace katt::io
