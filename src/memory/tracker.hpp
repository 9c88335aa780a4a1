#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace katt::memory {

/// Bytes of one Kokkos memory space ("Host", "Cuda", …) as Kokkos' own allocation callbacks report
/// them.
struct SpaceUsage {
  std::string space;
  std::size_t live_bytes = 0;
  std::size_t peak_bytes = 0;  ///< largest live_bytes since install()
};

/// Registers the allocation callbacks (Kokkos Tools) and begins to count. Call once, after
/// Kokkos::initialize; later calls do nothing. Callbacks of a tool that was loaded before are still
/// called. Thread safe.
void install();

/// Usage of every space seen so far.
[[nodiscard]] std::vector<SpaceUsage> usage();

/// Live bytes over all spaces.
[[nodiscard]] std::size_t live_bytes();

/// Measures the allocations made while it lives: the peak over all memory spaces beyond what was
/// live when it began. Scopes nest; each has its own peak.
class Scope {
 public:
  Scope();
  ~Scope();
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;

  /// Live bytes when the scope began.
  [[nodiscard]] std::size_t base_bytes() const { return base_; }
  /// Peak of (live − base) so far, in bytes; never negative.
  [[nodiscard]] std::size_t peak_bytes() const;

 private:
  friend struct ScopeAccess;
  std::size_t base_ = 0;
  std::size_t peak_ = 0;
};

}  // namespace katt::memory
