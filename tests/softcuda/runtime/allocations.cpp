#include <sys/mman.h>

#include <algorithm>
#include <cstring>

#include "tests/softcuda/runtime/state.hpp"

// Memory of the device, pinned and managed memory.

namespace softcuda {
namespace {

void* host_memory(State& s, std::size_t bytes, Where where) {
  const std::size_t page = 4096, mapped = (bytes + page - 1) / page * page + page;
  void* const made = mmap(nullptr, mapped, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (made == MAP_FAILED) return nullptr;
  mprotect(static_cast<char*>(made) + mapped - page, page, PROT_NONE);
  std::memset(made, 0xFF, bytes);
  s.host[reinterpret_cast<std::uintptr_t>(made)] = {bytes, mapped, where, device_of_thread};
  register_host(made, bytes);
  return made;
}

}  // namespace

}  // namespace softcuda

using namespace softcuda;

extern "C" {

cudaError_t cudaMalloc(void** pointer, std::size_t bytes) {
  CALL("cudaMalloc");
  if (!pointer) return call.fail_with(cudaErrorInvalidValue, "null pointer");
  *pointer = nullptr;
  if (bytes == 0) return cudaSuccess;
  if (const cudaError_t error = forbid_in_captures(call, true)) return error;
  const std::uint64_t address = device_malloc(bytes);
  if (!address) {
    last_error = cudaErrorMemoryAllocation;
    report(text("cudaMalloc: no room for %zu bytes (%zu of %zu in use) (cudaErrorMemoryAllocation)",
                bytes, device_bytes_live(), device_bytes_total()));
    return cudaErrorMemoryAllocation;
  }
  call.s.device[address] = {bytes, device_of_thread};
  call.s.device_high = std::max(call.s.device_high, device_bytes_live());
  *pointer = reinterpret_cast<void*>(address);
  return cudaSuccess;
}
cudaError_t cudaMallocPitch(void** pointer, std::size_t* pitch, std::size_t width,
                            std::size_t height) {
  *pitch = (width + 511) / 512 * 512;
  return cudaMalloc(pointer, *pitch * height);
}
cudaError_t cudaMallocManaged(void** pointer, std::size_t bytes, unsigned flags) {
  CALL("cudaMallocManaged");
  if (const cudaError_t error = forbid_in_captures(call, true)) return error;
  if (!pointer || bytes == 0 || (flags != cudaMemAttachGlobal && flags != cudaMemAttachHost))
    return call.fail_with(cudaErrorInvalidValue, text("%zu bytes, flags %u", bytes, flags));
  *pointer = host_memory(call.s, bytes, Where::managed);
  return *pointer ? cudaSuccess
                  : call.fail_with(cudaErrorMemoryAllocation, text("%zu bytes", bytes));
}
cudaError_t cudaHostAlloc(void** pointer, std::size_t bytes, unsigned flags) {
  CALL("cudaHostAlloc");
  if (!pointer || flags > 7) return call.fail_with(cudaErrorInvalidValue, text("flags %u", flags));
  *pointer = nullptr;
  if (bytes == 0) return cudaSuccess;
  if (const cudaError_t error = forbid_in_captures(call, true)) return error;
  *pointer = host_memory(call.s, bytes, Where::pinned);
  return *pointer ? cudaSuccess
                  : call.fail_with(cudaErrorMemoryAllocation, text("%zu bytes", bytes));
}
cudaError_t cudaMallocHost(void** pointer, std::size_t bytes) {
  return cudaHostAlloc(pointer, bytes, 0);
}

static cudaError_t free_host(const Call& call, void* pointer, Where where) {
  const auto it = call.s.host.find(reinterpret_cast<std::uintptr_t>(pointer));
  if (it == call.s.host.end() || it->second.where != where || it->second.mapped == 0) {
    return call.fail_with(cudaErrorInvalidValue,
                          text("%p (%s) is not the start of a live allocation of that kind",
                               pointer, where_name(where_is(call.s, pointer))));
  }
  const cudaError_t error = run_everything(call.s);
  unregister_host(pointer);
  munmap(pointer, it->second.mapped);
  call.s.host.erase(it);
  return error;
}
cudaError_t cudaFree(void* pointer) {
  CALL("cudaFree");
  if (!pointer) return cudaSuccess;
  if (const cudaError_t error = forbid_in_captures(call, true)) return error;
  const auto address = reinterpret_cast<std::uintptr_t>(pointer);
  if (call.s.host.count(address)) return free_host(call, pointer, Where::managed);
  const auto it = call.s.device.find(address);
  if (it == call.s.device.end()) {
    return call.fail_with(cudaErrorInvalidValue,
                          text("%p (%s) is not the start of a live allocation", pointer,
                               where_name(where_is(call.s, pointer))));
  }
  const cudaError_t error = run_everything(call.s);  // it waits for the device
  if (!device_free(address))
    return call.fail_with(cudaErrorInvalidValue,
                          text("%p is not the start of a live allocation", pointer));
  call.s.device.erase(it);
  return error;
}
cudaError_t cudaFreeHost(void* pointer) {
  CALL("cudaFreeHost");
  if (!pointer) return cudaSuccess;
  if (const cudaError_t error = forbid_in_captures(call, true)) return error;
  return free_host(call, pointer, Where::pinned);
}
cudaError_t cudaMallocAsync(void** pointer, std::size_t bytes, cudaStream_t stream) {
  CALL("cudaMallocAsync");
  cudaError_t error = cudaSuccess;
  if (!find_stream(call.s, "cudaMallocAsync", stream, error)) return error;
  return cudaMalloc(pointer, bytes);
}
cudaError_t cudaFreeAsync(void* pointer, cudaStream_t handle) {
  STREAM_CALL("cudaFreeAsync", handle);
  if (!pointer) return cudaSuccess;
  const auto address = reinterpret_cast<std::uintptr_t>(pointer);
  if (call.s.device.erase(address) == 0)
    return call.fail_with(cudaErrorInvalidValue,
                          text("%p is not the start of a live allocation", pointer));
  submit(call.s, *stream, text("cudaFreeAsync of %p", pointer),
         [address] { device_free(address); });
  return call.s.sticky;
}
cudaError_t cudaHostRegister(void* pointer, std::size_t bytes, unsigned) {
  CALL("cudaHostRegister");
  if (!pointer || bytes == 0)
    return call.fail_with(cudaErrorInvalidValue, "null pointer or no bytes");
  if (where_is(call.s, pointer) != Where::pageable)
    return call.fail_with(cudaErrorHostMemoryAlreadyRegistered, text("%p", pointer));
  call.s.host[reinterpret_cast<std::uintptr_t>(pointer)] = {bytes, 0, Where::pinned,
                                                            device_of_thread};
  register_host(pointer, bytes);
  return cudaSuccess;
}
cudaError_t cudaHostUnregister(void* pointer) {
  CALL("cudaHostUnregister");
  const auto it = call.s.host.find(reinterpret_cast<std::uintptr_t>(pointer));
  if (it == call.s.host.end() || it->second.mapped != 0)
    return call.fail_with(cudaErrorHostMemoryNotRegistered, text("%p", pointer));
  const cudaError_t error = run_everything(call.s);
  unregister_host(pointer);
  call.s.host.erase(it);
  return error;
}
cudaError_t cudaHostGetDevicePointer(void** device, void* host, unsigned) {
  CALL("cudaHostGetDevicePointer");
  if (host_block(call.s, host) == call.s.host.end())
    return call.fail_with(cudaErrorInvalidValue, text("%p is not pinned", host));
  *device = host;
  return cudaSuccess;
}
cudaError_t cudaMemGetInfo(std::size_t* free, std::size_t* total) {
  CALL("cudaMemGetInfo");
  if (free) *free = device_bytes_total() - std::min(device_bytes_total(), device_bytes_live());
  if (total) *total = device_bytes_total();
  return cudaSuccess;
}
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* pointer) {
  CALL("cudaPointerGetAttributes");
  if (!attributes) return call.fail_with(cudaErrorInvalidValue, "null pointer");
  std::memset(attributes, 0, sizeof *attributes);
  attributes->device = -2;
  attributes->type = cudaMemoryTypeUnregistered;
  void* const same = const_cast<void*>(pointer);
  attributes->hostPointer = same;
  switch (where_is(call.s, pointer)) {
    case Where::pageable:
    case Where::dead: break;
    case Where::device: {
      attributes->type = cudaMemoryTypeDevice;
      auto it = call.s.device.upper_bound(reinterpret_cast<std::uintptr_t>(pointer));
      attributes->device = it == call.s.device.begin() ? 0 : std::prev(it)->second.device;
      attributes->devicePointer = same;
      attributes->hostPointer = nullptr;
      break;
    }
    case Where::pinned:
    case Where::managed: {
      const auto it = host_block(call.s, pointer);
      attributes->type =
          it->second.where == Where::managed ? cudaMemoryTypeManaged : cudaMemoryTypeHost;
      attributes->device = it->second.device;
      attributes->devicePointer = same;
      break;
    }
  }
  return cudaSuccess;
}
cudaError_t cudaMemPrefetchAsync(const void* pointer, std::size_t bytes, cudaMemLocation location,
                                 unsigned flags, cudaStream_t stream) {
  CALL("cudaMemPrefetchAsync");
  cudaError_t error = cudaSuccess;
  if (!find_stream(call.s, "cudaMemPrefetchAsync", stream, error)) return error;
  if (flags != 0) return call.fail_with(cudaErrorInvalidValue, text("flags %u", flags));
  if (location.type == cudaMemLocationTypeDevice &&
      (location.id < 0 || location.id >= call.s.devices))
    return call.fail_with(cudaErrorInvalidDevice, text("device %d", location.id));
  if (where_is(call.s, pointer) != Where::managed || !reachable(pointer, bytes)) {
    return call.fail_with(cudaErrorInvalidValue,
                          text("%p + %zu bytes (%s) is not inside one managed allocation", pointer,
                               bytes, where_name(where_is(call.s, pointer))));
  }
  return cudaSuccess;
}
cudaError_t cudaMemAdvise(const void* pointer, std::size_t bytes, cudaMemoryAdvise,
                          cudaMemLocation) {
  CALL("cudaMemAdvise");
  if (where_is(call.s, pointer) != Where::managed || !reachable(pointer, bytes))
    return call.fail_with(
        cudaErrorInvalidValue,
        text("%p + %zu bytes is not inside one managed allocation", pointer, bytes));
  return cudaSuccess;
}

}  // extern "C"
