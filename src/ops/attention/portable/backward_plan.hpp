#pragma once

#include <cstddef>
#include <cstdint>

#include <Kokkos_Core.hpp>

#include "core/execution.hpp"
#include "ops/attention/backward.hpp"
#include "ops/attention/problem.hpp"
#include "ops/attention/tile.hpp"
#include "tile/vec/vec.hpp"

/// Extents and memory of the portable backward pass: used by its kernels and by the choice of a
/// tile.
namespace katt::attention::impl {

/// The scratch of a team, and its size in floats: one account for both.
struct BackwardScratch {
  float *kt, *vt;      ///< head_dim × score_stride
  float *k, *dk, *dv;  ///< tile_kv × row_stride
  float *q, *dout;     ///< tile_q × row_stride
  float* dq;      ///< tile_q × row_stride, where dk and dv are: of a device's items of query rows
  float *s, *dp;  ///< tile_q × score_stride
  std::int64_t size = 0;

  KOKKOS_INLINE_FUNCTION BackwardScratch(float* memory, Tile tile, int head_dim, int row_stride,
                                         int score_stride) {
    const auto take = [&](std::int64_t rows, std::int64_t width) {
      float* begin = memory == nullptr ? nullptr : memory + size;
      size += rows * width;
      return begin;
    };
    kt = take(head_dim, score_stride);
    vt = take(head_dim, score_stride);
    k = take(tile.kv, row_stride);
    dk = take(tile.kv, row_stride);
    dv = take(tile.kv, row_stride);
    dq = dk;
    if (tile.q > 2 * tile.kv) take(tile.q - 2 * tile.kv, row_stride);
    q = take(tile.q, row_stride);
    dout = take(tile.q, row_stride);
    s = take(tile.q, score_stride);
    dp = take(tile.q, score_stride);
  }
};

/// Extents of a backward pass and of its tiles, and the parts of its workspace.
struct BackwardPlan {
  Tile tile;
  std::int64_t rows = 0;   ///< packed query rows per K/V head
  std::int64_t heads = 0;  ///< batch · kv_heads
  std::int64_t key_tiles = 0;
  std::int64_t chunks = 1;  ///< per (batch, kv head); 0: a device has no sums of dQ
  int head_dim = 0;
  int row = 0;      ///< head_dim padded to whole vectors
  int columns = 0;  ///< tile_kv padded to whole vectors
  /// Floats between rows of row and of columns elements in the scratch (apart()).
  int row_stride = 0;
  int score_stride = 0;
  /// The first chunk of a head sums its dQ in dq: on a host, where the packed rows of a head are rows of f32 there,
  /// in whole vectors.
  bool first_in_dq = false;

  BackwardPlan(const BackwardArgs& args, Tile tile_shape, int lanes, bool on_host)
      : tile(tile_shape),
        rows(args.seq_q() * (args.heads() / args.kv_heads())),
        heads(args.batch() * args.kv_heads()),
        key_tiles((args.seq_kv() + tile.kv - 1) / tile.kv),
        chunks(on_host ? key_sections(heads, key_tiles) : 0),
        head_dim(static_cast<int>(args.head_dim())),
        row((head_dim + lanes - 1) / lanes * lanes),
        columns((tile.kv + lanes - 1) / lanes * lanes),
        row_stride(apart(row, lanes, on_host)),
        score_stride(apart(columns, lanes, on_host)),
        first_in_dq(on_host && args.dq.dtype == Dtype::f32 && args.heads() == args.kv_heads() &&
                    row == head_dim) {}

  std::size_t delta_bytes() const { return aligned(sizeof(float) * count(heads * rows)); }
  std::size_t shift_bytes() const { return aligned(sizeof(RowShift) * count(heads * rows)); }
  std::size_t dq_bytes() const {
    return aligned(sizeof(float) * count(heads * copies() * rows) * count(row));
  }
  /// Sums of dQ of a head in the workspace.
  KOKKOS_INLINE_FUNCTION std::int64_t copies() const { return chunks - (first_in_dq ? 1 : 0); }
  KOKKOS_INLINE_FUNCTION BackwardScratch scratch(float* memory) const {
    return {memory, tile, head_dim, row_stride, score_stride};
  }
  std::size_t scratch_bytes() const {
    return aligned(sizeof(float) * count(scratch(nullptr).size));
  }
  template <class Exec>
  static BackwardPlan of(const BackwardArgs& args, Tile tile_shape) {
    return {args, tile_shape, tile::lanes_v<Exec>, is_host_v<Exec>};
  }
  /// Scratch of one team on a device.
  static std::size_t device_scratch_bytes(Tile tile, int head_dim) {
    return aligned(sizeof(float) *
                   count(BackwardScratch(nullptr, tile, head_dim, head_dim | 1, tile.kv | 1).size));
  }

 private:
  /// The stride of rows of `width` floats. A device's is odd: threads of a warp have a row each, and meet in a bank of
  /// shared memory where all begin in one. A host whose products read one cache line a row (ProductBlock) leaves a line
  /// between rows: those a power of two apart meet in a few sets of L1. One with AVX-512 reads four lines a row.
  static constexpr int apart(int width, int lanes, bool on_host) {
    if (!on_host) return width | 1;
    return lanes == 16 ? width : width + 16;
  }
  static constexpr std::size_t count(std::int64_t n) { return static_cast<std::size_t>(n); }
  static constexpr std::size_t aligned(std::size_t bytes) { return (bytes + 127) / 128 * 128; }
};

}  // namespace katt::attention::impl
