#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "core/backend.hpp"

namespace katt::bench {

/// Threads that Kokkos::OpenMP has room for (OpenMPTraits::MAX_THREAD_COUNT).
inline constexpr int thread_limit = 512;

/// The operating system's facts about the host; sockets, cores and caches are in
/// machine/topology.hpp. Holds no host or user name.
struct Machine {
  std::string cpu;
  /// "AuthenticAMD 25 17": vendor, family, model; Arm: implementer, architecture, part; may be "".
  std::string cpu_id;
  int cores = 1;  ///< processors that this process may use, thread_limit at most
  std::vector<std::string> isa;
  std::size_t memory_bytes = 0;
  std::string os;
};

/// The machine, read once.
[[nodiscard]] const Machine& machine();

/// One-minute load average.
[[nodiscard]] double load_average();

/// Seconds that the threads of this process have run, and seconds that other programs and other
/// guests of the machine kept them from running. Zeros when the system does not tell.
struct ProcessorTime {
  double ran_s = 0, waited_s = 0;
};
[[nodiscard]] ProcessorTime processor_time();
/// The share of the time between two readings that was lost to others.
[[nodiscard]] double waited_share(const ProcessorTime& before, const ProcessorTime& after);

/// Bytes that a sweep may allocate now: on the host the least of MemAvailable, what the control
/// group leaves and what the limit of the address space leaves (ulimit -v), on a GPU the free
/// memory of the chosen device; minus a twentieth for everything else.
[[nodiscard]] std::size_t available_memory(Backend backend);

/// Name of the processor that runs a backend; the chosen one of several devices.
[[nodiscard]] std::string device_name(Backend backend);

/// device_name(), of a host with what tells apart processors of one name: "AMD EPYC (AuthenticAMD
/// 25 17)".
[[nodiscard]] std::string machine_text(Backend backend);

/// True when software imitates the device of a backend; its name says so ("… interpreter"). Results
/// count there, times do not, and measurements of speed alone are left out.
[[nodiscard]] bool is_emulated(Backend backend);

/// The reason why a backend cannot run here; empty when it can. Needs no Kokkos::initialize.
[[nodiscard]] std::string backend_problem(Backend backend);

/// Number of host threads for a request: 0 means every core; the serial backend has one, a GPU none
/// (0).
[[nodiscard]] int resolved_threads(Backend backend, int threads);

}  // namespace katt::bench
