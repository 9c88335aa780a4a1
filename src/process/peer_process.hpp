#pragma once

#include <sys/types.h>

#include <cstddef>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "core/stopwatch.hpp"
#include "process/stop_flag.hpp"

namespace katt::bench {

/// How to start a child that answers lines.
struct PeerLaunch {
  std::filesystem::path program;
  std::vector<std::string> arguments;
  double timeout_s = 300;          ///< a reply that takes longer ends the child
  std::string noun = "the peer";   ///< the child in messages
  bool clean_environment = false;  ///< pass on PATH, LANG, LC_ALL and OMP_… alone
};

/// A child process that answers lines with lines and shares memory with this one. In the child,
/// descriptors 0 and 1 are one socket for the lines, 2 takes the messages of a failure, and 3 is a
/// file to map: the shared memory. The destructor kills the child with all its own children, and
/// reaps it.
///
/// A child with sealed memory has the inputs in 3, which it can only read, and the outputs in 4.
/// Such a child stops itself, with SIGSTOP, behind every reply, and goes on with the next request: it
/// works only while ask() waits for it.
class PeerProcess {
 public:
  /// Bytes of the two files of sealed memory.
  struct Sealed {
    std::size_t inputs = 0;
    std::size_t outputs = 0;
  };

  /// Starts the child. Throws std::runtime_error when it cannot be started.
  PeerProcess(PeerLaunch launch, const StopFlag& stop);
  /// The same with sealed memory, of zeros. Throws std::bad_alloc, too.
  PeerProcess(PeerLaunch launch, Sealed sizes, const StopFlag& stop);
  ~PeerProcess();
  PeerProcess(const PeerProcess&) = delete;
  PeerProcess& operator=(const PeerProcess&) = delete;

  /// Sends a line and waits for the line in reply. Kills the child and throws std::runtime_error
  /// when the child died (the message holds its last words), when it is silent for longer than the
  /// time-out, when it has sent more than one line, or when `stop` is set.
  std::string ask(const std::string& line);

  /// Seconds from the first byte of the last request until its reply was here, and a child with
  /// sealed memory had stopped, by std::chrono::steady_clock.
  [[nodiscard]] double last_ask_s() const { return last_ask_s_; }

  /// Shared memory of at least this many bytes; the old content is lost. Throws std::bad_alloc. Not
  /// for a child with sealed memory.
  std::span<std::byte> share(std::size_t bytes);

  /// The sealed memory, which this process alone writes (inputs) or both do (outputs).
  [[nodiscard]] std::span<std::byte> inputs() const { return inputs_.bytes; }
  [[nodiscard]] std::span<std::byte> outputs() const { return outputs_.bytes; }

  /// True for a child with sealed memory.
  [[nodiscard]] bool is_sealed() const { return inputs_.file >= 0; }
  /// The number for the next request, which no other has.
  [[nodiscard]] int next_number() { return ++number_; }
  /// The child in messages.
  [[nodiscard]] const std::string& noun() const { return launch_.noun; }
  /// The child's process number, −1 after it was killed.
  [[nodiscard]] pid_t id() const { return pid_; }
  [[nodiscard]] bool alive() const { return pid_ > 0; }
  /// Bytes of memory that the child has held at most, and holds now. Throws std::runtime_error when its first thread has
  /// ended, without which the system does not tell.
  [[nodiscard]] std::size_t peak_bytes() const { return status_bytes("VmHWM:"); }
  [[nodiscard]] std::size_t resident_bytes() const { return status_bytes("VmRSS:"); }

 private:
  /// A file in memory, mapped.
  struct Mapped {
    int file = -1;
    std::span<std::byte> bytes;
  };
  void start();
  void wait_for_stop();
  void continue_child();
  void refuse_more();
  [[noreturn]] void give_up(const std::string& reason);
  [[noreturn]] void give_up_dead();
  void kill();
  void release();
  static void unmap(Mapped& mapped);
  [[nodiscard]] std::string last_words() const;
  bool wait_for(short event, const Stopwatch& watch, const std::string& fault);
  [[nodiscard]] std::string read_line();
  [[nodiscard]] std::size_t status_bytes(std::string_view key) const;

  PeerLaunch launch_;
  const StopFlag& stop_;
  pid_t pid_ = -1;
  int status_ = 0;  ///< of the child's end, once it is reaped
  int socket_ = -1;
  int messages_ = -1;  ///< the child's standard error, a file in memory
  Mapped shared_, inputs_, outputs_;
  bool stopped_ = false;
  int number_ = 0;
  double last_ask_s_ = 0;
  std::string unread_;  ///< bytes that came after the last line
};

}  // namespace katt::bench
