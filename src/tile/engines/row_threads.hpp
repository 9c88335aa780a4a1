#pragma once

#include <Kokkos_Core.hpp>

#include "core/execution.hpp"
#include "tile/cuda/fragments.hpp"
#include "tile/engines/row_blocks.hpp"

namespace katt::tile {

/// How the threads of a team share the work of RowEngine (tile/engines/row_engine.hpp): on a device a
/// warp has a row, on a host one thread has all.
template <class Exec>
class RowThreads {
 public:
  /// Threads that share a row.
  static constexpr int of_row = is_host_v<Exec> ? 1 : static_cast<int>(warp_size);

  KOKKOS_FORCEINLINE_FUNCTION RowThreads(int rank, int size) : rank_(rank), size_(size) {}

  KOKKOS_FORCEINLINE_FUNCTION int rank() const { return rank_; }
  KOKKOS_FORCEINLINE_FUNCTION int size() const { return size_; }
  /// The place among the threads of a row.
  KOKKOS_FORCEINLINE_FUNCTION int place() const { return rank_ % of_row; }

  template <class F>
  KOKKOS_FORCEINLINE_FUNCTION void for_each_item(int count, const F& f) const {
    for (int item = rank_; item < count; item += size_) f(item);
  }

  /// Calls f(r) for the rows, on a device in all threads of a warp.
  template <class F>
  KOKKOS_FORCEINLINE_FUNCTION void for_each_row(int rows, const F& f) const {
    for (int r = rank_ / of_row; r < rows; r += size_ / of_row) f(r);
  }

  /// Calls f(a, b) for all a below `outer` and b below `inner`, a pair a thread.
  template <class F>
  KOKKOS_FORCEINLINE_FUNCTION void for_each_pair(int outer, int inner, const F& f) const {
    if constexpr (is_host_v<Exec>) {
      for (int a = 0; a < outer; ++a) {
        for (int b = 0; b < inner; ++b) f(a, b);
      }
    } else {
      for_each_item(outer * inner, [&](int item) { f(item / inner, item % inner); });
    }
  }

  /// Calls f(d, part) for `count` elements of a row, shared by the threads of the row; on a host two
  /// vectors at a time.
  template <class F>
  KOKKOS_FORCEINLINE_FUNCTION void for_each_part(int count, const F& f) const {
    if constexpr (is_host_v<Exec>) {
      row_blocks::for_each_part<lanes_v<Exec>, true>(count, f);
    } else {
      for (int d = place(); d < count; d += of_row) f(d, WholeVector{});
    }
  }

 private:
  int rank_, size_;
};

}  // namespace katt::tile
