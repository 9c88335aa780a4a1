#include <cstring>

#include "tests/softcuda/runtime/state.hpp"

// Copies and fills.

namespace softcuda {

std::map<std::uintptr_t, HostBlock>::const_iterator host_block(State& s, const void* pointer) {
  const auto address = reinterpret_cast<std::uintptr_t>(pointer);
  auto it = s.host.upper_bound(address);
  if (it == s.host.begin()) return s.host.end();
  --it;
  return address < it->first + std::max<std::size_t>(it->second.bytes, 1) ? it : s.host.end();
}

bool reachable(const void* pointer, std::size_t bytes) {
  try {
    reach(reinterpret_cast<std::uint64_t>(pointer), bytes);
    return true;
  } catch (const DeviceFault&) {
    return false;
  }
}

Where where_is(State& s, const void* pointer) {
  if (is_device(reinterpret_cast<std::uint64_t>(pointer)))
    return reachable(pointer, 1) ? Where::device : Where::dead;
  const auto it = host_block(s, pointer);
  return it == s.host.end() ? Where::pageable : it->second.where;
}

const char* where_name(Where where) {
  switch (where) {
    case Where::pageable: return "pageable host memory";
    case Where::pinned: return "pinned host memory";
    case Where::managed: return "managed memory";
    case Where::device: return "device memory";
    case Where::dead: return "freed or never allocated device memory";
  }
  return "";
}

namespace {

const char* kind_name(cudaMemcpyKind kind) {
  static const char* const names[] = {"HostToHost", "HostToDevice", "DeviceToHost",
                                      "DeviceToDevice", "Default"};
  return kind >= 0 && kind <= 4 ? names[kind] : "?";
}

void* bytes_of(Where where, const void* pointer, std::size_t bytes) {
  if (where == Where::pageable) return const_cast<void*>(pointer);
  return reach(reinterpret_cast<std::uint64_t>(pointer), bytes);
}

}  // namespace

namespace {

/// Bytes from the first row's start to the last row's end.
std::size_t span(std::size_t pitch, const Copy& c) { return (c.height - 1) * pitch + c.width; }

/// One end of a copy: whether the kind allows this memory, and whether all bytes are in it.
cudaError_t check_end(const Call& call, const char* which, const void* pointer, std::size_t bytes,
                      bool on_device, cudaMemcpyKind kind) {
  const Where where = where_is(call.s, pointer);
  if (where == Where::dead) {
    return call.fail_with(cudaErrorInvalidValue,
                          text("%s %p is %s", which, pointer, where_name(where)));
  }
  const bool wrong = on_device ? where == Where::pageable : where == Where::device;
  if (kind != cudaMemcpyDefault && wrong) {
    return call.fail_with(
        cudaErrorInvalidValue,
        text("kind %s, but the %s %p is %s", kind_name(kind), which, pointer, where_name(where)));
  }
  if (where != Where::pageable && !reachable(pointer, bytes)) {
    return call.fail_with(
        cudaErrorInvalidValue,
        text("%s %p + %zu bytes is not inside one allocation", which, pointer, bytes));
  }
  return cudaSuccess;
}

cudaError_t check_copy(const Call& call, const Copy& c) {
  if (c.height > 1 && (c.to_pitch < c.width || c.from_pitch < c.width)) {
    return call.fail_with(cudaErrorInvalidPitchValue, "a pitch is less than the width");
  }
  if (!c.to || !c.from) {
    return call.fail_with(cudaErrorInvalidValue, text("null pointer for %zu bytes", c.width));
  }
  const bool to_device = c.kind == cudaMemcpyHostToDevice || c.kind == cudaMemcpyDeviceToDevice;
  const bool from_device = c.kind == cudaMemcpyDeviceToHost || c.kind == cudaMemcpyDeviceToDevice;
  const cudaError_t error =
      check_end(call, "destination", c.to, span(c.to_pitch, c), to_device, c.kind);
  if (error != cudaSuccess) return error;
  return check_end(call, "source", c.from, span(c.from_pitch, c), from_device, c.kind);
}

void copy_rows(char* to, std::size_t to_pitch, const char* from, std::size_t from_pitch,
               const Copy& c) {
  for (std::size_t row = 0; row < c.height; ++row) {
    std::memmove(to + row * to_pitch, from + row * from_pitch, c.width);
  }
}

/// Whether the call returns only after the copy: asynchronous ones do when the destination is
/// pageable or no device takes part, the others unless the copy stays on the device.
bool is_waited_for(Where to, Where from, bool asynchronous) {
  const bool on_host = to != Where::device && to != Where::managed && from != Where::device &&
                       from != Where::managed;
  const bool on_device = to == Where::device && (from == Where::device || from == Where::managed);
  return asynchronous ? to == Where::pageable || on_host : !on_device;
}

}  // namespace

cudaError_t copy(const Call& call, const Copy& c, cudaStream_t handle, bool asynchronous) {
  State& s = call.s;
  cudaError_t error = cudaSuccess;
  Stream* const stream = find_stream(s, call.api, handle, error);
  if (!stream) return error;
  if (c.kind < 0 || c.kind > 4) {
    return call.fail_with(cudaErrorInvalidMemcpyDirection,
                          text("kind %d", static_cast<int>(c.kind)));
  }
  if (c.width == 0 || c.height == 0) return cudaSuccess;
  error = check_copy(call, c);
  if (error != cudaSuccess) return error;
  const Where to = where_is(s, c.to), from = where_is(s, c.from);
  if (to == Where::pageable || from == Where::pageable) {
    if ((error = forbid_in_capture(call, *stream)) != cudaSuccess) return error;
  }
  std::shared_ptr<std::vector<char>> staged;  // what pageable memory holds at the call
  if (from == Where::pageable) {
    staged = std::make_shared<std::vector<char>>(c.width * c.height);
    copy_rows(staged->data(), c.width, static_cast<const char*>(c.from), c.from_pitch, c);
  }
  const OpPtr op = submit(
      s, *stream,
      text("%s %s of %zu x %zu bytes to %p", call.api, kind_name(c.kind), c.height, c.width, c.to),
      [=] {
        char* const target = static_cast<char*>(bytes_of(to, c.to, span(c.to_pitch, c)));
        if (staged) return copy_rows(target, c.to_pitch, staged->data(), c.width, c);
        const void* const source = bytes_of(from, c.from, span(c.from_pitch, c));
        copy_rows(target, c.to_pitch, static_cast<const char*>(source), c.from_pitch, c);
      });
  return is_waited_for(to, from, asynchronous) ? run_until(s, {op}) : s.sticky;
}

namespace {

cudaError_t fill(const Call& call, void* to, std::size_t pitch, int value, std::size_t width,
                 std::size_t height, cudaStream_t handle) {
  State& s = call.s;
  cudaError_t error = cudaSuccess;
  Stream* const stream = find_stream(s, call.api, handle, error);
  if (!stream) return error;
  if (width == 0 || height == 0) return cudaSuccess;
  const Where where = where_is(s, to);
  const std::size_t span = (height - 1) * pitch + width;
  if (where == Where::pageable || where == Where::dead || !reachable(to, span)) {
    return call.fail_with(
        cudaErrorInvalidValue,
        text("%p + %zu bytes (%s) is not inside one allocation", to, span, where_name(where)));
  }
  submit(s, *stream, text("%s of %zu x %zu bytes at %p", call.api, height, width, to), [=] {
    char* const target = static_cast<char*>(reach(reinterpret_cast<std::uint64_t>(to), span));
    for (std::size_t row = 0; row < height; ++row) std::memset(target + row * pitch, value, width);
  });
  return s.sticky;
}

}  // namespace

}  // namespace softcuda

using namespace softcuda;

extern "C" {

cudaError_t cudaMemcpy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind) {
  CALL("cudaMemcpy");
  return copy(call, {to, bytes, from, bytes, bytes, 1, kind}, nullptr, false);
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  CALL("cudaMemcpyAsync");
  return copy(call, {to, bytes, from, bytes, bytes, 1, kind}, stream, true);
}
cudaError_t cudaMemcpyPeerAsync(void* to, int, const void* from, int, std::size_t bytes,
                                cudaStream_t stream) {
  CALL("cudaMemcpyPeerAsync");
  return copy(call, {to, bytes, from, bytes, bytes, 1, cudaMemcpyDefault}, stream, true);
}
cudaError_t cudaMemcpyPeer(void* to, int, const void* from, int, std::size_t bytes) {
  CALL("cudaMemcpyPeer");
  return copy(call, {to, bytes, from, bytes, bytes, 1, cudaMemcpyDefault}, nullptr, false);
}
cudaError_t cudaMemcpy2D(void* to, std::size_t to_pitch, const void* from, std::size_t from_pitch,
                         std::size_t width, std::size_t height, cudaMemcpyKind kind) {
  CALL("cudaMemcpy2D");
  return copy(call, {to, to_pitch, from, from_pitch, width, height, kind}, nullptr, false);
}
cudaError_t cudaMemcpy2DAsync(void* to, std::size_t to_pitch, const void* from,
                              std::size_t from_pitch, std::size_t width, std::size_t height,
                              cudaMemcpyKind kind, cudaStream_t stream) {
  CALL("cudaMemcpy2DAsync");
  return copy(call, {to, to_pitch, from, from_pitch, width, height, kind}, stream, true);
}
cudaError_t cudaMemset(void* to, int value, std::size_t bytes) {
  CALL("cudaMemset");
  return fill(call, to, bytes, value, bytes, 1, nullptr);
}
cudaError_t cudaMemsetAsync(void* to, int value, std::size_t bytes, cudaStream_t stream) {
  CALL("cudaMemsetAsync");
  return fill(call, to, bytes, value, bytes, 1, stream);
}
cudaError_t cudaMemset2D(void* to, std::size_t pitch, int value, std::size_t width,
                         std::size_t height) {
  CALL("cudaMemset2D");
  return fill(call, to, pitch, value, width, height, nullptr);
}
cudaError_t cudaMemset2DAsync(void* to, std::size_t pitch, int value, std::size_t width,
                              std::size_t height, cudaStream_t stream) {
  CALL("cudaMemset2DAsync");
  return fill(call, to, pitch, value, width, height, stream);
}

}  // extern "C"
