#pragma once

#include <sys/types.h>

#include <vector>

/// Where threads run and whether they sleep: what keeps threads, and programs that take turns, out
/// of each other's way. Linux.
namespace katt::bench {

/// The processors that this process may use, ascending, read once: those of the calling thread and,
/// where the environment has told OpenMP to bind that thread to one of them, all of OpenMP's
/// places.
[[nodiscard]] const std::vector<int>& allowed_processors();

/// Lets the calling thread use all allowed_processors(), whatever OpenMP has bound it to: for a program
/// that it is about to become.
void unbind_this_thread();

/// Lifts a launcher's binding of this process to some processors of its node: a rank that measures
/// alone on it may use all that the job has there. To be called before anything else of this file,
/// and before OpenMP's threads start.
void allow_all_processors();

/// While it lives, each of the first `threads` threads of OpenMP's team is bound to a processor of
/// its own, one on which the system had put them. Threads that are woken on the same processor
/// otherwise share it for a time slice of 4 ms, of which the one that waits for the other spins
/// away its part, while another processor is idle. Binds nothing where there are fewer than two
/// threads, or more than processors.
class Bound {
 public:
  Bound() = default;  ///< binds nothing
  explicit Bound(int threads);
  ~Bound();
  Bound(const Bound&) = delete;
  Bound& operator=(const Bound&) = delete;

  /// Binds threads that took the place of others: OpenMP ends threads that a region does not need,
  /// as a library's may be, and those that it starts later are where the one that starts them is.
  void renew() const;

  /// The processor of each thread; empty where nothing is bound.
  [[nodiscard]] const std::vector<int>& processors() const { return processors_; }

 private:
  std::vector<int> processors_;
  std::vector<std::vector<int>> before_;  ///< what each thread was allowed
};

/// Waits until no thread of a process runs, apart from the calling one. OpenMP's idle threads spin
/// for a while in case there is more to do, libgomp's for about 10 ms, libiomp's for 200. Returns
/// false when one still runs after `limit_s`; a process that is gone rests.
[[nodiscard]] bool wait_for_rest(pid_t process, double limit_s);

}  // namespace katt::bench
