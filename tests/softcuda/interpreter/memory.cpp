#include "tests/softcuda/interpreter/memory.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>

#include "tests/softcuda/device.hpp"

// Device memory is a memfd that is mapped twice. At the device's addresses it is PROT_NONE, so a
// host that follows a device pointer faults as it does on a machine with a GPU. The runtime and the
// interpreter reach the bytes at the second place.

namespace softcuda {
namespace {

constexpr std::size_t alignment = 256;
constexpr std::size_t guard_bytes =
    4096;  ///< never handed out behind an allocation: a small overrun faults

std::size_t round_up(std::size_t bytes, std::size_t to) { return (bytes + to - 1) / to * to; }

struct Arena {
  std::mutex lock;
  std::size_t total = 0, live_bytes = 0;
  std::uint64_t base = 0;
  std::byte* view = nullptr;
  std::map<std::uint64_t, std::size_t> live;  ///< start → bytes asked for
  std::map<std::uint64_t, std::size_t> free;  ///< start → bytes, guards included
  std::map<std::uint64_t, std::size_t> host;  ///< registered host memory

  Arena() {
    const char* mib = std::getenv("SOFTCUDA_MEMORY_MIB");
    total = (mib ? std::strtoull(mib, nullptr, 10) : 4096) << 20;
    const int file = memfd_create("softcuda", MFD_CLOEXEC);
    if (file < 0 || ftruncate(file, static_cast<off_t>(total)) != 0) give_up("memfd");
    void* device = mmap(nullptr, total, PROT_NONE, MAP_SHARED | MAP_NORESERVE, file, 0);
    void* second =
        mmap(nullptr, total, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file, 0);
    if (device == MAP_FAILED || second == MAP_FAILED) give_up("mmap");
    close(file);
    base = reinterpret_cast<std::uint64_t>(device);
    view = static_cast<std::byte*>(second);
    free[base] = total;
  }
  [[noreturn]] static void give_up(const char* what) {
    std::perror(what);
    std::abort();
  }
  void add_free(std::uint64_t start, std::size_t bytes) {
    auto next = free.lower_bound(start);
    if (next != free.end() && start + bytes == next->first) {
      bytes += next->second;
      next = free.erase(next);
    }
    if (next != free.begin()) {
      auto before = std::prev(next);
      if (before->first + before->second == start) {
        before->second += bytes;
        return;
      }
    }
    free[start] = bytes;
  }
};

Arena& arena() {
  static Arena* instance =
      new Arena;  // lives until the process ends: kernels may run in destructors of statics
  return *instance;
}

std::size_t footprint(std::size_t bytes) { return round_up(bytes + guard_bytes, alignment); }

}  // namespace

std::uint64_t device_malloc(std::size_t bytes) {
  Arena& a = arena();
  const std::lock_guard hold(a.lock);
  if (bytes == 0) bytes = 1;
  if (bytes > a.total) return 0;
  const std::size_t need = footprint(bytes);
  for (auto piece = a.free.begin(); piece != a.free.end(); ++piece) {
    if (piece->second < need) continue;
    const std::uint64_t start = piece->first;
    const std::size_t rest = piece->second - need;
    a.free.erase(piece);
    if (rest > 0) a.free[start + need] = rest;
    a.live[start] = bytes;
    a.live_bytes += bytes;
    std::memset(a.view + (start - a.base), 0xFF, bytes);
    return start;
  }
  return 0;
}

bool device_free(std::uint64_t address) {
  Arena& a = arena();
  const std::lock_guard hold(a.lock);
  const auto found = a.live.find(address);
  if (found == a.live.end()) return false;
  const std::size_t need = footprint(found->second);
  a.live_bytes -= found->second;
  a.live.erase(found);
  a.add_free(address, need);
  return true;
}

bool is_device(std::uint64_t address) {
  Arena& a = arena();
  return address >= a.base && address - a.base < a.total;
}

Extent find_extent(std::uint64_t address) {
  Arena& a = arena();
  const std::lock_guard hold(a.lock);
  const bool device = address >= a.base && address - a.base < a.total;
  const auto& pieces = device ? a.live : a.host;
  auto piece = pieces.upper_bound(address);
  if (piece == pieces.begin()) return {};
  --piece;
  if (address - piece->first >= piece->second) return {};
  std::byte* host =
      device ? a.view + (piece->first - a.base) : reinterpret_cast<std::byte*>(piece->first);
  return {piece->first, piece->first + piece->second, host};
}

void* reach(std::uint64_t address, std::size_t bytes) {
  const Extent extent = find_extent(address);
  if (extent.contains(address, bytes)) return extent.at(address);
  char text[160];
  if (extent.begin == extent.end)
    std::snprintf(text, sizeof text, "%zu bytes at 0x%llx: no live allocation there", bytes,
                  static_cast<unsigned long long>(address));
  else
    std::snprintf(text, sizeof text,
                  "%zu bytes at 0x%llx: past the end of the allocation of %llu bytes at 0x%llx",
                  bytes, static_cast<unsigned long long>(address),
                  static_cast<unsigned long long>(extent.end - extent.begin),
                  static_cast<unsigned long long>(extent.begin));
  throw DeviceFault(700, text);
}

void register_host(void* pointer, std::size_t bytes) {
  Arena& a = arena();
  const std::lock_guard hold(a.lock);
  a.host[reinterpret_cast<std::uint64_t>(pointer)] = bytes;
}

void unregister_host(void* pointer) {
  Arena& a = arena();
  const std::lock_guard hold(a.lock);
  a.host.erase(reinterpret_cast<std::uint64_t>(pointer));
}

std::size_t device_bytes_live() { return arena().live_bytes; }
std::size_t device_bytes_total() { return arena().total; }

}  // namespace softcuda
