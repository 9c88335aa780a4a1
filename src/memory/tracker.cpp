#include "memory/tracker.hpp"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string_view>
#include <unordered_map>

#include <Kokkos_Core.hpp>

namespace katt::memory {

/// The tracker's own access to a Scope.
struct ScopeAccess {
  static void raise(Scope& scope, Bytes live) {
    raise(scope.peak_.host, live.host, scope.base_.host);
    raise(scope.peak_.device, live.device, scope.base_.device);
  }

 private:
  static void raise(std::size_t& peak, std::size_t live, std::size_t base) {
    if (live > base) peak = std::max(peak, live - base);
  }
};

namespace {

struct Allocation {
  std::size_t bytes = 0;
  std::size_t space = 0;  // index into State::spaces
};

struct State {
  std::mutex mutex;
  bool installed = false;
  Kokkos::Tools::Experimental::EventSet previous{};
  std::vector<SpaceUsage> spaces;
  // sizes by pointer: what was allocated before install() is freed without being counted
  std::unordered_map<const void*, Allocation> allocations;
  Bytes live;
  std::vector<Scope*> scopes;

  std::size_t index_of(std::string_view space) {
    const auto known = std::ranges::find(spaces, space, &SpaceUsage::space);
    if (known != spaces.end()) return static_cast<std::size_t>(known - spaces.begin());
    spaces.push_back({.space = std::string(space)});
    return spaces.size() - 1;
  }

  std::size_t& live_in(std::size_t space) {
    return is_host_space(spaces[space].space) ? live.host : live.device;
  }

  void remove(const void* pointer) {
    const auto known = allocations.find(pointer);
    if (known == allocations.end()) return;
    const auto [bytes, space] = known->second;
    live_in(space) -= bytes;
    spaces[space].live_bytes -= bytes;
    allocations.erase(known);
  }

  void add(std::string_view space, const void* pointer, std::size_t bytes) {
    remove(pointer);
    const std::size_t index = index_of(space);
    allocations[pointer] = {bytes, index};
    live_in(index) += bytes;
    SpaceUsage& usage = spaces[index];
    usage.live_bytes += bytes;
    usage.peak_bytes = std::max(usage.peak_bytes, usage.live_bytes);
    for (Scope* scope : scopes) ScopeAccess::raise(*scope, live);
  }
};

State& state() {
  // never destroyed: views with static lifetime are freed after everything else
  static State* const instance = std::make_unique<State>().release();
  return *instance;
}

void on_allocate(Kokkos::Tools::SpaceHandle space, const char* label, const void* pointer,
                 std::uint64_t bytes) {
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
  return state().live;
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
  return peak_;
}

}  // namespace katt::memory
