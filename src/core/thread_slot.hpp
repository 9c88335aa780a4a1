#pragma once

#include <cstddef>

#include <Kokkos_Core.hpp>

#include "core/execution.hpp"

namespace katt {

/// Bytes from one host thread's slice of a workspace to the next thread's, for slices of `bytes`.
/// Slices are 32 KiB apart: a processor prefetches beyond the end of the slice that a thread reads,
/// and lines that the next thread is about to write would travel from core to core
/// (docs/performance.md, "Slices of threads").
constexpr std::size_t thread_slice_bytes(std::size_t bytes) {
  constexpr std::size_t line = 64;
  constexpr std::size_t gap = std::size_t{32} << 10;
  return bytes == 0 ? 0 : (bytes + line - 1) / line * line + gap;
}

/// A number for the host thread that runs a work item, below the concurrency of the execution
/// space: it selects the thread's slice of a workspace. 0 on a device, where a team has its own
/// scratch.
template <class Exec, bool OnHost = is_host_v<Exec>>
class ThreadSlot {
 public:
  KOKKOS_INLINE_FUNCTION int acquire() const { return token_.acquire(); }
  KOKKOS_INLINE_FUNCTION void release(int slot) const { token_.release(slot); }

 private:
  Kokkos::Experimental::UniqueToken<Exec, Kokkos::Experimental::UniqueTokenScope::Global> token_;
};

template <class Exec>
class ThreadSlot<Exec, false> {};

}  // namespace katt
