#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace katt::memory {

/// Bytes of one Kokkos memory space ("Host", "Cuda", …), for each device separately, as Kokkos' own
/// allocation callbacks report them.
struct SpaceUsage {
  std::string space;           ///< name of the memory space
  int device = -1;             ///< device that owns the memory; -1: the host
  std::size_t live_bytes = 0;  ///< allocated and not yet freed
  std::size_t peak_bytes = 0;  ///< largest live_bytes since install()
};

/// Bytes by kind of memory.
struct Bytes {
  std::size_t host = 0;    ///< "Host", and host memory pinned for a device ("CudaHostPinned")
  std::size_t device = 0;  ///< every other space: "Cuda", and managed memory ("CudaUVM")

  [[nodiscard]] std::size_t total() const { return host + device; }  ///< bytes of both
  friend Bytes operator+(Bytes a, Bytes b) { return {a.host + b.host, a.device + b.device}; }
  friend Bytes operator-(Bytes a, Bytes b) { return {a.host - b.host, a.device - b.device}; }
  friend bool operator==(Bytes, Bytes) = default;
};

/// True when a memory space of this name belongs to the host.
[[nodiscard]] bool is_host_space(std::string_view name);

/// Registers the allocation callbacks (Kokkos Tools) and begins to count, and to request huge pages
/// for large allocations of the host (huge_pages.hpp). Call once, after Kokkos::initialize; later
/// calls do nothing. Callbacks of a tool that was loaded before still run. Thread safe.
void install();

/// Usage of every space seen so far, on every device.
[[nodiscard]] std::vector<SpaceUsage> usage();

/// Live bytes now, by the kind of memory.
[[nodiscard]] Bytes live();
/// Live bytes over all spaces.
[[nodiscard]] std::size_t live_bytes();

/// Measures the allocations made while the object lives: the peak of the host and of every device,
/// beyond the bytes that were live there when the scope began. The host and the devices cannot lend
/// each other memory, so each has a peak of its own, and a machine needs their sum. Scopes nest;
/// each has its own peaks.
class Scope {
 public:
  /// Begins: live bytes from now on count.
  Scope();
  ~Scope();
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;

  /// Live bytes when the scope began.
  [[nodiscard]] std::size_t base_bytes() const;
  /// Peaks of (live − base) so far; never negative. The peak of several devices is the sum of their
  /// peaks.
  [[nodiscard]] Bytes peak() const;
  /// The sum of the peaks.
  [[nodiscard]] std::size_t peak_bytes() const { return peak().total(); }

 private:
  friend struct ScopeAccess;
  using ByPlace = std::vector<std::size_t>;  ///< the host, device 0, device 1 …
  ByPlace base_;
  ByPlace peak_;
};

/// While the object lives, allocations raise no peak; what is left of them at its end does.
class Aside {
 public:
  /// Begins.
  Aside();
  ~Aside();
  Aside(const Aside&) = delete;
  Aside& operator=(const Aside&) = delete;
};

}  // namespace katt::memory
