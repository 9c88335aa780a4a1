#include "io/mapped_file.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <string>
#include <system_error>
#include <utility>

#include "core/error.hpp"

namespace katt::io::impl {

MappedFile::MappedFile(const std::filesystem::path& path, const char* expected) {
  const auto refuse = [&](const std::string& message) {
    throw InputError(path.string() + ": " + message + ", expected " + expected);
  };
  // Non-blocking: a pipe must not wait for its writer.
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor < 0) {
    refuse(errno == ENOENT ? "no such file"
                           : "cannot be read: " + std::generic_category().message(errno));
  }
  struct stat status {};
  const bool regular = ::fstat(descriptor, &status) == 0 && S_ISREG(status.st_mode);
  const auto size = static_cast<std::size_t>(status.st_size);
  void* memory = regular && size > 0 ? ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, descriptor, 0)
                                     : MAP_FAILED;
  ::close(descriptor);
  if (!regular) refuse("is not a regular file");
  if (size == 0) refuse("is empty");
  if (memory == MAP_FAILED) refuse("cannot be mapped into memory");
  bytes_ = {static_cast<const std::byte*>(memory), size};
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

MappedFile::MappedFile(MappedFile&& other) noexcept : bytes_(std::exchange(other.bytes_, {})) {}

}  // namespace katt::io::impl
