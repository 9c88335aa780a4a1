#include "tests/softcuda/runtime/state.hpp"

#include <signal.h>
#include <unistd.h>

#include <cstdarg>
#include <cstdio>
#include <cstdlib>

namespace softcuda {

thread_local cudaError_t last_error = cudaSuccess;
thread_local int device_of_thread = 0;

long setting(const char* name, long otherwise) {
  const char* value = std::getenv(name);
  return value && *value ? std::atol(value) : otherwise;
}

State& state() {
  static State* const made = new State;
  return *made;
}

namespace {

std::string statistics_and_leaks() {
  State& s = state();
  std::string out = statistics();
  if (!out.empty() && out.back() != '\n') out += '\n';
  std::size_t pending = 0, streams = 0, events = 0;
  for (const auto& stream : s.streams) {
    pending += stream->queue.size();
    streams += stream->alive && !stream->legacy;
  }
  for (const auto& event : s.events) events += event->alive;
  out += text("softcuda: %zu operations queued, %zu never executed\n", s.operations, pending);
  out += text(
      "softcuda: leaks: %zu device allocations, %zu host allocations, %zu streams, %zu events; at "
      "most %.1f MiB on the device\n",
      s.device.size(), s.host.size(), streams, events,
      static_cast<double>(s.device_high) / (1 << 20));
  for (const auto& [address, block] : s.device) {
    out += text("softcuda: leak: 0x%lx, %zu bytes\n", static_cast<unsigned long>(address),
                block.bytes);
  }
  return out;
}

void unload() {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  if (s.unloaded) return;
  const std::string out = bank_conflicts() + (s.stats ? statistics_and_leaks() : "");
  std::fwrite(out.data(), 1, out.size(), stderr);
  s.unloaded = true;
}

struct sigaction previous_segv;

void on_segv(int number, siginfo_t* info, void* context) {
  const auto address = reinterpret_cast<std::uint64_t>(info->si_addr);
  if (is_device(address)) {
    char line[128];
    const int n =
        std::snprintf(line, sizeof line, "softcuda: the host touched device memory at 0x%lx\n",
                      static_cast<unsigned long>(address));
    if (write(2, line, static_cast<std::size_t>(n)) < 0) _exit(139);
  }
  if (previous_segv.sa_flags & SA_SIGINFO) {
    if (previous_segv.sa_sigaction) return previous_segv.sa_sigaction(number, info, context);
  }
  sigaction(SIGSEGV, &previous_segv, nullptr);  // and the access is repeated
}

}  // namespace

void start(State& s) {
  if (s.started) return;
  s.started = true;
  for (int i = 0; i < s.devices; ++i) {
    s.streams.push_back(std::make_unique<Stream>());
    s.streams.back()->device = i;
    s.streams.back()->legacy = true;
    s.streams.back()->number = i;
  }
  std::atexit(unload);
  struct sigaction action {};
  action.sa_sigaction = on_segv;
  action.sa_flags = SA_SIGINFO | SA_NODEFER;
  sigaction(SIGSEGV, &action, &previous_segv);
}

Call::Call(const char* name) : s(state()), api(name), lock(s.mutex) {
  if (s.unloaded) {
    error = fail(
        cudaErrorCudartUnloading,
        text("%s: called after the runtime was unloaded (a static object's destructor?)", api));
    return;
  }
  start(s);
  if (s.sticky != cudaSuccess) {
    last_error = s.sticky;
    error = s.sticky;
  }
}

std::string text(const char* format, ...) {
  va_list list, again;
  va_start(list, format);
  va_copy(again, list);
  std::string out(static_cast<std::size_t>(std::vsnprintf(nullptr, 0, format, list)), '\0');
  std::vsnprintf(out.data(), out.size() + 1, format, again);
  va_end(list);
  va_end(again);
  return out;
}

void report(const std::string& line) {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  if (s.reported.insert(line).second) {
    std::fprintf(stderr, "softcuda: %s\n", line.c_str());
    std::fflush(stderr);
  }
  if (s.abort) std::abort();
}

cudaError_t fail(cudaError_t error, const std::string& line) {
  last_error = error;
  report(line + " (" + error_name(error) + ")");
  return error;
}

cudaError_t check_stream(const char* api, cudaStream_t handle) {
  const Call call(api);
  if (call.error != cudaSuccess) return call.error;
  cudaError_t error = cudaSuccess;
  find_stream(call.s, api, handle, error);
  return error;
}

cudaError_t enqueue(const char* api, cudaStream_t handle, const std::string& what,
                    std::function<void()> work) {
  const Call call(api);
  if (call.error != cudaSuccess) return call.error;
  cudaError_t error = cudaSuccess;
  Stream* const stream = find_stream(call.s, api, handle, error);
  if (!stream) return error;
  submit(call.s, *stream, what, std::move(work));
  return call.s.sticky;
}

bool in_one_allocation(const char* api, const char* operand, const void* pointer,
                       std::size_t bytes) {
  if (pointer && reachable(pointer, bytes)) return true;
  report(text("%s: %s: %p + %zu bytes is not inside one device allocation", api, operand, pointer,
              bytes));
  return false;
}

int stream_device(cudaStream_t handle) {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  return s.stream_handles.count(handle) ? reinterpret_cast<Stream*>(handle)->device
                                        : device_of_thread;
}

int current_device() { return device_of_thread; }

cudaError_t device_state(const char* api) {
  const Call call(api);
  return call.error;
}

}  // namespace softcuda
