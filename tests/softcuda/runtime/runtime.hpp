#pragma once

#include <cuda_runtime_api.h>

#include <functional>
#include <map>
#include <string>

/// What libcudart offers to the other libraries of softcuda (libraries/): errors, streams and
/// ranges.
namespace softcuda {

/// Prints `softcuda: …` once for each distinct line; SOFTCUDA_ABORT=1 aborts.
void report(const std::string& line);
[[gnu::format(printf, 1, 2)]] std::string text(const char* format, ...);
/// Reports, sets the thread's last error and returns it.
cudaError_t fail(cudaError_t error, const std::string& line);
const char* error_name(cudaError_t error);

/// Queues `work` on a stream. Returns the error of a bad stream, or the sticky error of the device.
cudaError_t enqueue(const char* api, cudaStream_t stream, const std::string& what,
                    std::function<void()> work);
/// Whether the stream is one that lives: cudaSuccess, or the error after a report.
cudaError_t check_stream(const char* api, cudaStream_t stream);
/// Whether the bytes lie in one live device allocation (or registered host memory); reports if not.
bool in_one_allocation(const char* api, const char* operand, const void* pointer,
                       std::size_t bytes);
/// The device of a stream, of the calling thread.
int stream_device(cudaStream_t stream);
int current_device();
/// The sticky error, the error of use after unload, or cudaSuccess.
cudaError_t device_state(const char* api);

/// The PTX in what __cudaRegisterFatBinary is given: of the highest architecture up to 9.0. Throws
/// std::runtime_error when there is none, or when the data is damaged.
std::string extract_ptx(const void* wrapper);
/// Registers that ptxas gave a thread of each kernel, from the machine code beside the PTX; empty
/// without machine code.
std::map<std::string, int> extract_registers(const void* wrapper);

}  // namespace softcuda
