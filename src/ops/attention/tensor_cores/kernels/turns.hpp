#pragma once

#include <Kokkos_Core.hpp>

namespace katt::attention::impl {

/// The computing warpgroups of a block begin their products alternately, 0, 1, 0, 1, …, so that the
/// softmax of one runs beside the products of the others (ping-pong; Shah et al. 2024,
/// FlashAttention-3, arXiv:2407.08608, section 3.1). A turn is one phase of a named barrier,
/// FirstBarrier + group, that one group waits at and the one before it only arrives at.
template <int Groups, int FirstBarrier>
struct Turns {
  static constexpr bool taken = Groups > 1;
  static constexpr int threads = 2 * 128;  ///< of two warpgroups
  int group;

  /// `first`: the first turn of the group; group 0 begins without a wait.
  template <class Block>
  KOKKOS_INLINE_FUNCTION void wait(const Block& block, bool first) const {
    if (taken && (group > 0 || !first)) block.barrier_group(FirstBarrier + group, threads);
  }
  template <class Block>
  KOKKOS_INLINE_FUNCTION void pass(const Block& block) const {
    const int next = group + 1 == Groups ? 0 : group + 1;
    if (taken) block.barrier_group_arrive(FirstBarrier + next, threads);
  }
  /// After at least one turn: takes the last one that the last group passed on, so that no barrier
  /// is left with arrivals.
  template <class Block>
  KOKKOS_INLINE_FUNCTION void end(const Block& block) const {
    if (taken && group == 0) block.barrier_group(FirstBarrier, threads);
  }
};

}  // namespace katt::attention::impl
