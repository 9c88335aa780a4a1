#pragma once

#include <cstddef>
#include <cstdint>

#include "core/host_device.hpp"
#include "core/parts.hpp"
#include "core/tensor.hpp"

/// Ternary weights in memory: quantisation, packing and dequantisation, done once, before a layer
/// is used.
namespace katt::ternary_linear {

/// How weights in {−1, 0, 1} lie in bytes. Both code a weight w as the digit w + 1 and a row in
/// blocks of 64 bytes: byte j of a block holds the weights j, 64 + j, 128 + j, … of the block, so
/// that one vector of bytes unpacks into whole vectors of consecutive weights.
enum class PackFormat : std::uint8_t {
  two_bit,  ///< 4 weights a byte: bits 2k and 2k + 1 are digit k
  five_per_byte  ///< 5 weights a byte, 1.6 bits each: ⌈v · 256 / 243⌉ for v = Σ_k digit_k · 3^(4 −
                 ///< k)
};

inline constexpr std::int64_t block_bytes = 64;

/// Weights in one byte.
KATT_INLINE_FUNCTION constexpr int digits_per_byte(PackFormat format) {
  return format == PackFormat::two_bit ? 4 : 5;
}

/// Weights in one block of 64 bytes.
KATT_INLINE_FUNCTION constexpr std::int64_t block_weights(PackFormat format) {
  return block_bytes * digits_per_byte(format);
}

/// A packed (out_features, in_features) weight. Does not own its memory, which holds the scale s_w
/// of every row as f32, padding to 64 bytes, and the rows, each padded with zero weights to whole
/// blocks. The rows of a weight have one scale; matrices that lie below each other, as q, k and v of
/// a model, are packed one by one and multiplied as one.
struct PackedTernary {
  std::byte* data = nullptr;
  PackFormat format = PackFormat::two_bit;
  std::int64_t out_features = 0;
  std::int64_t in_features = 0;

  explicit operator bool() const { return data != nullptr; }
  std::int64_t row_blocks() const {
    return (in_features + block_weights(format) - 1) / block_weights(format);
  }
  std::int64_t row_bytes() const { return row_blocks() * block_bytes; }
  std::size_t scale_bytes() const { return aligned_bytes<float>(out_features); }
  float* scales() const { return reinterpret_cast<float*>(data); }
  std::uint8_t* rows() const { return reinterpret_cast<std::uint8_t*>(data + scale_bytes()); }
};

/// Bytes of a packed weight.
[[nodiscard]] std::size_t packed_bytes(PackFormat format, std::int64_t out_features,
                                       std::int64_t in_features);

/// Bytes of workspace that pack() needs for so many rows.
[[nodiscard]] std::size_t pack_workspace_bytes(std::int64_t rows);

/// Quantises a weight (rows, in_features) of any dtype and packs it into the rows first_row … of a
/// packed one (BitNet b1.58, Ma et al. 2024, arXiv:2402.17764):
///
///   s_w = max(mean |W|, 1e-5),  W_q = clamp(round(W / s_w), −1, 1), half to even, in f64
///
/// Launches on the instance and does not wait; workspace: pack_workspace_bytes(rows). Throws
/// InputError where the shapes differ or the workspace is too small.
template <class Exec>
void pack(const Exec& exec, const ConstTensorRef<2>& weight, const PackedTernary& packed,
          Workspace workspace, std::int64_t first_row = 0);

/// out = W_q · s_w, columns first … first + columns of out: (out_features, columns) of any dtype. A
/// `first` that is a multiple of block_weights() is the fast way.
template <class Exec>
void dequantise(const Exec& exec, const PackedTernary& packed, std::int64_t first,
                const TensorRef<2>& out);

}  // namespace katt::ternary_linear
