#pragma once

#include <Kokkos_Core.hpp>

#include "core/execution.hpp"

namespace katt {

/// A number for the host thread that runs a work item, below the concurrency of the execution
/// space: it picks the thread's slice of a workspace. Nothing on a device, where a team has its own
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
