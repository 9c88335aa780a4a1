// Makes Open MPI take device memory, as one that is built with CUDA does: the four calls through which the communicator
// sends go by buffers of the host. Preloaded by tests/cli/test_device_transports.py.
#define OMPI_SKIP_MPICXX 1
#include <cuda_runtime_api.h>
#include <mpi.h>

#include <map>
#include <utility>
#include <vector>

namespace {

struct Buffer {
  void* device = nullptr;  ///< of what is received
  std::vector<char> host;
};

std::map<MPI_Request, Buffer>& buffers() {
  static std::map<MPI_Request, Buffer> all;
  return all;
}

bool is_on_device(const void* data) {
  cudaPointerAttributes attributes{};
  return cudaPointerGetAttributes(&attributes, data) == cudaSuccess &&
         attributes.type == cudaMemoryTypeDevice;
}

void arrive(const std::vector<MPI_Request>& ended) {
  for (const MPI_Request request : ended) {
    const auto found = buffers().find(request);
    if (found == buffers().end()) continue;
    const Buffer& buffer = found->second;
    if (buffer.device != nullptr) {
      cudaMemcpy(buffer.device, buffer.host.data(), buffer.host.size(), cudaMemcpyHostToDevice);
    }
    buffers().erase(found);
  }
}

}  // namespace

extern "C" {

int MPIX_Query_cuda_support() { return 1; }

int MPI_Isend(const void* data, int bytes, MPI_Datatype type, int to, int tag, MPI_Comm comm,
              MPI_Request* request) {
  if (!is_on_device(data)) return PMPI_Isend(data, bytes, type, to, tag, comm, request);
  Buffer buffer{nullptr, std::vector<char>(static_cast<std::size_t>(bytes))};
  cudaMemcpy(buffer.host.data(), data, buffer.host.size(), cudaMemcpyDeviceToHost);
  // Synchronous, so that the request is one of its own: small messages share one that has ended.
  const int code = PMPI_Issend(buffer.host.data(), bytes, type, to, tag, comm, request);
  buffers()[*request] = std::move(buffer);
  return code;
}

int MPI_Irecv(void* data, int bytes, MPI_Datatype type, int from, int tag, MPI_Comm comm,
              MPI_Request* request) {
  if (!is_on_device(data)) return PMPI_Irecv(data, bytes, type, from, tag, comm, request);
  Buffer buffer{data, std::vector<char>(static_cast<std::size_t>(bytes))};
  const int code = PMPI_Irecv(buffer.host.data(), bytes, type, from, tag, comm, request);
  buffers()[*request] = std::move(buffer);
  return code;
}

int MPI_Testall(int count, MPI_Request* requests, int* done, MPI_Status* statuses) {
  const std::vector<MPI_Request> all(requests, requests + count);
  const int code = PMPI_Testall(count, requests, done, statuses);
  if (*done != 0) arrive(all);
  return code;
}

int MPI_Waitall(int count, MPI_Request* requests, MPI_Status* statuses) {
  const std::vector<MPI_Request> all(requests, requests + count);
  const int code = PMPI_Waitall(count, requests, statuses);
  arrive(all);
  return code;
}

}  // extern "C"
