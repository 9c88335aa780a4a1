#pragma once

#include <cstddef>
#include <string>

/// A cage for code that nobody has read: landlock for files and the network, seccomp for system
/// calls, limits for memory. Linux; docs/candidates.md has its promises. It needs no privilege and
/// cannot be left.
namespace katt::bench {

/// Limits of a process in the cage.
struct SandboxLimits {
  std::size_t data_bytes = 0;  ///< of private writable memory, stacks of threads included
  bool executes = false;       ///< true: it may become another program, which is in the cage, too
};

/// Feature that enter_sandbox() needs and this system lacks: "landlock, which Linux has since
/// 5.13"; empty when nothing is missing.
[[nodiscard]] std::string missing_for_sandbox();

/// Puts the calling process, which must have one thread, into the cage. From now on:
///
///   files      every file can be read and executed as before, none written, made or removed
///   network    no socket can be made; TCP is denied by landlock, too, where the kernel knows it
///   processes  no other process can be started, traced, read or sent a signal; threads can start
///   root       has no more rights than others, but to read
///   memory     at most `data_bytes`, no anonymous memory that is shared or grows
///   the rest   system calls beyond those that numerical code and Python's interpreter use fail
///              with EPERM; no core file; at most 1 MiB to standard error
///
/// Throws std::runtime_error when the system refuses a part: nothing is left out.
void enter_sandbox(const SandboxLimits& limits);

}  // namespace katt::bench
