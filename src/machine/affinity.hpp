#pragma once

#include <sys/types.h>

#include <cstddef>
#include <functional>
#include <vector>

/// Binds threads to processors and watches whether they sleep, so that threads and interleaved
/// programs do not disturb each other. Linux.
namespace katt::bench {

/// The processors that this process may use, ascending, read once: the processors of the calling
/// thread and, when the environment tells OpenMP to bind that thread to one of them, all of
/// OpenMP's places.
[[nodiscard]] const std::vector<int>& allowed_processors();

/// Lets the calling thread use all allowed_processors(), even when OpenMP has bound it. A thread
/// calls this before it becomes another program.
void unbind_this_thread();

/// Removes a launcher's binding of this process to some processors of its node: a rank that
/// measures alone on a node may use all processors of the job there. Call it before anything else
/// of this file, and before OpenMP's threads start.
void allow_all_processors();

/// Calls f(thread) on each of `threads` threads of OpenMP's team; on the calling thread alone where
/// there is no OpenMP.
void on_each_thread(int threads, const std::function<void(std::size_t)>& f);

/// Binds each of the first `threads` threads of OpenMP's team to a processor of its own while the
/// object lives: to the processors on which the system has put the threads, but to cores without
/// another thread first, and in the order of the topology (placement() in machine/topology.hpp).
/// Unbound threads that wake on the same processor share it for a time slice of 4 ms: one thread
/// waits for the other by spinning, while another processor is idle. Binds nothing when there are
/// fewer than two threads, or more threads than processors.
class Bound {
 public:
  Bound() = default;  ///< binds nothing
  explicit Bound(int threads);
  ~Bound();
  Bound(const Bound&) = delete;
  Bound& operator=(const Bound&) = delete;

  /// Binds threads that OpenMP started later. OpenMP ends threads that a region (of a library, say)
  /// does not need, and starts new ones on the processor of the starting thread.
  void renew() const;

  /// The processor of each thread; empty when nothing is bound.
  [[nodiscard]] const std::vector<int>& processors() const { return processors_; }

 private:
  std::vector<int> processors_;
  std::vector<std::vector<int>> before_;  ///< the processors that each thread was allowed
};

/// Lets each thread of a Bound, of one that lives, touch its part of memory that nothing has
/// touched yet: the system then takes the pages from the memory of that thread's NUMA node. The
/// parts are equal and in the order of the threads, as those of a kernel that gives its threads
/// equal blocks of rows. Changes no value. Does nothing where there is one node, nothing is bound,
/// or the memory has fewer than two pages a thread.
void touch_on_nodes(const void* data, std::size_t bytes);
/// The same by `threads` threads, on any machine.
void touch_in_parts(int threads, const void* data, std::size_t bytes);

/// Waits until no thread of a process runs, apart from the calling one. OpenMP's idle threads spin
/// for a while in case more work comes: about 10 ms in libgomp, 200 ms in libiomp. Returns false
/// when a thread still runs after `limit_s`; true for a process that is gone.
[[nodiscard]] bool wait_for_rest(pid_t process, double limit_s);

}  // namespace katt::bench
