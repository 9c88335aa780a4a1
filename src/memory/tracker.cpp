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
  static void raise(Scope& scope, std::size_t live) {
    if (live > scope.base_) scope.peak_ = std::max(scope.peak_, live - scope.base_);
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
  std::size_t live = 0;
  std::vector<Scope*> scopes;

  std::size_t index_of(std::string_view space) {
    const auto known = std::ranges::find(spaces, space, &SpaceUsage::space);
    if (known != spaces.end()) return static_cast<std::size_t>(known - spaces.begin());
    spaces.push_back({.space = std::string(space)});
    return spaces.size() - 1;
  }

  void remove(const void* pointer) {
    const auto known = allocations.find(pointer);
    if (known == allocations.end()) return;
    live -= known->second.bytes;
    spaces[known->second.space].live_bytes -= known->second.bytes;
    allocations.erase(known);
  }

  void add(std::string_view space, const void* pointer, std::size_t bytes) {
    remove(pointer);
    const std::size_t index = index_of(space);
    allocations[pointer] = {bytes, index};
    live += bytes;
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

std::size_t live_bytes() {
  const std::lock_guard lock(state().mutex);
  return state().live;
}

Scope::Scope() {
  const std::lock_guard lock(state().mutex);
  base_ = state().live;
  state().scopes.push_back(this);
}

Scope::~Scope() {
  const std::lock_guard lock(state().mutex);
  std::erase(state().scopes, this);
}

std::size_t Scope::peak_bytes() const {
  const std::lock_guard lock(state().mutex);
  return peak_;
}

}  // namespace katt::memory
