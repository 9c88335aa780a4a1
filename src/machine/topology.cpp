#include "machine/topology.hpp"

#include <hwloc.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <memory>
#include <set>
#include <stdexcept>
#include <type_traits>

#include "core/text.hpp"

namespace katt::bench {
namespace {

struct Destroy {
  void operator()(hwloc_topology_t topology) const { hwloc_topology_destroy(topology); }
};
using Handle = std::unique_ptr<std::remove_pointer_t<hwloc_topology_t>, Destroy>;

Handle load(const std::string& synthetic) {
  // Where sysfs is missing, as in a bare chroot, there is no topology; hwloc would print that.
  setenv("HWLOC_HIDE_ERRORS", "2", 0);
  hwloc_topology_t made = nullptr;
  if (hwloc_topology_init(&made) != 0) return {};
  Handle handle(made);
  if (!synthetic.empty() && hwloc_topology_set_synthetic(made, synthetic.c_str()) != 0) return {};
  // This part of hwloc would move the calling thread from processor to processor; sysfs tells the same.
  (void)hwloc_topology_set_components(made, HWLOC_TOPOLOGY_COMPONENTS_FLAG_BLACKLIST, "x86");
  if (hwloc_topology_load(made) != 0) return {};
  return handle;
}

int number_of(hwloc_obj_t object) { return static_cast<int>(object->logical_index); }

int node_of(hwloc_topology_t topology, hwloc_obj_t processor) {
  const int first = hwloc_bitmap_first(processor->nodeset);
  if (first < 0) return 0;
  const hwloc_obj_t node =
      hwloc_get_numanode_obj_by_os_index(topology, static_cast<unsigned>(first));
  return node == nullptr ? 0 : number_of(node);
}

Topology described(hwloc_topology_t topology) {
  Topology found;
  hwloc_obj_t processor = nullptr;
  while ((processor = hwloc_get_next_obj_by_type(topology, HWLOC_OBJ_PU, processor)) != nullptr) {
    const hwloc_obj_t core = hwloc_get_ancestor_obj_by_type(topology, HWLOC_OBJ_CORE, processor);
    const hwloc_obj_t socket =
        hwloc_get_ancestor_obj_by_type(topology, HWLOC_OBJ_PACKAGE, processor);
    found.processors.push_back({.id = static_cast<int>(processor->os_index),
                                .socket = socket == nullptr ? 0 : number_of(socket),
                                .node = node_of(topology, processor),
                                .core = number_of(core == nullptr ? processor : core)});
  }
  for (hwloc_obj_t object = hwloc_get_obj_by_type(topology, HWLOC_OBJ_PU, 0); object != nullptr;
       object = object->parent) {
    if (hwloc_obj_type_is_dcache(object->type) == 0 || object->attr->cache.size == 0) continue;
    // Also processors that the control group hides use the cache.
    found.caches.push_back(
        {.level = static_cast<int>(object->attr->cache.depth),
         .bytes = object->attr->cache.size,
         .shared_by = std::max(1, hwloc_bitmap_weight(object->complete_cpuset))});
  }
  return found;
}

int count(const Topology& topology, int Processor::*member) {
  std::set<int> values;
  for (const Processor& processor : topology.processors) values.insert(processor.*member);
  return static_cast<int>(values.size());
}

std::string counted(int number, const std::string& one) {
  return std::to_string(number) + " " + one + (number == 1 ? "" : "s");
}

/// "0-2,16"
std::string list_text(std::vector<int> numbers) {
  std::ranges::sort(numbers);
  std::vector<std::string> parts;
  for (std::size_t i = 0; i < numbers.size();) {
    std::size_t end = i + 1;
    while (end < numbers.size() && numbers[end] == numbers[end - 1] + 1) ++end;
    parts.push_back(std::to_string(numbers[i]) +
                    (end - i > 1 ? "-" + std::to_string(numbers[end - 1]) : ""));
    i = end;
  }
  return join(parts, ",");
}

/// The processors that threads may take.
class Places {
 public:
  Places(const Topology& topology, const std::vector<int>& allowed) {
    const std::set<int> wanted(allowed.begin(), allowed.end());
    for (const Processor& processor : topology.processors) {
      if (wanted.contains(processor.id)) places_.push_back({.processor = processor});
    }
    // A processor that hwloc does not know counts as a core of its own.
    for (const int id : wanted) {
      const auto known = std::ranges::find(topology.processors, id, &Processor::id);
      if (known == topology.processors.end())
        places_.push_back({.processor = {.id = id, .core = -1 - id}});
    }
  }

  /// Takes a processor whose core has no thread yet.
  bool take(int id) {
    const auto place =
        std::ranges::find(places_, id, [](const Place& one) { return one.processor.id; });
    if (place == places_.end() || load_[place->processor.core] > 0) return false;
    take(*place);
    return true;
  }

  /// Takes the first processor of the cores with the fewest threads.
  void take_any() {
    Place* best = nullptr;
    for (Place& place : places_) {
      if (place.taken) continue;
      if (best == nullptr || load_[place.processor.core] < load_[best->processor.core]) {
        best = &place;
      }
    }
    if (best == nullptr) throw std::invalid_argument("more threads than processors");
    take(*best);
  }

  /// The taken processors: the first threads of all cores, then the second ones.
  [[nodiscard]] std::vector<int> taken() const {
    std::map<int, int> seen;  // taken processors of each core so far
    std::vector<std::pair<int, int>> order;
    for (const Place& place : places_) {
      if (place.taken) order.emplace_back(seen[place.processor.core]++, place.processor.id);
    }
    std::ranges::stable_sort(order, {}, &std::pair<int, int>::first);
    std::vector<int> list;
    for (const auto& [sibling, id] : order) list.push_back(id);
    return list;
  }

 private:
  struct Place {
    Processor processor;
    bool taken = false;
  };
  void take(Place& place) {
    place.taken = true;
    ++load_[place.processor.core];
  }

  std::vector<Place> places_;
  std::map<int, int> load_;  ///< threads of each core
};

}  // namespace

int Topology::sockets() const { return count(*this, &Processor::socket); }
int Topology::nodes() const { return count(*this, &Processor::node); }
int Topology::cores() const { return count(*this, &Processor::core); }

std::size_t Topology::cache_bytes(int level) const {
  const auto cache = std::ranges::find(caches, level, &CacheLevel::level);
  return cache == caches.end() ? 0 : cache->bytes;
}

const Topology& topology() {
  static const Topology found = [] {
    const Handle handle = load({});
    return handle ? described(handle.get()) : Topology{};
  }();
  return found;
}

Topology synthetic_topology(const std::string& description) {
  const Handle handle = load(description);
  if (!handle) throw std::invalid_argument("hwloc does not understand \"" + description + "\"");
  return described(handle.get());
}

std::vector<int> placement(const Topology& topology, const std::vector<int>& allowed,
                           const std::vector<int>& settled) {
  Places places(topology, allowed);
  std::size_t left = 0;
  for (const int processor : settled) left += places.take(processor) ? 0 : 1;
  for (; left > 0; --left) places.take_any();
  return places.taken();
}

std::string topology_text(const Topology& topology) {
  const int sockets = topology.sockets();
  const int cores = topology.cores();
  const int threads = static_cast<int>(topology.processors.size());
  if (threads == 0) return "unknown";
  std::map<int, std::set<int>> of_socket;
  std::map<int, int> of_core;
  for (const Processor& processor : topology.processors) {
    of_socket[processor.socket].insert(processor.core);
    ++of_core[processor.core];
  }
  const bool alike =
      std::ranges::all_of(of_socket,
                          [&](const auto& one) {
                            return static_cast<int>(one.second.size()) * sockets == cores;
                          }) &&
      std::ranges::all_of(of_core, [&](const auto& one) { return one.second * cores == threads; });
  const std::vector<std::string> parts =
      alike ? std::vector{counted(sockets, "socket"), counted(cores / sockets, "core"),
                          counted(threads / cores, "thread")}
            : std::vector{counted(sockets, "socket"), counted(cores, "core"),
                          counted(threads, "thread")};
  return join(parts, alike ? " × " : ", ") + ", " + counted(topology.nodes(), "NUMA node");
}

std::string caches_text(const Topology& topology) {
  std::vector<std::string> caches;
  for (const CacheLevel& cache : topology.caches) {
    const std::size_t kib = cache.bytes / 1024;
    caches.push_back(
        "L" + std::to_string(cache.level) + " " +
        (kib % 1024 == 0 ? std::to_string(kib / 1024) + " MiB" : std::to_string(kib) + " KiB") +
        (cache.shared_by > 1 ? " shared by " + std::to_string(cache.shared_by) : ""));
  }
  return join(caches, ", ");
}

std::vector<std::string> node_lines(const Topology& topology) {
  std::vector<std::string> lines;
  if (topology.nodes() < 2) return lines;
  std::map<int, std::vector<int>> processors, sockets;
  for (const Processor& processor : topology.processors) {
    processors[processor.node].push_back(processor.id);
    sockets[processor.node].push_back(processor.socket);
  }
  for (auto& [node, list] : processors) {
    std::vector<int>& of_node = sockets[node];
    of_node.erase(std::unique(of_node.begin(), of_node.end()), of_node.end());
    lines.push_back("node " + std::to_string(node) + ": socket " + list_text(of_node) +
                    ", processors " + list_text(list));
  }
  return lines;
}

}  // namespace katt::bench
