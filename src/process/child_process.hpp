#pragma once

#include <sys/types.h>

#include <cstddef>
#include <functional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>

namespace katt::io::impl {

/// A child process that died, or said what makes no sense, in place of an answer: "ends with
/// SIGSEGV", "takes longer than 2 s".
class ChildGone : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// What a part of an answer may take. Processor time finds a library that runs in circles, however
/// busy the machine is; any time one that waits for what never comes, however slow the disk is.
struct Limits {
  unsigned processor_s = 2;
  unsigned any_s = 60;
};

/// Where a child process puts its answer.
class Reply {
 public:
  Reply(int socket, Limits limits) : socket_(socket), limits_(limits) {}

  /// The next part of the answer; the time limit begins anew.
  void send(std::string_view bytes);
  /// Gives the part that comes next the time that so many bytes take from a slow disk.
  void expect_bytes(std::size_t bytes) const;

 private:
  int socket_;
  Limits limits_;
};

/// A child process (made by fork) that answers requests one after another, for a library that a
/// damaged file can make crash or run for ever: both end the child alone. It costs a fork, and a
/// message each way for a request. The child is single-threaded, whatever the parent is: only what
/// runs no threads of its own may be asked of it.
class ChildProcess {
 public:
  using Answer = std::function<void(std::string_view request, Reply& reply)>;

  /// `answer` runs in the child, which keeps its state from one request to the next.
  explicit ChildProcess(Answer answer, Limits limits = {});
  ~ChildProcess();
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  /// The answer to a request. Throws ChildGone, now and ever after, when the child dies; InputError
  /// and std::runtime_error with the message of what `answer` threw.
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
  std::string gone_;  ///< why there is no child any more
};

/// Runs a function in a child process and throws what it throws, as ChildProcess::ask() does.
void run_in_child(const std::function<void()>& function);

}  // namespace katt::io::impl
