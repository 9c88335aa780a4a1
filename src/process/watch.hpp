#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>

/// A sweep that outlives what it measures. Nothing in a process survives a kernel that faults: CUDA
/// answers every later call with the same error. So the sweep runs in a child process, which notes in
/// memory that it shares with this one which configuration is at work. When it dies there, this one
/// starts another, which goes on where the file ends and records that configuration as `failed`
/// instead of running it again.
namespace katt::bench {

/// Configurations that ended a process, by their number, and how.
using Faults = std::map<std::uint64_t, std::string>;

/// What the child of watch_over() knows. The functions below are its own; in a process that nobody
/// watches over they do nothing.
namespace watch {

/// Makes this process the child that was started with this descriptor.
void begin(int descriptor);
/// Whether somebody watches over this process.
[[nodiscard]] bool is_on();
/// Whether processes before this one died: the sweep goes on in the file that they wrote.
[[nodiscard]] bool is_continued();
/// What ended them.
[[nodiscard]] Faults faults();

/// Notes that a configuration is at work, from here to the end of the object's life. Its number is
/// not 0. What it leaves behind is looked at once more in the end: a device that it broke ends the
/// process there.
class Work {
 public:
  explicit Work(std::uint64_t number);
  ~Work();
  Work(const Work&) = delete;
  Work& operator=(const Work&) = delete;
};

/// Ends the process with `reason`, as the fault of the configuration at work, where the device
/// answers nothing but errors any more. Else returns.
void end_on_broken_device();

}  // namespace watch

/// Runs this program with these arguments as children, one after the other, until one ends by
/// itself; returns its exit status. Each has the descriptor of the shared memory as a last argument,
/// `--watched=N`. Signals that this process is sent are handed on. Throws std::runtime_error where a
/// child dies and nothing was at work, or more than 100 have died.
[[nodiscard]] int watch_over(std::span<const std::string> arguments,
                             const std::function<void(const std::string&)>& note);

}  // namespace katt::bench
