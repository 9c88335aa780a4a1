#pragma once

#include <sys/types.h>

#include <cstddef>
#include <functional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>

namespace katt::io::impl {

/// A child process died, or sent nonsense, in place of an answer: "ends with SIGSEGV", "takes
/// longer than 2 s".
class ChildGone : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Time limits for a part of an answer. The limit of processor time stops a library that runs in
/// circles, even on a busy machine; the limit of wall-clock time stops one that waits for ever,
/// even on a slow disk.
struct Limits {
  unsigned processor_s = 2;
  unsigned any_s = 60;
};

/// The place where a child process puts its answer.
class Reply {
 public:
  Reply(int socket, Limits limits) : socket_(socket), limits_(limits) {}

  /// The next part of the answer; the time limit begins again.
  void send(std::string_view bytes);
  /// Extends the limit of the next part by the time that a slow disk needs for this many bytes.
  void expect_bytes(std::size_t bytes) const;

 private:
  int socket_;
  Limits limits_;
};

/// A child process (made by fork) that answers requests one after another, for a library that a
/// damaged file can make crash or run for ever: both end the child alone. It costs a fork, and a
/// message each way for a request. The child is single-threaded, even when the parent is not:
/// `answer` must run no threads of its own.
class ChildProcess {
 public:
  using Answer = std::function<void(std::string_view request, Reply& reply)>;

  /// The child runs `answer` and keeps its state from one request to the next.
  explicit ChildProcess(Answer answer, Limits limits = {});
  ~ChildProcess();
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  /// The answer to a request. Throws ChildGone, now and at every later call, when the child dies;
  /// InputError and std::runtime_error with the message that `answer` threw.
  [[nodiscard]] std::string ask(std::string_view request);
  /// The same for an answer of exactly `out.size()` bytes.
  void ask(std::string_view request, std::span<std::byte> out);

 private:
  using Place = std::function<std::byte*(std::size_t bytes)>;
  void exchange(std::string_view request, const Place& place);
  [[noreturn]] void give_up(const std::string& reason);
  [[nodiscard]] std::string end();

  pid_t pid_ = -1;
  int socket_ = -1;
  Limits limits_;
  std::string gone_;  ///< the reason why the child has ended
};

/// "SIGSEGV" and so on.
[[nodiscard]] std::string signal_text(int number);

/// Runs a function in a child process and throws what it throws, as ChildProcess::ask() does; it has more time for
/// files of so many bytes.
void run_in_child(const std::function<void()>& function, std::size_t bytes = 0);

}  // namespace katt::io::impl
