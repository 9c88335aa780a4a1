#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/status.hpp"
#include "ops/attention/attention.hpp"
#include "ops/attention/tensor_cores/kernels/fragments.hpp"
#include "ops/attention/tile.hpp"

/// Tiles of the tensor-core variants, and the devices that they fit.
namespace katt::attention::impl {

/// The tiles of flash_mma; the first is the default. This list alone names, dispatches and
/// instantiates them, for every head_dim of TensorCoreHeadDims.
using MmaTiles = TileList<TileShape<64, 64>, TileShape<128, 64>>;

/// The tiles of its backward pass: query rows that meet the keys of a block at a time × those keys.
/// The kernel of dQ has blocks of 64 query rows, which meet as many keys.
using MmaBackwardTiles = TileList<TileShape<32, 64>, TileShape<64, 64>>;
inline constexpr int backward_block_rows = 64;

/// True when P and dS (tile_q / 2 registers of a thread each), dK and dV (head_dim / 2 each) leave
/// room for the rest in 255 registers.
constexpr bool backward_fits_registers(int head_dim, int tile_q) {
  return tile_q + head_dim <= 160;
}

/// The tiles of flash_wgmma, likewise, each for some head_dim alone; the default is
/// wgmma_default_tile().
using WgmmaTiles = TileList<TileShape<128, 64>, TileShape<128, 80>, TileShape<128, 96>,
                            TileShape<128, 128>, TileShape<128, 176>, TileShape<192, 128>>;

/// True for the tiles that are built for a padded head_dim: those whose scores (tile_kv / 2
/// registers of a thread), probabilities (tile_kv / 4) and output (head_dim / 2) and whose two
/// stages fit, and which are fastest for some problem; and 128×64.
constexpr bool wgmma_is_built(int head_dim, Tile tile) {
  if (tile == Tile{128, 64}) return true;
  switch (head_dim) {
    case 64: return tile == Tile{128, 128} || tile == Tile{192, 128};
    case 96: return tile == Tile{128, 128};
    case 128: return tile == Tile{128, 128} || tile == Tile{128, 176};
    case 192: return tile == Tile{128, 96};
    default: return tile == Tile{128, 80};
  }
}

/// The padded head_dim in registers.
inline constexpr std::array mma_head_dims{64, 128, 256};
inline constexpr std::array wgmma_head_dims{64, 96, 128, 192, 256};

/// The default tile of flash_wgmma: the fastest one under a causal mask on an H100
/// (docs/performance/devices_attention.md); of 96 and 192, which have run on none, by the cycle model.
constexpr Tile wgmma_default_tile(std::int64_t head_dim) {
  if (head_dim <= 64) return {192, 128};
  if (head_dim <= 128) return {128, 128};
  return head_dim <= 192 ? Tile{128, 96} : Tile{128, 80};
}

/// Calls f.operator()<HeadDim>() for the least of the padded head_dims that holds `head_dim`, or for
/// the last.
template <const auto& HeadDims, std::size_t I = 0, class F>
void visit_head_dim(std::int64_t head_dim, F&& f) {
  if constexpr (I + 1 < HeadDims.size()) {
    if (head_dim > HeadDims[I]) return visit_head_dim<HeadDims, I + 1>(head_dim, f);
  }
  f.template operator()<HeadDims[I]>();
}

/// Calls f.operator()<HeadDim, Shape>() likewise, for the tile; false where the list lacks the tile.
template <class Tiles, const auto& HeadDims, class F>
bool visit_tensor_core_tile(std::int64_t head_dim, Tile tile, F&& f) {
  return Tiles::visit(tile, [&]<class Shape>() {
    visit_head_dim<HeadDims>(head_dim,
                             [&]<int HeadDim>() { f.template operator()<HeadDim, Shape>(); });
  });
}

/// The padded head_dims of the backward passes. dK and dV of 256 do not fit a thread's registers:
/// flash_wgmma has a kernel for each.
inline constexpr std::array backward_head_dims{64, 128};
inline constexpr std::array wgmma_backward_head_dims{64, 128, 256};

/// ok, or skipped when head_dim is too large for flash_mma's backward pass.
inline Status tensor_core_backward_takes(std::int64_t head_dim) {
  if (head_dim <= backward_head_dims.back()) return Status::ok();
  return Status::skipped("takes head_dim up to " + std::to_string(backward_head_dims.back()) +
                         ", not " + std::to_string(head_dim) +
                         ": dK and dV of a tile would not fit the registers");
}

/// The padded head_dim of flash_mma's backward pass.
constexpr int backward_head_dim(std::int64_t head_dim) {
  return head_dim <= backward_head_dims[0] ? backward_head_dims[0] : backward_head_dims[1];
}

/// Calls f.operator()<HeadDim, Shape>() for a head_dim that tensor_core_backward_takes() and a tile of
/// flash_mma that fits registers; false for others.
template <class F>
bool visit_backward_tile(std::int64_t head_dim, Tile tile, F&& f) {
  bool found = false;
  MmaBackwardTiles::visit(tile, [&]<class Shape>() {
    visit_head_dim<backward_head_dims>(head_dim, [&]<int HeadDim>() {
      if constexpr (backward_fits_registers(HeadDim, Shape::q)) {
        f.template operator()<HeadDim, Shape>();
        found = true;
      }
    });
  });
  return found;
}

/// The tiles of flash_wgmma's backward pass: query rows that meet the keys of a block at a time ×
/// those keys. At head_dim 256 they are those of dV; dK takes half as many rows, or keys, values, rows
/// and gradients do not fit shared memory.
using WgmmaBackwardTiles = TileList<TileShape<64, 128>>;
/// Its kernel of dQ: the query rows of a block × keys that they meet at a time.
constexpr Tile wgmma_backward_q_tile(int head_dim) {
  return {128, head_dim <= 64 ? 128 : head_dim <= 128 ? 64 : 32};
}

/// The tiles that are built for a head_dim; the last, which has the most query rows, is the
/// default.
inline std::vector<Tile> backward_tiles(std::int64_t head_dim) {
  std::vector<Tile> tiles;
  for (const Tile tile : MmaBackwardTiles::all()) {
    if (backward_fits_registers(backward_head_dim(head_dim), tile.q)) tiles.push_back(tile);
  }
  return tiles;
}

/// The requirements of every tensor-core variant on the arguments of its pass: f16 or bf16, and
/// rows at multiples of 16 bytes.
template <class Args>
Status tensor_core_supports(const Args& args) {
  constexpr std::int64_t limit = std::int64_t{1} << 30;  // positions are 32-bit
  if (args.q.dtype == Dtype::f32) return Status::skipped("takes f16 and bf16, not f32");
  if (args.seq_q() * args.heads() > limit || args.seq_kv() > limit) {
    return Status::skipped("takes up to " + std::to_string(limit) +
                           " keys, and queries of all heads");
  }
  Status status = Status::ok();
  const auto require_aligned = [&](const char* name, const ConstTensorRef<4>& tensor) {
    if (status.is_ok() && !rows_are_aligned(tensor)) {
      status = Status::skipped("rows of " + std::string(name) +
                               " do not begin at multiples of 16 bytes");
    }
  };
  require_aligned("q", args.q);
  require_aligned("k", args.k);
  require_aligned("v", args.v);
  require_aligned("out", args.out);
  if constexpr (requires { args.dout; }) {
    require_aligned("dout", args.dout);
    require_aligned("dq", args.dq);
    require_aligned("dk", args.dk);
    require_aligned("dv", args.dv);
  }
  return status;
}

}  // namespace katt::attention::impl
