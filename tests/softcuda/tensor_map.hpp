#pragma once

#include <cstdint>

namespace softcuda {

/// What cuTensorMapEncodeTiled puts into the 128 bytes of a CUtensorMap, and TMA reads.
struct TensorMap {
  static constexpr std::uint32_t magic_number = 0x50414D54;
  std::uint32_t magic;
  std::uint8_t type;  ///< CUtensorMapDataType
  std::uint8_t rank;
  std::uint8_t swizzle;  ///< of 16 << swizzle bytes; 0: none
  std::uint8_t nan_fill;
  std::uint64_t address;
  std::uint64_t dims[5];
  std::uint64_t strides[4];  ///< bytes; of dimension 1 ..
  std::uint16_t box[5];
  std::uint32_t element_bytes() const {
    constexpr std::uint8_t bytes_by_type[] = {1, 2, 4, 4, 8, 8, 2, 4, 8, 2, 4, 4, 4};
    return bytes_by_type[type];
  }
  std::uint32_t box_bytes() const {
    std::uint32_t n = element_bytes();
    for (int d = 0; d < rank; ++d) n *= box[d];
    return n;
  }
};
static_assert(sizeof(TensorMap) <= 128);

}  // namespace softcuda
