#pragma once

#include <Kokkos_Core.hpp>

#if defined(__SSE__)
#include <xmmintrin.h>
#endif

namespace katt::tile {

/// While it lives, results of this host thread that are subnormal become 0: Intel's processors take
/// up to 60 ns for an instruction that makes or reads one. No more than a hint: nothing on a device,
/// or on processors of another kind.
class FlushSubnormals {
 public:
#if defined(__SSE__)
  KOKKOS_FORCEINLINE_FUNCTION FlushSubnormals() {
    KOKKOS_IF_ON_HOST((before_ = _mm_getcsr(); _mm_setcsr(before_ | _MM_FLUSH_ZERO_ON);))
  }
  KOKKOS_FORCEINLINE_FUNCTION ~FlushSubnormals() { KOKKOS_IF_ON_HOST((_mm_setcsr(before_);)) }
#endif
  FlushSubnormals(const FlushSubnormals&) = delete;
  FlushSubnormals& operator=(const FlushSubnormals&) = delete;

 private:
  unsigned before_ = 0;
};

}  // namespace katt::tile
