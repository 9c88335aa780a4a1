#pragma once

#include <sys/types.h>

#include <cstddef>
#include <filesystem>
#include <span>
#include <string>

#include "process/stop_flag.hpp"

namespace katt::bench {

/// A child process that answers lines with lines and shares memory with this one. In the child,
/// descriptors 0 and 1 are one socket for the lines, 2 takes the messages of a failure, and 3 is a
/// file to map: the shared memory. The destructor kills the child with all its own children, and
/// reaps it.
class PeerProcess {
 public:
  /// Starts `program` with the argument `name`. Throws std::runtime_error when it cannot be
  /// started.
  PeerProcess(const std::filesystem::path& program, const std::string& name, double timeout_s,
              const StopFlag& stop);
  ~PeerProcess();
  PeerProcess(const PeerProcess&) = delete;
  PeerProcess& operator=(const PeerProcess&) = delete;

  /// Sends a line and waits for the line in reply. Kills the child and throws std::runtime_error
  /// when the child died (the message holds its last words), when it is silent for longer than the
  /// time-out, or when `stop` is set.
  std::string ask(const std::string& line);

  /// Shared memory of at least this many bytes; the old content is lost. Throws std::bad_alloc.
  std::span<std::byte> share(std::size_t bytes);

  /// The child's process number, −1 after it was killed.
  [[nodiscard]] pid_t id() const { return pid_; }
  [[nodiscard]] bool alive() const { return pid_ > 0; }

 private:
  [[noreturn]] void give_up(const std::string& reason);
  void kill();
  void unmap();
  [[nodiscard]] std::string last_words() const;
  [[nodiscard]] std::string read_line();

  double timeout_s_;
  const StopFlag& stop_;
  pid_t pid_ = -1;
  int socket_ = -1;
  int messages_ = -1;  ///< the child's standard error, a file in memory
  int memory_ = -1;
  std::span<std::byte> shared_;
  std::string unread_;  ///< bytes that came after the last line
};

}  // namespace katt::bench
