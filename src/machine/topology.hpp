#pragma once

#include <cstddef>
#include <string>
#include <vector>

/// The host's sockets, NUMA nodes, cores and caches, as hwloc finds them.
namespace katt::bench {

/// A data cache as the first core sees it.
struct CacheLevel {
  int level = 0;          ///< 1, 2, 3
  std::size_t bytes = 0;  ///< bytes of one instance
  int shared_by = 1;      ///< processors that share the instance
};

/// A processor, as the system numbers them: a hardware thread of a core.
struct Processor {
  int id = 0;
  int socket = 0;  ///< sockets, nodes and cores are numbered from 0 in the order of the topology
  int node = 0;    ///< NUMA node whose memory is the nearest
  int core = 0;    ///< unique over all sockets
  friend bool operator==(const Processor&, const Processor&) = default;
};

/// The part of a host that this process' control group leaves to it.
struct Topology {
  /// Neighbours share caches: the threads of a core are side by side, cores of a node, and so on.
  std::vector<Processor> processors;
  std::vector<CacheLevel> caches;  ///< by level; missing levels are left out

  [[nodiscard]] int sockets() const;
  [[nodiscard]] int nodes() const;
  [[nodiscard]] int cores() const;
  /// Bytes of one instance of a cache level; 0 when the level does not exist.
  [[nodiscard]] std::size_t cache_bytes(int level) const;
};

/// This host, read at the first call.
[[nodiscard]] const Topology& topology();

/// A host in hwloc's words, "pack:2 numa:1 l3:1 core:8 pu:2", for tests. Throws
/// std::invalid_argument when hwloc does not understand it.
[[nodiscard]] Topology synthetic_topology(const std::string& description);

/// A processor for each of `settled.size()` threads, among those that are allowed. `settled` are
/// the processors on which the system has put the threads: it knows which are idle. A thread keeps
/// such a processor unless another thread has its core already; it then moves to a core that has
/// none, and to a second hardware thread of a core only when every core has a thread. Threads are
/// numbered along the topology, so that neighbours share caches and memory, the first threads of
/// all cores before the second ones. Throws std::invalid_argument with fewer processors than
/// threads.
[[nodiscard]] std::vector<int> placement(const Topology& topology, const std::vector<int>& allowed,
                                         const std::vector<int>& settled);

/// "2 sockets × 8 cores × 2 threads, 2 NUMA nodes"; "2 sockets, 11 cores, 20 threads" where they
/// are not alike.
[[nodiscard]] std::string topology_text(const Topology& topology);
/// "L1 32 KiB, L2 1 MiB, L3 32 MiB shared by 8": the caches of the first core.
[[nodiscard]] std::string caches_text(const Topology& topology);
/// A line for each NUMA node when there are several: "node 1: socket 1, processors 8-15,24-31".
[[nodiscard]] std::vector<std::string> node_lines(const Topology& topology);

}  // namespace katt::bench
