#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>

/// A sweep that survives a fault of a kernel that it measures. No process survives a kernel that
/// faults: CUDA answers every later call with the same error. So the sweep runs in a child process,
/// which writes the running configuration into memory that it shares with this process. When the
/// child dies there, this process starts another child, which continues at the end of the file and
/// records that configuration as `failed` instead of running it again. A kernel that never ends
/// needs a time limit: past it this process kills the child.
namespace katt::bench {

/// Configurations that ended a process, by their number, and how.
using Faults = std::map<std::uint64_t, std::string>;

/// The state of the child of watch_over(). The functions below work in that child; in an unwatched
/// process they do nothing.
namespace watch {

/// Makes this process the child that was started with this descriptor.
void begin(int descriptor);
/// True when another process watches over this one.
[[nodiscard]] bool is_on();
/// True when processes before this one died: the sweep continues in the file that they wrote.
[[nodiscard]] bool is_continued();
/// The configurations that ended them.
[[nodiscard]] Faults faults();

/// Marks a configuration as running while the object lives; the time limit counts from here. The
/// number is 0 for one that cannot be the fault, and is not limited. The destructor
/// checks the device once more: a device that the configuration broke ends the process there.
class Work {
 public:
  explicit Work(std::uint64_t number);
  ~Work();
  Work(const Work&) = delete;
  Work& operator=(const Work&) = delete;
};

/// Ends the process with `reason`, as the fault of the running configuration, when the device
/// answers with errors only. Returns otherwise.
void end_on_broken_device();

}  // namespace watch

/// Runs this program with these arguments as children, one after the other, until one ends by
/// itself; returns its exit status. Each child gets the descriptor of the shared memory as its last
/// argument, `--watched=N`. This process passes its signals on. It kills a child whose Work lives
/// longer than `limit_s` seconds; 0: no limit. Throws std::runtime_error when a child dies while no
/// configuration runs, or when more than 100 have died.
[[nodiscard]] int watch_over(std::span<const std::string> arguments, double limit_s,
                             const std::function<void(const std::string&)>& note);

}  // namespace katt::bench
