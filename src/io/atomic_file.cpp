#include "io/atomic_file.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <stdexcept>
#include <string>
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

}  // namespace

AtomicFile::AtomicFile(const fs::path& path) : target_(path) {
  std::error_code error;
  // through a symbolic link the file it points to is replaced, not the link
  for (int hops = 0; hops < max_links && fs::is_symlink(target_, error); ++hops) {
    target_ = folder_of(target_) / fs::read_symlink(target_, error);
  }
  if (!target_.has_filename() || fs::is_directory(target_, error)) {
    throw InputError(path.string() + ": is a folder, expected the name of a file");
  }
  fs::create_directories(folder_of(target_), error);
  if (error) throw_unwritable(path, error.value());

  fs::path hidden = ".";
  hidden += target_.filename();
  temporary_ = folder_of(target_) / (hidden += ".part");
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
