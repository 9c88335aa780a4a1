#include "io/outputs.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <span>
#include <system_error>
#include <thread>

#include "core/error.hpp"
#include "io/printable.hpp"

namespace katt::io {

namespace {

namespace fs = std::filesystem;

/// "process 4711" or, for another machine, "process 4711 on node2", from the content of a lock
/// file.
std::string writer_of(int descriptor) {
  std::array<char, 300> text{};
  for (int again = 0; ::pread(descriptor, text.data(), text.size() - 1, 0) <= 0; ++again) {
    if (again == 20) return "another process";
    std::this_thread::sleep_for(std::chrono::milliseconds(10));  // the other process has only just
                                                                 // taken the lock
  }
  const std::string held = impl::printable(text.data());
  const std::size_t space = held.find(' ');
  const std::string process = "process " + held.substr(0, space);
  const std::string host = space == std::string::npos ? "" : held.substr(space + 1);
  return host.empty() || host == host_name() ? process : process + " on " + host;
}

/// Takes the lock of an open file. Returns 0, or the errno. On a file system without locks no other
/// process can hold one, so the result is 0.
int lock(int descriptor, FileLock::IfTaken if_taken) {
  const int wait = if_taken == FileLock::IfTaken::wait ? 0 : LOCK_NB;
  while (::flock(descriptor, LOCK_EX | wait) != 0) {
    if (errno == EINTR) continue;
    return errno == EWOULDBLOCK ? EWOULDBLOCK : 0;
  }
  return 0;
}

std::vector<fs::path> files_of(const fs::path& path) {
  std::error_code ignored;
  if (!fs::is_directory(path, ignored)) return {path};
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(path, ignored)) files.push_back(entry.path());
  return files;
}

}  // namespace

std::string host_name() {
  std::array<char, 256> name{};
  (void)::gethostname(name.data(), name.size() - 1);
  return name.data();
}

bool same_file(const fs::path& a, const fs::path& b) {
  std::error_code error;
  const fs::path one = written_path(a), other = written_path(b);
  const bool is_there = fs::exists(one, error);
  if (is_there != fs::exists(other, error)) return false;
  if (is_there) return fs::equivalent(one, other, error);
  return fs::weakly_canonical(fs::absolute(one), error) ==
         fs::weakly_canonical(fs::absolute(other), error);
}

void check_distinct(const std::vector<NamedPath>& outputs, const std::vector<NamedPath>& inputs) {
  for (const auto* named : {&outputs, &inputs}) {
    for (const NamedPath& one : *named) {
      if (!one.path.empty()) continue;
      throw InputError(one.option + ": is empty, expected the name of a file");
    }
  }
  for (auto at = outputs.begin(); at != outputs.end(); ++at) {
    const NamedPath& output = *at;
    const std::string start = output.option + " " + output.path.string() + ": is the file of ";
    for (const NamedPath& input : inputs) {
      for (const fs::path& file : files_of(input.path)) {
        if (!same_file(output.path, file)) continue;
        throw InputError(start + input.option + " " + file.string() +
                         ", which is read; expected another file");
      }
    }
    const auto other = std::find_if(outputs.begin(), at, [&](const NamedPath& before) {
      return same_file(output.path, before.path);
    });
    if (other != at) throw InputError(start + other->option + ", too; expected another file");
  }
}

fs::path lock_of(const fs::path& path) {
  const fs::path target = written_path(path);
  fs::path lock = target.parent_path() / ".";
  lock += target.filename();
  lock += ".katt-lock";
  return lock;
}

FileLock::FileLock(const fs::path& path, IfTaken if_taken, bool stays) {
  const fs::path target = written_path(path);
  std::error_code error;
  if (target.has_parent_path()) fs::create_directories(target.parent_path(), error);
  if (error) impl::throw_unwritable(path, error.value());
  path_ = lock_of(path);
  while (true) {
    descriptor_ = ::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
    if (descriptor_ < 0) impl::throw_unwritable(path, errno);
    if (lock(descriptor_, if_taken) != 0) {
      const std::string writer = writer_of(descriptor_);
      ::close(descriptor_);
      throw InputError(path.string() + ": is being written by " + writer +
                       "; expected one writer at a time");
    }
    if (impl::is_same(descriptor_, path_)) break;
    ::close(descriptor_);  // the previous owner removed it
  }
  if (!stays) on_signal_.emplace(path_.c_str());
  // the lock holds without the number as well
  const std::string writer = std::to_string(::getpid()) + " " + host_name();
  if (::ftruncate(descriptor_, 0) == 0) {
    (void)impl::write_all(descriptor_, std::as_bytes(std::span(writer)));
  }
}

FileLock::~FileLock() {
  ::unlink(path_.c_str());
  ::close(descriptor_);
}

void Outputs::claim(const NamedPath& output, bool replaces, const std::string& expected,
                    bool stays) {
  const auto check = [&] {
    std::error_code ignored;
    const fs::file_status status = fs::status(output.path, ignored);
    if (replaces || !fs::exists(status) || fs::is_directory(status)) return;
    throw InputError(output.option + " " + output.path.string() + ": exists; expected " + expected);
  };
  check();
  { const AtomicFile writable(output.path); }
  locks_.emplace_back(output.path, FileLock::IfTaken::refuse, stays);
  check();  // another program may just have finished it
}

}  // namespace katt::io
