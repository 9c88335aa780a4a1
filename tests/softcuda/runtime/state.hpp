#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "tests/softcuda/device.hpp"
#include "tests/softcuda/runtime/runtime.hpp"

/// What the files of libcudart share: everything that a program has made through CUDA's interface,
/// and the queues of its streams. The state's mutex guards all of it (Call holds it).
namespace softcuda {

using Clock = std::chrono::steady_clock;

/// A queued operation. It may run when the one before it in its stream and all of `after` are done.
struct Op {
  std::string what;
  std::function<void()> work;
  std::vector<std::shared_ptr<Op>> after;
  std::shared_ptr<Op> before;
  bool done = false;
  bool wanted = false;  ///< something waits for it (run_until)
  Clock::time_point ended{};
};
using OpPtr = std::shared_ptr<Op>;

/// Operations that a launch repeats.
struct Graph {
  struct Node {
    std::string what;
    std::function<void()> work;
  };
  std::vector<Node> nodes;
};

/// What a stream was given since cudaStreamBeginCapture.
struct Capture {
  cudaStreamCaptureMode mode;
  bool valid;  ///< no call was made that a capture forbids
  Graph graph;
};

struct Stream {
  int device = 0;
  bool blocking = true;  ///< waits for the legacy stream, which waits for it
  bool legacy = false;
  bool alive = true;
  unsigned flags = 0;
  int priority = 0;
  int number = 0;
  std::deque<OpPtr> queue;
  OpPtr last;
  std::vector<OpPtr> wait;  ///< events for which the next operation waits
  std::unique_ptr<Capture> capture;
};

struct Event {
  int device = 0;
  unsigned flags = 0;
  bool alive = true;
  OpPtr record;
};

/// What nvcc puts into a program for one of its sources.
struct FatBinary {
  const void* wrapper = nullptr;
  Module* module = nullptr;  ///< loaded at the first use
  std::map<std::string, int> registers;
  std::string trouble;  ///< why it cannot be loaded
};

struct Kernel {
  FatBinary* binary = nullptr;
  std::string name;
  int max_dynamic_shared = -1;  ///< cudaFuncSetAttribute; -1: not set
};

/// A variable of the device.
struct Symbol {
  FatBinary* binary = nullptr;
  std::string name;
};

/// Kinds of memory; `dead` is freed or was never allocated.
enum class Where { pageable, pinned, managed, device, dead };

struct HostBlock {
  std::size_t bytes = 0;
  std::size_t mapped = 0;  ///< 0: the caller's own memory, registered
  Where where = Where::pinned;
  int device = 0;
};
struct DeviceBlock {
  std::size_t bytes = 0;
  int device = 0;
};

/// The value of an environment variable that holds a number.
long setting(const char* name, long otherwise);

struct State {
  std::recursive_mutex mutex;
  int devices = static_cast<int>(std::max(1L, setting("SOFTCUDA_DEVICES", 1)));
  bool abort = setting("SOFTCUDA_ABORT", 0) != 0;
  bool lazy = setting("SOFTCUDA_ASYNC", 1) != 0;
  bool trace = setting("SOFTCUDA_TRACE", 0) != 0;
  bool stats = setting("SOFTCUDA_STATS", 0) != 0;
  std::mt19937 random{static_cast<unsigned>(setting("SOFTCUDA_SEED", 0))};
  bool started = false;
  bool unloaded = false;
  cudaError_t sticky = cudaSuccess;
  std::set<std::string> reported;
  std::vector<std::unique_ptr<Stream>> streams;  ///< the first `devices` are the legacy streams
  std::unordered_set<const void*> stream_handles, event_handles;
  std::vector<std::unique_ptr<Event>> events;
  /// The objects behind cudaGraph_t and cudaGraphExec_t.
  std::unordered_map<const void*, std::unique_ptr<Graph>> graphs;
  std::vector<std::unique_ptr<FatBinary>> binaries;
  std::unordered_map<const void*, std::unique_ptr<Kernel>> functions;  ///< by the host's stub
  std::unordered_set<const void*> kernels;  ///< the Kernel objects, which are also cudaKernel_t
  std::unordered_map<const void*, Symbol> symbols;
  std::map<std::uintptr_t, HostBlock> host;
  std::map<std::uintptr_t, DeviceBlock> device;
  std::size_t device_high = 0;  ///< the most bytes that were in use
  std::size_t operations = 0;
};

/// Lives for ever, because calls may come while the program ends.
State& state();
/// Makes the legacy streams at the first call.
void start(State& s);

extern thread_local cudaError_t last_error;
extern thread_local int device_of_thread;

/// Holds the lock during a call of the interface and finds the errors that every call returns.
struct Call {
  State& s;
  const char* api;
  std::unique_lock<std::recursive_mutex> lock;
  cudaError_t error = cudaSuccess;
  explicit Call(const char* name);
  cudaError_t fail_with(cudaError_t code, const std::string& line) const {
    return fail(code, std::string(api) + ": " + line);
  }
};
#define CALL(name)       \
  const Call call(name); \
  if (call.error != cudaSuccess) return call.error
/// The same for a function of a stream, which is `stream` then.
#define STREAM_CALL(name, handle)                                      \
  CALL(name);                                                          \
  cudaError_t error = cudaSuccess;                                     \
  Stream* const stream = find_stream(call.s, call.api, handle, error); \
  if (!stream) return error

// streams.cpp
/// The stream of a handle, or nullptr after a report.
Stream* find_stream(State& s, const char* api, cudaStream_t handle, cudaError_t& error);
/// Queues work on a stream, or adds it to the stream's capture. Without SOFTCUDA_ASYNC it is executed
/// at once.
OpPtr submit(State& s, Stream& stream, std::string what, std::function<void()> work);
/// Executes until `targets` are done, in an order that streams and events allow. A coin decides
/// whether that is only what the targets need, or whatever is ready.
cudaError_t run_until(State& s, const std::vector<OpPtr>& targets);
cudaError_t run_device(State& s, int device);
cudaError_t run_everything(State& s);

// graphs.cpp
/// The error of a call that the capture of a stream forbids; it makes the capture invalid. Returns
/// cudaSuccess when the stream is not captured.
cudaError_t forbid_in_capture(const Call& call, const Stream& stream);
/// The same for a call that concerns every stream of the device, unless the relaxed mode allows it.
cudaError_t forbid_in_captures(const Call& call, bool relaxed_allow_it);

// copies.cpp
Where where_is(State& s, const void* pointer);
const char* where_name(Where where);
/// Whether the bytes lie in one live allocation, or in one piece of registered host memory.
bool reachable(const void* pointer, std::size_t bytes);
/// The host block that holds the pointer, or the end.
std::map<std::uintptr_t, HostBlock>::const_iterator host_block(State& s, const void* pointer);
/// Rows of bytes, from and to any kind of memory.
struct Copy {
  void* to;
  std::size_t to_pitch;
  const void* from;
  std::size_t from_pitch;
  std::size_t width, height;
  cudaMemcpyKind kind;
};
cudaError_t copy(const Call& call, const Copy& c, cudaStream_t handle, bool asynchronous);

// kernels.cpp
/// Bytes of shared memory: of a block without and with cudaFuncSetAttribute, of a multiprocessor.
constexpr std::size_t shared_default = 49152, shared_optin = 232448, shared_per_sm = 233472;
/// The module of a binary, loaded at the first call; nullptr: see FatBinary::trouble.
Module* module_of(FatBinary& binary);

}  // namespace softcuda
