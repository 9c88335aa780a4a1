#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>

#if defined(KATT_HAS_CUDA)
#include <cuda.h>
#include <cuda_runtime.h>
#endif

namespace katt::tile {

/// A tensor of 16-bit elements in global memory and the boxes of it that a block copies at once
/// (WgmmaBlock::load_box()). Dimension 0 is contiguous; a box has 64 elements of it, which are a
/// row of a stripe (tile::swizzled()). Dimensions beyond the tensor's rank have extent 1.
struct TensorBoxes {
  static constexpr int max_rank = 5;
  const void* data = nullptr;
  std::array<std::int64_t, max_rank> extent{1, 1, 1, 1, 1};
  std::array<std::int64_t, max_rank> stride{1, 8, 8, 8, 8};  ///< elements
  std::array<int, max_rank> box{64, 1, 1, 1, 1};

  /// True when the hardware takes them (CUDA driver API, cuTensorMapEncodeTiled).
  [[nodiscard]] bool are_encodable() const {
    if (reinterpret_cast<std::uintptr_t>(data) % 16 != 0) return false;
    for (int d = 0; d < max_rank; ++d) {
      if (extent[d] < 1 || extent[d] > 0x7FFFFFFF || box[d] < 1 || box[d] > 256) return false;
      if (d > 0 && (stride[d] < 0 || stride[d] % 8 != 0 || stride[d] >= std::int64_t{1} << 39)) {
        return false;
      }
    }
    return true;
  }
};

/// Boxes as a block is given them: described, for the emulator of the tests, until the host encodes
/// them for the device, in the same place.
struct alignas(64) TensorMap {
  std::array<std::byte, 128> bytes{};

  TensorMap() = default;
  explicit TensorMap(const TensorBoxes& boxes) {
    static_assert(sizeof(TensorBoxes) <= sizeof(bytes));
    std::memcpy(bytes.data(), &boxes, sizeof(boxes));
  }
  [[nodiscard]] TensorBoxes boxes() const {
    TensorBoxes boxes;
    std::memcpy(&boxes, bytes.data(), sizeof(boxes));
    return boxes;
  }
};

#if defined(KATT_HAS_CUDA)

/// Encodes the boxes of a map for the device. Throws std::runtime_error when the driver has no
/// tensor maps or refuses these.
inline void encode(TensorMap& map) {
  using Encode = decltype(&cuTensorMapEncodeTiled);
  static const Encode call = [] {
    void* found = nullptr;
    cudaDriverEntryPointQueryResult result{};
    if (cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000, cudaEnableDefault,
                                         &result) != cudaSuccess ||
        found == nullptr) {
      throw std::runtime_error("the CUDA driver has no cuTensorMapEncodeTiled");
    }
    return std::bit_cast<Encode>(found);
  }();
  constexpr int rank = TensorBoxes::max_rank;
  const TensorBoxes boxes = map.boxes();
  cuuint64_t extents[rank], strides[rank - 1];
  cuuint32_t box[rank], steps[rank];
  for (int d = 0; d < rank; ++d) {
    extents[d] = static_cast<cuuint64_t>(boxes.extent[d]);
    box[d] = static_cast<cuuint32_t>(boxes.box[d]);
    steps[d] = 1;
    if (d > 0) strides[d - 1] = static_cast<cuuint64_t>(boxes.stride[d]) * 2;
  }
  CUtensorMap encoded;
  static_assert(sizeof(encoded) == sizeof(map.bytes));
  const CUresult result =
      call(&encoded, CU_TENSOR_MAP_DATA_TYPE_UINT16, rank, const_cast<void*>(boxes.data), extents,
           strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
           CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS) {
    throw std::runtime_error("cuTensorMapEncodeTiled refuses a tensor: error " +
                             std::to_string(static_cast<int>(result)));
  }
  std::memcpy(map.bytes.data(), &encoded, sizeof(encoded));
}

#endif

}  // namespace katt::tile
