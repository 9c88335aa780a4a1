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
  return reinterpret_cast<CUcontext>(0x5C0DA000UL + 16UL * device);
}
int device_of(CUcontext context) {
  return static_cast<int>((reinterpret_cast<unsigned long>(context) - 0x5C0DA000UL) / 16);
}
bool valid(CUcontext context) {
  int count = 0;
  cudaGetDeviceCount(&count);
  for (int i = 0; i < count; ++i) {
    if (context == context_of(i)) return true;
  }
  return false;
}

// Why a tensor map is refused; "" when it is not.

std::string trouble_of_map(const CUtensorMap* to, CUtensorMapDataType type, cuuint32_t rank,
                           const void* address, CUtensorMapInterleave interleave,
                           CUtensorMapSwizzle swizzle) {
  if (!to || reinterpret_cast<std::uintptr_t>(to) % 64 != 0) {
    return "the map must be aligned to 64 bytes";
  }
  if (rank < 1 || rank > 5) return "rank " + std::to_string(rank);
  if (type < 0 || type > CU_TENSOR_MAP_DATA_TYPE_TFLOAT32_FTZ) {
    return "the data type " + std::to_string(type);
  }
  if (!address || reinterpret_cast<std::uintptr_t>(address) % 16 != 0) {
    return "the address must be a multiple of 16";
  }
  if (interleave != CU_TENSOR_MAP_INTERLEAVE_NONE) {
    return "interleaving is not supported by softcuda";
  }
  if (swizzle < 0 || swizzle > CU_TENSOR_MAP_SWIZZLE_128B) {
    return "the swizzle " + std::to_string(swizzle) + " is not supported by softcuda";
  }
  return "";
}

std::string trouble_of_dimension(cuuint32_t d, cuuint64_t extent, cuuint64_t stride, cuuint32_t box,
                                 cuuint32_t element_stride) {
  const std::string which = " of dimension " + std::to_string(d) + ": ";
  if (extent == 0 || extent > (1ULL << 32)) return "extent" + which + std::to_string(extent);
  if (box == 0 || box > 256) return "box" + which + std::to_string(box) + ", at most 256";
  if (element_stride != 1) {
    return "element stride" + which + std::to_string(element_stride) +
           " is not supported by softcuda";
  }
  if (stride % 16 != 0 || stride >= (1ULL << 40)) {
    return "stride" + which + std::to_string(stride) +
           " bytes, must be a multiple of 16 below 2^40";
  }
  return "";
}

/// The fault of a row of the box, `bytes` long; "" without one.
std::string trouble_of_row(cuuint32_t bytes, CUtensorMapSwizzle swizzle) {
  const cuuint32_t span = 16U << swizzle;
  const std::string row = "a row of the box has " + std::to_string(bytes) + " bytes, ";
  if (bytes % 16 != 0) return row + "must be a multiple of 16";
  if (swizzle == CU_TENSOR_MAP_SWIZZLE_NONE || bytes == span) return "";
  if (bytes > span) return row + "more than the swizzle's " + std::to_string(span);
  return row + "fewer than its swizzle's, which is not supported by softcuda";
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

/// Refuses what the driver refuses, and what softcuda has not: interleaving, strides of elements, and
/// a box that is narrower than its swizzle.
CUresult cuTensorMapEncodeTiled(CUtensorMap* to, CUtensorMapDataType type, cuuint32_t rank,
                                void* address, const cuuint64_t* dims, const cuuint64_t* strides,
                                const cuuint32_t* box, const cuuint32_t* element_strides,
                                CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                                CUtensorMapL2promotion, CUtensorMapFloatOOBfill fill) {
  std::string trouble = trouble_of_map(to, type, rank, address, interleave, swizzle);
  for (cuuint32_t d = 0; d < rank && trouble.empty(); ++d) {
    const cuuint64_t stride = d == 0 ? 0 : strides[d - 1];
    trouble = trouble_of_dimension(d, dims[d], stride, box[d], element_strides[d]);
  }
  softcuda::TensorMap m{};
  if (trouble.empty()) {
    m.magic = softcuda::TensorMap::magic_number;
    m.type = static_cast<std::uint8_t>(type);
    m.rank = static_cast<std::uint8_t>(rank);
    m.swizzle = static_cast<std::uint8_t>(swizzle);
    m.nan_fill = fill == CU_TENSOR_MAP_FLOAT_OOB_FILL_NAN_REQUEST_ZERO_FMA;
    m.address = reinterpret_cast<std::uint64_t>(address);
    for (cuuint32_t d = 0; d < rank; ++d) {
      m.dims[d] = dims[d];
      m.box[d] = static_cast<std::uint16_t>(box[d]);
      if (d > 0) m.strides[d - 1] = strides[d - 1];
    }
    trouble = trouble_of_row(box[0] * m.element_bytes(), swizzle);
  }
  if (!trouble.empty()) {
    softcuda::report("cuTensorMapEncodeTiled: " + trouble);
    return CUDA_ERROR_INVALID_VALUE;
  }
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
