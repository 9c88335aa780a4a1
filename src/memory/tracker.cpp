#include "memory/tracker.hpp"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <mutex>
#include <numeric>
#include <string_view>
#include <unordered_map>
#include <utility>

#include <Kokkos_Core.hpp>

#include "core/devices.hpp"
#include "machine/affinity.hpp"
#include "machine/huge_pages.hpp"

namespace katt::memory {

namespace {

/// Bytes by place: the host first, then the devices by their number.
using ByPlace = std::vector<std::size_t>;

std::size_t& at(ByPlace& bytes, int device) {
  const auto place = static_cast<std::size_t>(std::int64_t{device} + 1);
  if (bytes.size() <= place) bytes.resize(place + 1);
  return bytes[place];
}
std::size_t at(const ByPlace& bytes, int device) {
  const auto place = static_cast<std::size_t>(std::int64_t{device} + 1);
  return place < bytes.size() ? bytes[place] : 0;
}

Bytes by_kind(const ByPlace& bytes) {
  const std::size_t all = std::accumulate(bytes.begin(), bytes.end(), std::size_t{0});
  const std::size_t host = at(bytes, -1);
  return {.host = host, .device = all - host};
}

struct Allocation {
  std::size_t bytes = 0;
  std::size_t space = 0;  // index into State::spaces
};

/// The device of an allocation in a space. With one device this function does not call the driver.
int device_behind(std::string_view space, const void* pointer) {
  if (is_host_space(space)) return -1;
  static const bool several = devices::count() > 1;
  return several ? std::max(devices::of_memory(pointer), 0) : 0;
}

}  // namespace

/// The tracker's own access to a Scope.
struct ScopeAccess {
  static void raise(Scope& scope, int device, std::size_t live) {
    const std::size_t base = at(std::as_const(scope.base_), device);
    if (live <= base) return;
    std::size_t& peak = at(scope.peak_, device);
    peak = std::max(peak, live - base);
  }
};

namespace {

struct State {
  std::mutex mutex;
  bool installed = false;
  Kokkos::Tools::Experimental::EventSet previous{};
  std::vector<SpaceUsage> spaces;
  // sizes by pointer: memory allocated before install() is freed without being counted
  std::unordered_map<const void*, Allocation> allocations;
  ByPlace live;
  std::vector<Scope*> scopes;
  int asides = 0;

  std::size_t index_of(std::string_view space, int device) {
    const auto known = std::ranges::find_if(spaces, [&](const SpaceUsage& usage) {
      return usage.space == space && usage.device == device;
    });
    if (known != spaces.end()) return static_cast<std::size_t>(known - spaces.begin());
    spaces.push_back({.space = std::string(space), .device = device});
    return spaces.size() - 1;
  }

  void remove(const void* pointer) {
    const auto known = allocations.find(pointer);
    if (known == allocations.end()) return;
    const auto [bytes, space] = known->second;
    at(live, spaces[space].device) -= bytes;
    spaces[space].live_bytes -= bytes;
    allocations.erase(known);
  }

  void add(std::string_view space, const void* pointer, std::size_t bytes) {
    remove(pointer);
    const int device = device_behind(space, pointer);
    const std::size_t index = index_of(space, device);
    allocations[pointer] = {bytes, index};
    at(live, device) += bytes;
    SpaceUsage& usage = spaces[index];
    usage.live_bytes += bytes;
    usage.peak_bytes = std::max(usage.peak_bytes, usage.live_bytes);
    raise(device);
  }

  /// Raises the peaks of a device, −1 the host, to what is live.
  void raise(int device) {
    if (asides > 0) return;
    for (Scope* scope : scopes) ScopeAccess::raise(*scope, device, at(live, device));
  }
};

State& state() {
  // never destroyed: views with static lifetime are freed after everything else
  static State* const instance = std::make_unique<State>().release();
  return *instance;
}

void on_allocate(Kokkos::Tools::SpaceHandle space, const char* label, const void* pointer,
                 std::uint64_t bytes) {
  if (std::string_view(space.name) == Kokkos::HostSpace::name()) {
    prefer_huge_pages(pointer, bytes);
    bench::touch_on_nodes(pointer, bytes);
  }
  {
    const std::lock_guard lock(state().mutex);
    state().add(space.name, pointer, bytes);
  }
  if (state().previous.allocate_data != nullptr) {
    state().previous.allocate_data(space, label, pointer, bytes);
  }
}

void on_deallocate(Kokkos::Tools::SpaceHandle space, const char* label, const void* pointer,
                   std::uint64_t bytes) {
  {
    const std::lock_guard lock(state().mutex);
    state().remove(pointer);
  }
  if (state().previous.deallocate_data != nullptr) {
    state().previous.deallocate_data(space, label, pointer, bytes);
  }
}

}  // namespace

bool is_host_space(std::string_view name) { return name.find("Host") != std::string_view::npos; }

void install() {
  State& tracker = state();
  const std::lock_guard lock(tracker.mutex);
  if (tracker.installed) return;
  tracker.installed = true;
  tracker.previous = Kokkos::Tools::Experimental::get_callbacks();
  Kokkos::Tools::Experimental::set_allocate_data_callback(on_allocate);
  Kokkos::Tools::Experimental::set_deallocate_data_callback(on_deallocate);
}

std::vector<SpaceUsage> usage() {
  const std::lock_guard lock(state().mutex);
  return state().spaces;
}

Bytes live() {
  const std::lock_guard lock(state().mutex);
  return by_kind(state().live);
}

std::size_t live_bytes() { return live().total(); }

Scope::Scope() {
  const std::lock_guard lock(state().mutex);
  base_ = state().live;
  state().scopes.push_back(this);
}

Scope::~Scope() {
  const std::lock_guard lock(state().mutex);
  std::erase(state().scopes, this);
}

Bytes Scope::peak() const {
  const std::lock_guard lock(state().mutex);
  return by_kind(peak_);
}

Aside::Aside() {
  const std::lock_guard lock(state().mutex);
  ++state().asides;
}

Aside::~Aside() {
  const std::lock_guard lock(state().mutex);
  --state().asides;
  for (int device = -1; device + 1 < std::ssize(state().live); ++device) state().raise(device);
}

std::size_t Scope::base_bytes() const { return by_kind(base_).total(); }

}  // namespace katt::memory
