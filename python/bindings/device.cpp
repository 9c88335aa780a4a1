#include "device.hpp"

#include <string>

#if defined(KATT_HAS_CUDA)
#include <cuda_runtime_api.h>

#define KOKKOS_IMPL_PUBLIC_INCLUDE  // Kokkos has no other way to leave an execution space for later
#include <impl/Kokkos_ExecSpaceManager.hpp>
#undef KOKKOS_IMPL_PUBLIC_INCLUDE

#include "core/device_instances.hpp"
#include "core/devices.hpp"
#include "core/error.hpp"
#endif

namespace katt::python {

#if defined(KATT_HAS_CUDA)

namespace {

/// Instances beyond this number are not kept: one costs a few allocations, and a library has a few
/// dozen streams.
constexpr std::size_t most_streams = 64;

bool cuda_runs = false;  ///< true: Kokkos' CUDA backend has started

[[noreturn]] void fail(int device, const std::string& what) {
  throw DeviceError("katt: cuda:" + std::to_string(device) + ": " +
                    what.substr(0, what.find('\n')));
}

void check(int device, cudaError_t error) {
  if (error == cudaSuccess) return;
  (void)cudaGetLastError();  // an error that the process survives must not be reported twice
  fail(device, std::string(cudaGetErrorName(error)) + ": " + cudaGetErrorString(error));
}

/// Stands for CUDA among the execution spaces that Kokkos starts and ends.
class PostponedCuda final : public Kokkos::Impl::ExecSpaceBase {
 public:
  void initialize(const Kokkos::InitializationSettings&) override {}
  void finalize() override {
    if (cuda_runs) Kokkos::Cuda::impl_finalize();
  }
  void static_fence(const std::string& name) override {
    if (cuda_runs) Kokkos::Cuda::impl_static_fence(name);
  }
  void print_configuration(std::ostream& out, bool verbose) override {
    if (cuda_runs) Kokkos::Cuda().print_configuration(out, verbose);
  }
};

}  // namespace

CurrentDevice::CurrentDevice(int device) {
  check(device, cudaGetDevice(&before_));
  check(device, cudaSetDevice(device));
}

CurrentDevice::~CurrentDevice() { (void)cudaSetDevice(before_); }

void* allocate_on(int device, std::size_t bytes) {
  const CurrentDevice current(device);
  void* memory = nullptr;
  check(device, cudaMalloc(&memory, bytes));
  return memory;
}

void free_on(int device, void* memory) noexcept {
  int before = 0;
  if (cudaGetDevice(&before) != cudaSuccess || cudaSetDevice(device) != cudaSuccess) return;
  (void)cudaFree(memory);
  (void)cudaSetDevice(before);
}

void Devices::postpone() {
  // The name under which Kokkos::Cuda has registered itself: what comes later takes its place.
  Kokkos::Impl::ExecSpaceManager::get_instance().register_space_factory(
      "150_Cuda", std::make_unique<PostponedCuda>());
}

void Devices::start(int device) {
  if (const std::string problem = devices::problem(device); !problem.empty()) {
    throw InputError("katt: cuda:" + std::to_string(device) + ": " + problem);
  }
  devices::choose(device);
  Kokkos::Cuda::impl_initialize(Kokkos::InitializationSettings().set_device_id(device));
  cuda_runs = true;
}

Devices::Stream& Devices::at(const Place& place) {
  const auto stream = static_cast<cudaStream_t>(place.stream);
  // A fault of earlier work is sticky, and Kokkos would end the process at its next call.
  const cudaError_t state = cudaStreamQuery(stream);
  if (state != cudaSuccess && state != cudaErrorNotReady) check(place.device, state);
  if (!cuda_runs) start(place.device);
  auto& found = streams_[{place.device, place.stream}];
  if (!found) {
    if (streams_.size() > most_streams) {
      streams_.clear();
      return at(place);
    }
    check_instances_on(place.device);
    Kokkos::Cuda instance(stream, Kokkos::Impl::ManageStream::no);
    check(place.device, cudaSetDevice(place.device));  // Kokkos leaves another context current
    found = std::make_unique<Stream>(place, std::move(instance));
  }
  return *found;
}

Devices::Stream::Stream(const Place& place, Kokkos::Cuda instance)
    : device(place.device), exec(std::move(instance)) {}

Devices::Stream::~Stream() { free_on(device, memory); }

Workspace Devices::Stream::workspace(std::size_t needed) {
  if (needed > bytes) {
    free_on(device, memory);  // waits for the work that uses it
    memory = nullptr;
    bytes = 0;
    memory = allocate_on(device, needed);
    bytes = needed;
  }
  return {memory, needed};
}

void Devices::rethrow(const Place& place) {
  try {
    throw;
  } catch (const InputError&) {
    throw;
  } catch (const DeviceError&) {
    throw;
  } catch (const std::exception& error) {
    (void)cudaGetLastError();
    fail(place.device, error.what());
  }
}

void Devices::finish(const Place& place, Stream& stream) {
  check(place.device, cudaGetLastError());  // of launches
  if (place.waits) {
    check(place.device, cudaStreamSynchronize(stream.exec.cuda_stream()));
  }
}

bool Devices::stop() {
  if (!cuda_runs) return true;
  for (const auto& [key, stream] : streams_) {
    if (cudaSetDevice(key.first) != cudaSuccess || cudaDeviceSynchronize() != cudaSuccess) {
      return false;
    }
  }
  streams_.clear();
  return true;
}

#else

// Arrays of devices are refused before these are reached.
void* allocate_on(int device, std::size_t) {
  throw DeviceError("katt: cuda:" + std::to_string(device) +
                    ": this package was built without CUDA");
}
void free_on(int, void*) noexcept {}

#endif

}  // namespace katt::python
