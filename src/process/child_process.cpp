#include "process/child_process.hpp"

#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdint>
#include <system_error>
#include <utility>

#include "core/error.hpp"

namespace katt::io::impl {

namespace {

/// A message on the socket, in both directions: a head, and as many bytes as it says.
enum class Kind : std::uint64_t { request, part, done, refused, failed };

struct Head {
  Kind kind = Kind::request;
  std::uint64_t size = 0;
};

/// Longest message, and longest answer other than a tensor: a child with damaged memory must not
/// make its parent allocate without end.
constexpr std::size_t max_message_bytes = std::size_t{1} << 26;

/// The pace of a slow disk.
constexpr std::size_t slowest_bytes_s = 20'000'000;

bool write_all(int socket, const char* data, std::size_t size) {
  while (size > 0) {
    // a child that is gone is an error, not a signal that ends the program
    const ssize_t written = ::send(socket, data, size, MSG_NOSIGNAL);
    if (written < 0 && errno != EINTR) return false;
    if (written > 0) {
      data += written;
      size -= static_cast<std::size_t>(written);
    }
  }
  return true;
}

bool write_message(int socket, Kind kind, std::string_view bytes) {
  const Head head{kind, bytes.size()};
  return write_all(socket, reinterpret_cast<const char*>(&head), sizeof head) &&
         write_all(socket, bytes.data(), bytes.size());
}

bool read_all(int socket, void* data, std::size_t size) {
  auto* at = static_cast<char*>(data);
  while (size > 0) {
    const ssize_t got = ::recv(socket, at, size, 0);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    at += got;
    size -= static_cast<std::size_t>(got);
  }
  return true;
}

/// Ends this process, the child, when it exceeds the limits from now on.
void arm(Limits limits) {
  const itimerval processor{.it_interval = {},
                            .it_value = {static_cast<time_t>(limits.processor_s), 0}};
  ::setitimer(ITIMER_PROF, &processor, nullptr);
  ::alarm(limits.any_s);
}

/// The wait for a request has no limit.
void disarm() {
  const itimerval none{};
  ::setitimer(ITIMER_PROF, &none, nullptr);
  ::alarm(0);
}

/// Sets up the child: no core file, no message on stderr, no handler of the parent.
void prepare_to_crash() {
  const rlimit none{0, 0};
  ::setrlimit(RLIMIT_CORE, &none);
  const int silent = ::open("/dev/null", O_WRONLY | O_CLOEXEC);
  if (silent >= 0) ::dup2(silent, STDERR_FILENO);
  for (const int number : {SIGALRM, SIGPROF, SIGSEGV, SIGBUS, SIGABRT, SIGFPE, SIGILL}) {
    ::signal(number, SIG_DFL);
  }
}

[[noreturn]] void serve(const ChildProcess::Answer& answer, int socket, Limits limits) {
  prepare_to_crash();
  Head head;
  std::string request;
  while (read_all(socket, &head, sizeof head)) {
    request.resize(head.size);
    if (!read_all(socket, request.data(), request.size())) break;
    Kind outcome = Kind::failed;
    std::string message;
    try {
      arm(limits);
      Reply reply(socket, limits);
      answer(request, reply);
      outcome = Kind::done;
    } catch (const InputError& error) {
      outcome = Kind::refused;
      message = error.what();
    } catch (const std::exception& error) {
      message = error.what();
    }
    disarm();
    if (!write_message(socket, outcome, message)) break;
  }
  ::_exit(0);  // without the parent's exit handlers
}

/// "ends with SIGSEGV", from waitpid's status.
std::string ending(int status, Limits limits) {
  if (!WIFSIGNALED(status)) return "ends its process";
  const int number = WTERMSIG(status);
  if (number == SIGPROF || number == SIGALRM) {
    const unsigned limit_s = number == SIGPROF ? limits.processor_s : limits.any_s;
    return "takes longer than " + std::to_string(limit_s) + " s";
  }
  return "ends with " + signal_text(number);
}

}  // namespace

void Reply::send(std::string_view bytes) {
  if (!write_message(socket_, Kind::part, bytes)) ::_exit(1);  // nobody waits for the rest
  arm(limits_);
}

void Reply::expect_bytes(std::size_t bytes) const {
  const auto more_s = static_cast<unsigned>(bytes / slowest_bytes_s);
  arm({limits_.processor_s + more_s, limits_.any_s + more_s});
}

ChildProcess::ChildProcess(Answer answer, Limits limits) : limits_(limits) {
  std::array<int, 2> ends{};
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0) {
    throw std::system_error(errno, std::generic_category(), "cannot make a socket");
  }
  pid_ = ::fork();
  if (pid_ == 0) {
    ::close(ends[0]);
    serve(answer, ends[1], limits);
  }
  const int fork_error = errno;
  ::close(ends[1]);
  socket_ = ends[0];
  if (pid_ < 0) {
    ::close(socket_);
    throw std::system_error(fork_error, std::generic_category(), "cannot start a process");
  }
}

ChildProcess::~ChildProcess() { (void)end(); }

std::string ChildProcess::end() {
  if (pid_ < 0) return gone_;
  ::close(socket_);
  // it may be in the middle of an answer, or hold something that another process waits for
  ::kill(pid_, SIGKILL);
  int status = 0;
  while (::waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
  }
  pid_ = -1;
  return ending(status, limits_);
}

void ChildProcess::give_up(const std::string& reason) {
  gone_ = reason;
  throw ChildGone(reason);
}

void ChildProcess::exchange(std::string_view request, const Place& place) {
  if (pid_ < 0) throw ChildGone(gone_);
  if (!write_message(socket_, Kind::request, request)) give_up(end());
  while (true) {
    Head head;
    if (!read_all(socket_, &head, sizeof head)) give_up(end());
    if (head.kind == Kind::part) {
      std::byte* out = place(head.size);
      if (out == nullptr && head.size > 0) break;
      if (!read_all(socket_, out, head.size)) give_up(end());
      continue;
    }
    if (head.size > max_message_bytes) break;
    std::string message(head.size, '\0');
    if (!read_all(socket_, message.data(), message.size())) give_up(end());
    if (head.kind == Kind::done) return;
    if (head.kind == Kind::refused) throw InputError(message);
    if (head.kind == Kind::failed) throw std::runtime_error(message);
    break;
  }
  (void)end();
  give_up("gives an answer that makes no sense");
}

std::string ChildProcess::ask(std::string_view request) {
  std::string answer;
  exchange(request, [&](std::size_t bytes) -> std::byte* {
    if (bytes > max_message_bytes - answer.size()) return nullptr;
    const std::size_t at = answer.size();
    answer.resize(at + bytes);
    return reinterpret_cast<std::byte*>(answer.data() + at);
  });
  return answer;
}

void ChildProcess::ask(std::string_view request, std::span<std::byte> out) {
  std::size_t filled = 0;
  exchange(request, [&](std::size_t bytes) -> std::byte* {
    if (bytes > out.size() - filled) return nullptr;
    return out.data() + std::exchange(filled, filled + bytes);
  });
  if (filled == out.size()) return;
  (void)end();
  give_up("gives an answer that makes no sense");
}

std::string signal_text(int number) {
  const char* name = sigabbrev_np(number);
  return name != nullptr ? "SIG" + std::string(name) : "signal " + std::to_string(number);
}

void run_in_child(const std::function<void()>& function, std::size_t bytes) {
  ChildProcess child([&](std::string_view, Reply& reply) {
    reply.expect_bytes(bytes);
    function();
  });
  (void)child.ask("");
}

}  // namespace katt::io::impl
