#include <cuda.h>

#include <cstring>
#include <string>

#include "tests/softcuda/runtime/runtime.hpp"
#include "tests/softcuda/tensor_map.hpp"

#undef cuCtxPushCurrent
#undef cuCtxPopCurrent
#undef cuCtxGetDevice
#undef cuStreamGetCtx
#undef cuDeviceTotalMem

// libcuda.so.1: the functions of the driver's interface that programs use beside the runtime's.

namespace {
thread_local int pushed[64];
thread_local int depth = 0;
CUcontext context_of(int device) {
  return reinterpret_cast<CUcontext>(0x5C0DA000ul + 16ul * device);
}
int device_of(CUcontext context) {
  return static_cast<int>((reinterpret_cast<unsigned long>(context) - 0x5C0DA000ul) / 16);
}
bool valid(CUcontext context) {
  int count = 0;
  cudaGetDeviceCount(&count);
  for (int i = 0; i < count; ++i) {
    if (context == context_of(i)) return true;
  }
  return false;
}
}  // namespace

extern "C" {

CUresult cuInit(unsigned) { return CUDA_SUCCESS; }
CUresult cuDriverGetVersion(int* version) {
  *version = 13000;
  return CUDA_SUCCESS;
}
CUresult cuDeviceGetCount(int* count) {
  cudaGetDeviceCount(count);
  return CUDA_SUCCESS;
}
CUresult cuDeviceGet(CUdevice* device, int ordinal) {
  *device = ordinal;
  return CUDA_SUCCESS;
}
CUresult cuDeviceGetName(char* name, int length, CUdevice) {
  std::strncpy(name, "softcuda (PTX interpreter)", static_cast<std::size_t>(length));
  return CUDA_SUCCESS;
}
CUresult cuCtxGetDevice(CUdevice* device) {
  *device = softcuda::current_device();
  return CUDA_SUCCESS;
}
CUresult cuCtxGetCurrent(CUcontext* context) {
  *context = context_of(softcuda::current_device());
  return CUDA_SUCCESS;
}
CUresult cuCtxSetCurrent(CUcontext context) {
  if (context == nullptr) return CUDA_SUCCESS;
  if (!valid(context)) {
    softcuda::report("cuCtxSetCurrent: that is not a context");
    return CUDA_ERROR_INVALID_CONTEXT;
  }
  return static_cast<CUresult>(cudaSetDevice(device_of(context)));
}
CUresult cuCtxPushCurrent_v2(CUcontext context) {
  if (!valid(context)) {
    softcuda::report("cuCtxPushCurrent: that is not a context");
    return CUDA_ERROR_INVALID_CONTEXT;
  }
  if (depth < 64) pushed[depth++] = softcuda::current_device();
  return static_cast<CUresult>(cudaSetDevice(device_of(context)));
}
CUresult cuCtxPopCurrent_v2(CUcontext* context) {
  if (context) *context = context_of(softcuda::current_device());
  if (depth == 0) return CUDA_ERROR_INVALID_CONTEXT;
  return static_cast<CUresult>(cudaSetDevice(pushed[--depth]));
}
CUresult cuStreamGetCtx(CUstream stream, CUcontext* context) {
  if (const cudaError_t error = softcuda::check_stream("cuStreamGetCtx", stream))
    return static_cast<CUresult>(error);
  *context = context_of(softcuda::stream_device(stream));
  return CUDA_SUCCESS;
}
CUresult cuGetErrorName(CUresult error, const char** name) {
  *name = cudaGetErrorName(static_cast<cudaError_t>(error));
  return CUDA_SUCCESS;
}
CUresult cuGetErrorString(CUresult error, const char** name) {
  *name = cudaGetErrorString(static_cast<cudaError_t>(error));
  return CUDA_SUCCESS;
}

/// Refuses what the driver refuses, and what softcuda has not: interleaving, strides of elements,
/// and a box that is narrower than its swizzle.
CUresult cuTensorMapEncodeTiled(CUtensorMap* to, CUtensorMapDataType type, cuuint32_t rank,
                                void* address, const cuuint64_t* dims, const cuuint64_t* strides,
                                const cuuint32_t* box, const cuuint32_t* element_strides,
                                CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                                CUtensorMapL2promotion, CUtensorMapFloatOOBfill fill) {
  const auto refuse = [](const std::string& why) {
    softcuda::report("cuTensorMapEncodeTiled: " + why);
    return CUDA_ERROR_INVALID_VALUE;
  };
  if (!to || reinterpret_cast<std::uintptr_t>(to) % 64 != 0)
    return refuse("the map must be aligned to 64 bytes");
  if (rank < 1 || rank > 5) return refuse("rank " + std::to_string(rank));
  if (type < 0 || type > CU_TENSOR_MAP_DATA_TYPE_TFLOAT32_FTZ)
    return refuse("the data type " + std::to_string(type));
  if (!address || reinterpret_cast<std::uintptr_t>(address) % 16 != 0)
    return refuse("the address must be a multiple of 16");
  if (interleave != CU_TENSOR_MAP_INTERLEAVE_NONE)
    return refuse("interleaving is not supported by softcuda");
  if (swizzle < 0 || swizzle > CU_TENSOR_MAP_SWIZZLE_128B)
    return refuse("the swizzle " + std::to_string(swizzle) + " is not supported by softcuda");
  softcuda::TensorMap m{};
  m.magic = softcuda::TensorMap::magic_number;
  m.type = static_cast<std::uint8_t>(type);
  m.rank = static_cast<std::uint8_t>(rank);
  m.swizzle = static_cast<std::uint8_t>(swizzle);
  m.nan_fill = fill == CU_TENSOR_MAP_FLOAT_OOB_FILL_NAN_REQUEST_ZERO_FMA;
  m.address = reinterpret_cast<std::uint64_t>(address);
  for (cuuint32_t d = 0; d < rank; ++d) {
    const std::string which = " of dimension " + std::to_string(d) + ": ";
    if (dims[d] == 0 || dims[d] > (1ull << 32))
      return refuse("extent" + which + std::to_string(dims[d]));
    if (box[d] == 0 || box[d] > 256)
      return refuse("box" + which + std::to_string(box[d]) + ", at most 256");
    if (element_strides[d] != 1)
      return refuse("element stride" + which + std::to_string(element_strides[d]) +
                    " is not supported by softcuda");
    m.dims[d] = dims[d];
    m.box[d] = static_cast<std::uint16_t>(box[d]);
    if (d == 0) continue;
    if (strides[d - 1] % 16 != 0 || strides[d - 1] >= (1ull << 40))
      return refuse("stride" + which + std::to_string(strides[d - 1]) +
                    " bytes, must be a multiple of 16 below 2^40");
    m.strides[d - 1] = strides[d - 1];
  }
  const std::uint32_t inner = box[0] * m.element_bytes(), span = 16u << swizzle;
  if (inner % 16 != 0)
    return refuse("a row of the box has " + std::to_string(inner) +
                  " bytes, must be a multiple of 16");
  if (swizzle && inner > span)
    return refuse("a row of the box has " + std::to_string(inner) +
                  " bytes, more than the swizzle's " + std::to_string(span));
  if (swizzle && inner < span)
    return refuse("a row of the box narrower than the swizzle is not supported by softcuda");
  std::memset(static_cast<void*>(to), 0, sizeof *to);
  std::memcpy(static_cast<void*>(to), &m, sizeof m);
  return CUDA_SUCCESS;
}
CUresult cuTensorMapReplaceAddress(CUtensorMap* map, void* address) {
  const auto a = reinterpret_cast<std::uint64_t>(address);
  if (a % 16 != 0) return CUDA_ERROR_INVALID_VALUE;
  std::memcpy(reinterpret_cast<char*>(map) + offsetof(softcuda::TensorMap, address), &a, 8);
  return CUDA_SUCCESS;
}

}  // extern "C"
