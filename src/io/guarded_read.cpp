#include "io/guarded_read.hpp"

#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <string_view>
#include <system_error>

namespace katt::io::impl {

namespace {

enum ExitCode { exit_done = 0, exit_failed = 1 };

/// In the child: no core file, no message on stderr, no handler of the parent's, an end in time.
void prepare_to_crash(unsigned limit_s) {
  const rlimit none{0, 0};
  ::setrlimit(RLIMIT_CORE, &none);
  const int silent = ::open("/dev/null", O_WRONLY | O_CLOEXEC);
  if (silent >= 0) ::dup2(silent, STDERR_FILENO);
  for (const int number : {SIGALRM, SIGSEGV, SIGBUS, SIGABRT, SIGFPE}) ::signal(number, SIG_DFL);
  ::alarm(limit_s);
}

bool write_all(int descriptor, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(descriptor, bytes.data(), bytes.size());
    if (written < 0 && errno != EINTR) return false;
    if (written > 0) bytes.remove_prefix(static_cast<std::size_t>(written));
  }
  return true;
}

std::string read_all(int descriptor) {
  std::string bytes;
  std::array<char, 65536> buffer{};
  while (true) {
    const ssize_t got = ::read(descriptor, buffer.data(), buffer.size());
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return bytes;
    bytes.append(buffer.data(), static_cast<std::size_t>(got));
  }
}

[[noreturn]] void run_child(const std::function<std::optional<std::string>()>& read,
                            unsigned limit_s, int out) {
  prepare_to_crash(limit_s);
  ExitCode code = exit_failed;
  try {
    const std::optional<std::string> bytes = read();
    if (bytes && write_all(out, *bytes)) code = exit_done;
  } catch (...) {
    code = exit_failed;
  }
  ::_exit(code);  // without the parent's exit handlers
}

}  // namespace

std::optional<std::string> read_guarded(const std::function<std::optional<std::string>()>& read,
                                        unsigned limit_s) {
  std::array<int, 2> pipe{};
  if (::pipe2(pipe.data(), O_CLOEXEC) != 0) {
    throw std::system_error(errno, std::generic_category(), "cannot make a pipe");
  }
  const pid_t child = ::fork();
  if (child == 0) run_child(read, limit_s, pipe[1]);
  const int fork_error = errno;
  ::close(pipe[1]);
  std::string bytes;
  int status = 0;
  if (child > 0) {
    bytes = read_all(pipe[0]);
    while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
    }
  }
  ::close(pipe[0]);
  if (child < 0) {
    throw std::system_error(fork_error, std::generic_category(), "cannot start a process");
  }
  if (!WIFEXITED(status) || WEXITSTATUS(status) != exit_done) return std::nullopt;
  return bytes;
}

}  // namespace katt::io::impl
