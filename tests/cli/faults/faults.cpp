// A library to preload: it makes the n-th call that changes files below a folder fail, or kills the
// process there. For tests/cli/test_file_faults.py.
//
//   KATT_FAULT_FOLDER  absolute; only calls on files below it count
//   KATT_FAULT_LOG     file that gets a line for every call: its number, its name
//   KATT_FAULT_AT      number of the call, from 1; over all processes that fork() makes
//   KATT_FAULT_KIND    ENOSPC, EDQUOT, EIO: the error of the call
//                      short: a write stores half, and says so
//                      kill: SIGKILL before the call; torn: after half of it; hangup: SIGHUP before the call
//   KATT_FAULT_LASTS   1: all later calls fail, too, as on a disk that stays full
//
// Removing a file never fails: otherwise nobody could clean up.

#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <climits>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

namespace {

enum class Kind { error, short_write, kill, torn, hangup };
enum class What { passes, fails, halves, dies_halfway };

struct Plan {
  Plan() {
    const auto variable = [](const char* name) {
      const char* value = std::getenv(name);
      return std::string(value == nullptr ? "" : value);
    };
    folder = variable("KATT_FAULT_FOLDER");
    at = std::atol(variable("KATT_FAULT_AT").c_str());
    lasts = variable("KATT_FAULT_LASTS") == "1";
    const std::string name = variable("KATT_FAULT_KIND");
    kind = name == "short"    ? Kind::short_write
           : name == "kill"   ? Kind::kill
           : name == "torn"   ? Kind::torn
           : name == "hangup" ? Kind::hangup
                              : Kind::error;
    error = name == "EIO" ? EIO : name == "EDQUOT" ? EDQUOT : ENOSPC;
    if (const std::string path = variable("KATT_FAULT_LOG"); !path.empty()) {
      log = static_cast<int>(syscall(SYS_openat, AT_FDCWD, path.c_str(),
                                     O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
    }
    void* const shared = mmap(nullptr, sizeof(std::atomic<long>), PROT_READ | PROT_WRITE,
                              MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED) std::abort();
    calls = new (shared) std::atomic<long>(0);
  }

  std::string folder;
  long at = 0;
  bool lasts = false;
  Kind kind = Kind::error;
  int error = ENOSPC;
  int log = -1;
  std::atomic<long>* calls = nullptr;
};

Plan& plan() {
  static Plan the;
  return the;
}

bool is_below(std::string_view path) {
  const std::string& folder = plan().folder;
  return !folder.empty() && path.starts_with(folder) &&
         (path.size() == folder.size() || path[folder.size()] == '/');
}

bool counts(const char* path) {
  if (path == nullptr) return false;
  if (path[0] == '/') return is_below(path);
  std::array<char, PATH_MAX> folder{};
  return getcwd(folder.data(), folder.size()) != nullptr && is_below(folder.data());
}

bool counts(int descriptor) {
  const std::string link = "/proc/self/fd/" + std::to_string(descriptor);
  std::array<char, PATH_MAX> path{};
  const ssize_t length = readlink(link.c_str(), path.data(), path.size());
  return length > 0 && is_below({path.data(), static_cast<std::size_t>(length)});
}

[[noreturn]] void die() {
  kill(getpid(), SIGKILL);
  for (;;) pause();
}

/// Counts a call and returns its fate. Sets errno when it fails.
What next(const char* name, bool can_fail = true) {
  Plan& the = plan();
  const long number = ++*the.calls;
  if (the.log >= 0) {
    const std::string line = std::to_string(number) + " " + name + "\n";
    (void)syscall(SYS_write, the.log, line.data(), line.size());
  }
  if (the.at == 0 || number < the.at || (number > the.at && !the.lasts)) return What::passes;
  switch (the.kind) {
    case Kind::kill: die();
    case Kind::hangup: raise(SIGHUP); die();
    case Kind::torn: return What::dies_halfway;
    case Kind::short_write: return What::halves;
    case Kind::error: break;
  }
  if (!can_fail) return What::passes;
  errno = the.error;
  return What::fails;
}

template <class Function>
Function* real(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

/// A call that is done or not: `call` does it.
template <class Call>
auto whole(const char* name, const Call& call, bool can_fail = true) -> decltype(call()) {
  switch (next(name, can_fail)) {
    case What::fails: return -1;
    case What::dies_halfway: (void)call(); die();
    default: return call();
  }
}

/// A call that may store a part: `call` stores the given number of bytes.
template <class Call>
ssize_t partial(const char* name, std::size_t bytes, const Call& call) {
  const std::size_t half = bytes > 1 ? bytes / 2 : bytes;
  switch (next(name)) {
    case What::fails: return -1;
    case What::halves: return call(half);
    case What::dies_halfway: (void)call(half); die();
    default: return call(bytes);
  }
}

bool writes(int flags) { return (flags & (O_CREAT | O_WRONLY | O_RDWR)) != 0; }

}  // namespace

extern "C" {

#define KATT_OPEN(name)                                                    \
  int name(const char* path, int flags, ...) {                             \
    static auto* const call = real<int(const char*, int, mode_t)>(#name);  \
    va_list rest;                                                          \
    va_start(rest, flags);                                                 \
    const mode_t mode = (flags & O_CREAT) != 0 ? va_arg(rest, mode_t) : 0; \
    va_end(rest);                                                          \
    if (!writes(flags) || !counts(path)) return call(path, flags, mode);   \
    return whole(#name, [&] { return call(path, flags, mode); });          \
  }
KATT_OPEN(open)
KATT_OPEN(open64)

#define KATT_OPENAT(name)                                                                      \
  int name(int folder, const char* path, int flags, ...) {                                     \
    static auto* const call = real<int(int, const char*, int, mode_t)>(#name);                 \
    va_list rest;                                                                              \
    va_start(rest, flags);                                                                     \
    const mode_t mode = (flags & O_CREAT) != 0 ? va_arg(rest, mode_t) : 0;                     \
    va_end(rest);                                                                              \
    const bool is_ours = folder == AT_FDCWD || path[0] == '/' ? counts(path) : counts(folder); \
    if (!writes(flags) || !is_ours) return call(folder, path, flags, mode);                    \
    return whole(#name, [&] { return call(folder, path, flags, mode); });                      \
  }
KATT_OPENAT(openat)
KATT_OPENAT(openat64)

ssize_t write(int descriptor, const void* data, size_t bytes) {
  static auto* const call = real<ssize_t(int, const void*, size_t)>("write");
  if (!counts(descriptor)) return call(descriptor, data, bytes);
  return partial("write", bytes, [&](size_t part) { return call(descriptor, data, part); });
}

#define KATT_PWRITE(name, Offset)                                                                \
  ssize_t name(int descriptor, const void* data, size_t bytes, Offset at) {                      \
    static auto* const call = real<ssize_t(int, const void*, size_t, Offset)>(#name);            \
    if (!counts(descriptor)) return call(descriptor, data, bytes, at);                           \
    return partial(#name, bytes, [&](size_t part) { return call(descriptor, data, part, at); }); \
  }
KATT_PWRITE(pwrite, off_t)
KATT_PWRITE(pwrite64, off64_t)

ssize_t writev(int descriptor, const iovec* parts, int count) {
  static auto* const call = real<ssize_t(int, const iovec*, int)>("writev");
  if (!counts(descriptor)) return call(descriptor, parts, count);
  return whole("writev", [&] { return call(descriptor, parts, count); });
}

#define KATT_SENDFILE(name, Offset)                                                     \
  ssize_t name(int out, int in, Offset* at, size_t bytes) {                             \
    static auto* const call = real<ssize_t(int, int, Offset*, size_t)>(#name);          \
    if (!counts(out)) return call(out, in, at, bytes);                                  \
    return partial(#name, bytes, [&](size_t part) { return call(out, in, at, part); }); \
  }
KATT_SENDFILE(sendfile, off_t)
KATT_SENDFILE(sendfile64, off64_t)

ssize_t copy_file_range(int in, off64_t* from, int out, off64_t* to, size_t bytes, unsigned flags) {
  static auto* const call =
      real<ssize_t(int, off64_t*, int, off64_t*, size_t, unsigned)>("copy_file_range");
  if (!counts(out)) return call(in, from, out, to, bytes, flags);
  return partial("copy_file_range", bytes,
                 [&](size_t part) { return call(in, from, out, to, part, flags); });
}

#define KATT_ON_DESCRIPTOR(name, parameters, arguments)    \
  int name parameters {                                    \
    static auto* const call = real<int parameters>(#name); \
    if (!counts(descriptor)) return call arguments;        \
    return whole(#name, [&] { return call arguments; });   \
  }
KATT_ON_DESCRIPTOR(fsync, (int descriptor), (descriptor))
KATT_ON_DESCRIPTOR(fdatasync, (int descriptor), (descriptor))
KATT_ON_DESCRIPTOR(ftruncate, (int descriptor, off_t size), (descriptor, size))
KATT_ON_DESCRIPTOR(ftruncate64, (int descriptor, off64_t size), (descriptor, size))
KATT_ON_DESCRIPTOR(fallocate, (int descriptor, int mode, off_t at, off_t bytes),
                   (descriptor, mode, at, bytes))
KATT_ON_DESCRIPTOR(fallocate64, (int descriptor, int mode, off64_t at, off64_t bytes),
                   (descriptor, mode, at, bytes))
KATT_ON_DESCRIPTOR(fchmod, (int descriptor, mode_t mode), (descriptor, mode))

int mkdir(const char* path, mode_t mode) {
  static auto* const call = real<int(const char*, mode_t)>("mkdir");
  if (!counts(path)) return call(path, mode);
  return whole("mkdir", [&] { return call(path, mode); });
}

int rename(const char* from, const char* to) {
  static auto* const call = real<int(const char*, const char*)>("rename");
  if (!counts(to)) return call(from, to);
  return whole("rename", [&] { return call(from, to); });
}

int unlink(const char* path) {
  static auto* const call = real<int(const char*)>("unlink");
  if (!counts(path)) return call(path);
  return whole(
      "unlink", [&] { return call(path); }, false);
}

int rmdir(const char* path) {
  static auto* const call = real<int(const char*)>("rmdir");
  if (!counts(path)) return call(path);
  return whole(
      "rmdir", [&] { return call(path); }, false);
}

}  // extern "C"
