#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include <Kokkos_Core.hpp>

#include "core/execution.hpp"
#include "core/status.hpp"
#include "core/thread_slot.hpp"
#include "tile/cuda/cuda_launch.hpp"
#include "tile/vec/flush_subnormals.hpp"

/// Work items that one team each computes, with scratch memory that the team shares: one source for
/// hosts and devices. A functor has a member
///
///   template <class Team> void run(const Team& team, std::int64_t item, float* scratch) const
///
/// On a host a team is one thread and its scratch a slice of the caller's workspace. On a device it
/// is a thread block and its scratch is shared memory: as much as a block may have, while a team of
/// Kokkos 4.5 gets at most 48 KiB. Subnormal results on a host are 0.
namespace katt::tile {

/// Threads of a team on a device.
inline constexpr int team_threads = 128;

#if defined(KATT_HAS_CUDA)

/// A thread block as a team: those members of a Kokkos team that the tile engines use.
class BlockTeam {
 public:
  KOKKOS_INLINE_FUNCTION int team_rank() const {
    KOKKOS_IF_ON_DEVICE((return static_cast<int>(threadIdx.x);))
    KOKKOS_IF_ON_HOST((return 0;))
  }
  KOKKOS_INLINE_FUNCTION int team_size() const { return team_threads; }
  KOKKOS_INLINE_FUNCTION void team_barrier() const { KOKKOS_IF_ON_DEVICE((__syncthreads();)) }
};

/// Blocks that a multiprocessor shall hold: Functor::device_blocks, which bounds the registers;
/// else 0: the compiler chooses.
template <class Functor>
constexpr int device_blocks_of() {
  if constexpr (requires { Functor::device_blocks; }) return Functor::device_blocks;
  return 0;
}

/// scripts/kernel_table reads the threads in the kernel's name.
template <int Threads, class Functor>
__global__ void __launch_bounds__(Threads, device_blocks_of<Functor>())
    run_teams(const __grid_constant__ Functor functor) {
  extern __shared__ __align__(1024) std::byte shared[];
  functor.run(BlockTeam(), static_cast<std::int64_t>(blockIdx.x), reinterpret_cast<float*>(shared));
}

#endif

namespace impl {

template <class Exec>
struct team_of {
  using type = typename Kokkos::TeamPolicy<Exec>::member_type;
};
#if defined(KATT_HAS_CUDA)
template <>
struct team_of<Kokkos::Cuda> {
  using type = BlockTeam;
};
#endif

template <class Exec, class Functor>
struct HostTeams {
  Functor functor;
  std::byte* workspace;
  std::size_t scratch_bytes;
  ThreadSlot<Exec> thread{};

  KOKKOS_INLINE_FUNCTION void operator()(
      const typename Kokkos::TeamPolicy<Exec>::member_type& team) const {
    const FlushSubnormals flushing;
    const auto slot = thread.acquire();
    functor.run(team, static_cast<std::int64_t>(team.league_rank()),
                reinterpret_cast<float*>(workspace + slot * scratch_bytes));
    thread.release(slot);
  }
};

}  // namespace impl

template <class Exec>
using TeamOf = typename impl::team_of<Exec>::type;

/// Workspace of `scratch_bytes` for every team that may run at once: none on a device.
template <class Exec>
std::size_t team_workspace_bytes(const Exec& exec, std::size_t scratch_bytes) {
  if constexpr (is_host_v<Exec>) {
    return static_cast<std::size_t>(exec.concurrency()) * scratch_bytes;
  } else {
    return 0;
  }
}

/// ok, or skipped when a block of the device cannot have this much shared memory; `what` needs it.
template <class Exec>
Status teams_support(const Exec& exec, std::size_t scratch_bytes, const std::string& what) {
#if defined(KATT_HAS_CUDA)
  if constexpr (!is_host_v<Exec>) {
    return cuda_shared_memory_supports(exec, scratch_bytes, what + " ");
  }
#endif
  (void)exec, (void)scratch_bytes, (void)what;
  return Status::ok();
}

/// Launches functor.run() for the items 0 … items − 1 on the instance under `label`; `workspace`:
/// team_workspace_bytes() of it.
template <class Exec, class Functor>
void launch_teams(const Exec& exec, const std::string& label, std::int64_t items,
                  std::size_t scratch_bytes, std::byte* workspace, const Functor& functor) {
  if constexpr (is_host_v<Exec>) {
    Kokkos::TeamPolicy<Exec, Kokkos::Schedule<Kokkos::Dynamic>> policy(exec,
                                                                       static_cast<int>(items), 1);
    policy.set_chunk_size(1);
    Kokkos::parallel_for(label, policy,
                         impl::HostTeams<Exec, Functor>{functor, workspace, scratch_bytes});
  } else {
#if defined(KATT_HAS_CUDA)
    // The limit of a kernel is always that of the device: host threads may launch the same kernel
    // with different tiles at one time.
    cuda_launch_kernel<&run_teams<team_threads, Functor>>(
        exec, label, items, team_threads, scratch_bytes,
        exec.cuda_device_prop().sharedMemPerBlockOptin, functor);
#endif
  }
}

}  // namespace katt::tile
