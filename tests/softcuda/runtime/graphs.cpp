#include <memory>

#include "tests/softcuda/runtime/state.hpp"

// CUDA graphs: a capture notes what a stream is given, and a launch of the graph repeats it.

namespace softcuda {

cudaError_t forbid_in_capture(const Call& call, const Stream& stream) {
  if (!stream.capture) return cudaSuccess;
  stream.capture->valid = false;
  return call.fail_with(cudaErrorStreamCaptureUnsupported,
                        text("stream %d is captured", stream.number));
}

cudaError_t forbid_in_captures(const Call& call, bool relaxed_allow_it) {
  for (const auto& stream : call.s.streams) {
    if (!stream->capture || stream->device != device_of_thread) continue;
    if (relaxed_allow_it && stream->capture->mode == cudaStreamCaptureModeRelaxed) continue;
    return forbid_in_capture(call, *stream);
  }
  return cudaSuccess;
}

namespace {

/// The graph of a handle, or nullptr after a report.
Graph* find_graph(const Call& call, const void* handle, cudaError_t& error) {
  if (const auto at = call.s.graphs.find(handle); at != call.s.graphs.end()) {
    return at->second.get();
  }
  error = call.fail_with(cudaErrorInvalidValue, text("%p is not a graph", handle));
  return nullptr;
}

Graph* add_graph(State& s, Graph graph) {
  auto made = std::make_unique<Graph>(std::move(graph));
  Graph* const handle = made.get();
  s.graphs[handle] = std::move(made);
  return handle;
}

cudaError_t destroy(const Call& call, const void* handle) {
  cudaError_t error = cudaSuccess;
  if (!find_graph(call, handle, error)) return error;
  call.s.graphs.erase(handle);
  return cudaSuccess;
}

}  // namespace
}  // namespace softcuda

using namespace softcuda;

extern "C" {

cudaError_t cudaStreamBeginCapture(cudaStream_t handle, cudaStreamCaptureMode mode) {
  STREAM_CALL("cudaStreamBeginCapture", handle);
  if (stream->legacy) {
    return call.fail_with(cudaErrorStreamCaptureUnsupported, "the default stream");
  }
  if (stream->capture) {
    return call.fail_with(cudaErrorIllegalState, text("stream %d is captured", stream->number));
  }
  stream->capture = std::make_unique<Capture>(Capture{mode, true, {}});
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t handle, cudaGraph_t* graph) {
  STREAM_CALL("cudaStreamEndCapture", handle);
  *graph = nullptr;
  if (!stream->capture) {
    return call.fail_with(cudaErrorIllegalState, text("stream %d is not captured", stream->number));
  }
  const std::unique_ptr<Capture> capture = std::move(stream->capture);
  if (!capture->valid) {
    return call.fail_with(cudaErrorStreamCaptureInvalidated, text("stream %d", stream->number));
  }
  *graph = reinterpret_cast<cudaGraph_t>(add_graph(call.s, std::move(capture->graph)));
  return cudaSuccess;
}
cudaError_t cudaStreamIsCapturing(cudaStream_t handle, cudaStreamCaptureStatus* status) {
  STREAM_CALL("cudaStreamIsCapturing", handle);
  *status = !stream->capture         ? cudaStreamCaptureStatusNone
            : stream->capture->valid ? cudaStreamCaptureStatusActive
                                     : cudaStreamCaptureStatusInvalidated;
  return cudaSuccess;
}
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode*) { return cudaSuccess; }

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* made, cudaGraph_t handle, unsigned long long) {
  CALL("cudaGraphInstantiate");
  cudaError_t error = cudaSuccess;
  const Graph* const graph = find_graph(call, handle, error);
  if (graph) *made = reinterpret_cast<cudaGraphExec_t>(add_graph(call.s, *graph));
  return error;
}
/// Only the number of nodes: they have no handles.
cudaError_t cudaGraphGetNodes(cudaGraph_t handle, cudaGraphNode_t* nodes, std::size_t* count) {
  CALL("cudaGraphGetNodes");
  cudaError_t error = cudaSuccess;
  const Graph* const graph = find_graph(call, handle, error);
  if (!graph) return error;
  if (nodes) return call.fail_with(cudaErrorNotSupported, "softcuda knows only their number");
  *count = graph->nodes.size();
  return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t handle, cudaStream_t stream_handle) {
  CALL("cudaGraphLaunch");
  cudaError_t error = cudaSuccess;
  const Graph* const graph = find_graph(call, handle, error);
  if (!graph) return error;
  Stream* const stream = find_stream(call.s, call.api, stream_handle, error);
  if (!stream) return error;
  if ((error = forbid_in_capture(call, *stream)) != cudaSuccess) return error;
  for (const Graph::Node& node : graph->nodes) submit(call.s, *stream, node.what, node.work);
  return call.s.sticky;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  CALL("cudaGraphDestroy");
  return destroy(call, graph);
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph) {
  CALL("cudaGraphExecDestroy");
  return destroy(call, graph);
}

}  // extern "C"
