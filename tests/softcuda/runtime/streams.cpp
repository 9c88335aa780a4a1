#include <algorithm>
#include <cstdio>

#include "tests/softcuda/runtime/state.hpp"

// Streams and events. An operation is executed when a call waits for it, not before.

namespace softcuda {
namespace {

thread_local Stream* stream_of_thread = nullptr;

void finish(Op& op) {
  op.done = true;
  op.work = nullptr;
  op.after.clear();
  op.before.reset();
}

/// An error that every later call returns. What is queued is never executed.
void set_sticky(State& s, cudaError_t error, const std::string& line) {
  if (s.sticky == cudaSuccess) s.sticky = error;
  last_error = s.sticky;
  for (auto& stream : s.streams) {
    for (auto& op : stream->queue) finish(*op);
    stream->queue.clear();
  }
  report(line);
}

bool is_ready(const Op& op) {
  return std::all_of(op.after.begin(), op.after.end(),
                     [](const OpPtr& other) { return other->done; });
}

void execute(State& s, Stream& stream) {
  const OpPtr op = stream.queue.front();
  stream.queue.pop_front();
  if (s.trace)
    std::fprintf(stderr, "softcuda: trace: stream %d: %s\n", stream.number, op->what.c_str());
  try {
    if (op->work) op->work();
  } catch (const DeviceFault& fault) {
    op->done = true;
    set_sticky(s, static_cast<cudaError_t>(fault.cuda_error),
               text("%s: %s (%s)", op->what.c_str(), fault.what(),
                    error_name(static_cast<cudaError_t>(fault.cuda_error))));
  } catch (const std::exception& other) {
    op->done = true;
    set_sticky(s, cudaErrorLaunchFailure,
               text("%s: %s (cudaErrorLaunchFailure)", op->what.c_str(), other.what()));
  }
  op->ended = Clock::now();
  finish(*op);
}

/// Marks the targets and everything that must run before them as wanted.
void mark(std::vector<OpPtr> open, std::vector<OpPtr>& marked) {
  while (!open.empty()) {
    const OpPtr op = std::move(open.back());
    open.pop_back();
    if (!op || op->done || op->wanted) continue;
    op->wanted = true;
    marked.push_back(op);
    open.push_back(op->before);
    open.insert(open.end(), op->after.begin(), op->after.end());
  }
}

/// The streams whose next operation may run now.
std::vector<Stream*> ready_streams(State& s, bool only_wanted) {
  std::vector<Stream*> ready;
  for (auto& stream : s.streams) {
    if (stream->queue.empty()) continue;
    const Op& head = *stream->queue.front();
    if (is_ready(head) && (!only_wanted || head.wanted)) ready.push_back(stream.get());
  }
  return ready;
}

}  // namespace

cudaError_t run_until(State& s, const std::vector<OpPtr>& targets) {
  std::vector<OpPtr> marked;
  mark(targets, marked);
  const bool only_wanted = !marked.empty() && s.random() % 2 == 0;
  for (std::size_t left = marked.size(); left > 0 && s.sticky == cudaSuccess;) {
    const std::vector<Stream*> ready = ready_streams(s, only_wanted);
    if (ready.empty()) {
      set_sticky(s, cudaErrorUnknown, "internal error: the streams wait for each other");
      break;
    }
    Stream& chosen = *ready[s.random() % ready.size()];
    left -= chosen.queue.front()->wanted;
    execute(s, chosen);
  }
  for (auto& op : marked) op->wanted = false;
  if (s.sticky != cudaSuccess) last_error = s.sticky;
  return s.sticky;
}

namespace {

cudaError_t run_stream(State& s, Stream& stream) {
  std::vector<OpPtr> targets;
  if (stream.last) targets.push_back(stream.last);
  targets.insert(targets.end(), stream.wait.begin(), stream.wait.end());
  return run_until(s, targets);
}

}  // namespace

cudaError_t run_device(State& s, int device) {
  std::vector<OpPtr> targets;
  for (auto& stream : s.streams) {
    if (stream->device == device && stream->last) targets.push_back(stream->last);
  }
  return run_until(s, targets);
}

cudaError_t run_everything(State& s) {
  std::vector<OpPtr> targets;
  for (auto& stream : s.streams) {
    if (stream->last) targets.push_back(stream->last);
  }
  return run_until(s, targets);
}

namespace {

Stream* new_stream(State& s, unsigned flags, int priority) {
  s.streams.push_back(std::make_unique<Stream>());
  Stream* const stream = s.streams.back().get();
  stream->device = device_of_thread;
  stream->flags = flags;
  stream->blocking = (flags & cudaStreamNonBlocking) == 0;
  stream->priority = priority;
  stream->number = static_cast<int>(s.streams.size()) - 1;
  s.stream_handles.insert(stream);
  return stream;
}

/// The default stream, which must not depend on one that is captured.
Stream* find_legacy_stream(State& s, const char* api, cudaError_t& error) {
  for (const auto& other : s.streams) {
    if (!other->capture || !other->blocking || other->device != device_of_thread) continue;
    other->capture->valid = false;
    error =
        fail(cudaErrorStreamCaptureImplicit,
             text("%s: on the default stream, while stream %d is captured", api, other->number));
    return nullptr;
  }
  return s.streams[static_cast<std::size_t>(device_of_thread)].get();
}

}  // namespace

Stream* find_stream(State& s, const char* api, cudaStream_t handle, cudaError_t& error) {
  if (handle == nullptr || handle == cudaStreamLegacy) return find_legacy_stream(s, api, error);
  if (handle == cudaStreamPerThread) {
    if (!stream_of_thread) stream_of_thread = new_stream(s, 0, 0);
    return stream_of_thread;
  }
  if (s.stream_handles.count(handle) == 0) {
    error = fail(cudaErrorInvalidResourceHandle,
                 text("%s: %p is not a stream", api, static_cast<void*>(handle)));
    return nullptr;
  }
  Stream* const stream = reinterpret_cast<Stream*>(handle);
  if (!stream->alive) {
    error = fail(cudaErrorContextIsDestroyed, text("%s: stream %d (%p) was destroyed", api,
                                                   stream->number, static_cast<void*>(handle)));
    return nullptr;
  }
  return stream;
}

OpPtr submit(State& s, Stream& stream, std::string what, std::function<void()> work) {
  auto op = std::make_shared<Op>();
  if (stream.capture) {
    stream.capture->graph.nodes.push_back({std::move(what), std::move(work)});
    op->done = true;
    return op;
  }
  op->what = std::move(what);
  op->work = std::move(work);
  ++s.operations;
  const auto wait_for = [&](const OpPtr& other) {
    if (other && !other->done) op->after.push_back(other);
  };
  for (const auto& event : stream.wait) wait_for(event);
  stream.wait.clear();
  if (stream.legacy) {
    for (auto& other : s.streams) {
      if (other.get() != &stream && other->device == stream.device && other->blocking)
        wait_for(other->last);
    }
  } else if (stream.blocking) {
    wait_for(s.streams[static_cast<std::size_t>(stream.device)]->last);
  }
  if (stream.last && !stream.last->done) op->before = stream.last;
  stream.last = op;
  stream.queue.push_back(op);
  if (!s.lazy) run_until(s, {op});
  return op;
}

namespace {

Event* find_event(const Call& call, cudaEvent_t handle, cudaError_t& error) {
  Event* const event = reinterpret_cast<Event*>(handle);
  if (call.s.event_handles.count(event) == 0 || !event->alive) {
    error = call.fail_with(cudaErrorInvalidResourceHandle,
                           text("%p is not an event%s", static_cast<void*>(handle),
                                call.s.event_handles.count(event) ? " any more" : ""));
    return nullptr;
  }
  return event;
}

}  // namespace

}  // namespace softcuda

using namespace softcuda;

extern "C" {

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int priority) {
  CALL("cudaStreamCreate");
  if (!stream || flags > 1) return call.fail_with(cudaErrorInvalidValue, text("flags %u", flags));
  *stream = reinterpret_cast<cudaStream_t>(new_stream(call.s, flags, std::clamp(priority, -5, 0)));
  return cudaSuccess;
}
cudaError_t cudaStreamCreate(cudaStream_t* stream) {
  return cudaStreamCreateWithPriority(stream, 0, 0);
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  return cudaStreamCreateWithPriority(stream, flags, 0);
}
cudaError_t cudaStreamDestroy(cudaStream_t handle) {
  CALL("cudaStreamDestroy");
  cudaError_t error = cudaSuccess;
  if (handle == nullptr || handle == cudaStreamLegacy || handle == cudaStreamPerThread)
    return call.fail_with(cudaErrorInvalidResourceHandle, "the default stream cannot be destroyed");
  Stream* const stream = find_stream(call.s, "cudaStreamDestroy", handle, error);
  if (!stream) return error;
  stream->alive = false;  // what is queued is still executed
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t handle) {
  STREAM_CALL("cudaStreamSynchronize", handle);
  if ((error = forbid_in_capture(call, *stream)) != cudaSuccess) return error;
  if (stream->legacy) {  // and with it what blocking streams have queued before its last operation
    submit(call.s, *stream, "cudaStreamSynchronize(legacy)", nullptr);
  }
  return run_stream(call.s, *stream);
}
cudaError_t cudaStreamQuery(cudaStream_t handle) {
  STREAM_CALL("cudaStreamQuery", handle);
  if ((error = forbid_in_capture(call, *stream)) != cudaSuccess) return error;
  if (stream->queue.empty()) return cudaSuccess;
  error = run_until(call.s, {stream->queue.front()});  // time passes
  return error != cudaSuccess ? error : cudaErrorNotReady;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t handle, cudaEvent_t event_handle, unsigned) {
  STREAM_CALL("cudaStreamWaitEvent", handle);
  if ((error = forbid_in_capture(call, *stream)) != cudaSuccess) return error;
  const Event* const event = find_event(call, event_handle, error);
  if (!event) return error;
  if (event->record && !event->record->done) stream->wait.push_back(event->record);
  return cudaSuccess;
}
cudaError_t cudaStreamGetFlags(cudaStream_t handle, unsigned* flags) {
  STREAM_CALL("cudaStreamGetFlags", handle);
  *flags = stream->flags;
  return cudaSuccess;
}
cudaError_t cudaStreamGetPriority(cudaStream_t handle, int* priority) {
  STREAM_CALL("cudaStreamGetPriority", handle);
  *priority = stream->priority;
  return cudaSuccess;
}
cudaError_t cudaStreamGetId(cudaStream_t handle, unsigned long long* id) {
  STREAM_CALL("cudaStreamGetId", handle);
  *id = static_cast<unsigned long long>(stream->number);
  return cudaSuccess;
}
cudaError_t cudaStreamGetDevice(cudaStream_t handle, int* device) {
  STREAM_CALL("cudaStreamGetDevice", handle);
  *device = stream->device;
  return cudaSuccess;
}
cudaError_t cudaLaunchHostFunc(cudaStream_t handle, cudaHostFn_t function, void* data) {
  STREAM_CALL("cudaLaunchHostFunc", handle);
  submit(call.s, *stream, "cudaLaunchHostFunc", [=] { function(data); });
  return call.s.sticky;
}
cudaError_t cudaStreamAddCallback(cudaStream_t handle, cudaStreamCallback_t function, void* data,
                                  unsigned) {
  STREAM_CALL("cudaStreamAddCallback", handle);
  if ((error = forbid_in_capture(call, *stream)) != cudaSuccess) return error;
  submit(call.s, *stream, "cudaStreamAddCallback", [=] { function(handle, cudaSuccess, data); });
  return call.s.sticky;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  CALL("cudaEventCreate");
  if (!event || flags > 7) return call.fail_with(cudaErrorInvalidValue, text("flags %u", flags));
  call.s.events.push_back(std::make_unique<Event>());
  Event* const made = call.s.events.back().get();
  made->device = device_of_thread;
  made->flags = flags;
  call.s.event_handles.insert(made);
  *event = reinterpret_cast<cudaEvent_t>(made);
  return cudaSuccess;
}
cudaError_t cudaEventCreate(cudaEvent_t* event) { return cudaEventCreateWithFlags(event, 0); }
cudaError_t cudaEventDestroy(cudaEvent_t handle) {
  CALL("cudaEventDestroy");
  cudaError_t error = cudaSuccess;
  Event* const event = find_event(call, handle, error);
  if (!event) return error;
  event->alive = false;
  event->record.reset();
  return cudaSuccess;
}
cudaError_t cudaEventRecordWithFlags(cudaEvent_t handle, cudaStream_t stream_handle, unsigned) {
  CALL("cudaEventRecord");
  cudaError_t error = cudaSuccess;
  Event* const event = find_event(call, handle, error);
  if (!event) return error;
  Stream* const stream = find_stream(call.s, "cudaEventRecord", stream_handle, error);
  if (!stream) return error;
  if ((error = forbid_in_capture(call, *stream)) != cudaSuccess) return error;
  if (event->device != stream->device)
    return call.fail_with(
        cudaErrorInvalidResourceHandle,
        text("an event of device %d in a stream of device %d", event->device, stream->device));
  event->record = submit(call.s, *stream, "cudaEventRecord", nullptr);
  return call.s.sticky;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  return cudaEventRecordWithFlags(event, stream, 0);
}
cudaError_t cudaEventSynchronize(cudaEvent_t handle) {
  CALL("cudaEventSynchronize");
  cudaError_t error = cudaSuccess;
  const Event* const event = find_event(call, handle, error);
  if (!event) return error;
  return event->record ? run_until(call.s, {event->record}) : cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t handle) {
  CALL("cudaEventQuery");
  cudaError_t error = cudaSuccess;
  const Event* const event = find_event(call, handle, error);
  if (!event) return error;
  if (!event->record || event->record->done) return cudaSuccess;
  for (auto& stream : call.s.streams) {  // time passes
    if (!stream->queue.empty()) {
      error = run_until(call.s, {stream->queue.front()});
      if (error != cudaSuccess) return error;
    }
  }
  return cudaErrorNotReady;
}
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t first, cudaEvent_t second) {
  CALL("cudaEventElapsedTime");
  cudaError_t error = cudaSuccess;
  const Event* const a = find_event(call, first, error);
  const Event* const b = a ? find_event(call, second, error) : nullptr;
  if (!a || !b) return error;
  if (!a->record || !b->record || ((a->flags | b->flags) & cudaEventDisableTiming))
    return call.fail_with(cudaErrorInvalidResourceHandle,
                          "an event was not recorded, or does not take the time");
  if (!a->record->done || !b->record->done) return cudaErrorNotReady;
  *milliseconds =
      std::chrono::duration<float, std::milli>(b->record->ended - a->record->ended).count();
  return cudaSuccess;
}

}  // extern "C"
