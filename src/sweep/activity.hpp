#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <mutex>
#include <string>
#include <thread>

namespace katt::bench {

/// Prints the current activity: on a terminal at once, in a line that the next one replaces; in a
/// log after it has taken three seconds.
class Activity {
 public:
  /// Writes to `stream`; writes nothing when it is null.
  explicit Activity(std::FILE* stream);
  ~Activity();
  Activity(const Activity&) = delete;
  Activity& operator=(const Activity&) = delete;

  void begin(const std::string& what);
  /// Call this before anything else writes to the stream.
  void end();

 private:
  void watch();

  std::FILE* stream_;
  bool is_terminal_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::string what_;  ///< not printed yet
  std::chrono::steady_clock::time_point since_;
  bool over_ = false;
  std::thread watcher_;  ///< for a log; sleeps
};

}  // namespace katt::bench
