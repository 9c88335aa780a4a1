#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "core/status.hpp"
#include "ops/attention/attention.hpp"
#include "ops/attention/attention_fragments.hpp"
#include "ops/attention/attention_tiles.hpp"

/// Tiles of the tensor-core variants, and what fits which device.
namespace katt::attention::impl {

/// The tiles of flash_mma; the first is the default. This list alone names, dispatches and
/// instantiates them, for every head_dim of TensorCoreHeadDims.
using MmaTiles = TileList<TileShape<64, 64>, TileShape<128, 64>>;

/// The tiles of flash_wgmma, likewise; the first fits every head_dim.
using WgmmaTiles = TileList<TileShape<128, 64>, TileShape<128, 128>>;

/// Whether scores (tile_kv / 2 registers of a thread), probabilities (tile_kv / 4) and output
/// (head_dim / 2) leave room for the rest in the 224 registers that a computing thread has.
constexpr bool wgmma_fits_registers(int head_dim, int tile_kv) {
  return tile_kv / 2 + tile_kv / 4 + head_dim / 2 <= 176;
}

/// What head_dim is padded to, in registers and shared memory.
inline constexpr std::array tensor_core_head_dims{64, 128, 256};

/// Calls f.operator()<HeadDim, Shape>() for the least padded head_dim that holds `head_dim` and for
/// the tile; false where the list lacks the tile.
template <class Tiles, class F>
bool visit_tensor_core_tile(std::int64_t head_dim, Tile tile, F&& f) {
  return Tiles::visit(tile, [&]<class Shape>() {
    if (head_dim <= tensor_core_head_dims[0]) {
      f.template operator()<tensor_core_head_dims[0], Shape>();
    } else if (head_dim <= tensor_core_head_dims[1]) {
      f.template operator()<tensor_core_head_dims[1], Shape>();
    } else {
      f.template operator()<tensor_core_head_dims[2], Shape>();
    }
  });
}

/// What every tensor-core variant asks of the arguments: f16 or bf16, and rows at multiples of 16
/// bytes.
inline Status tensor_core_supports(const ForwardArgs& args) {
  constexpr std::int64_t limit = std::int64_t{1} << 30;  // positions are 32-bit
  if (args.q.dtype == Dtype::f32) return Status::skipped("takes f16 and bf16, not f32");
  if (args.seq_q() * args.heads() > limit || args.seq_kv() > limit) {
    return Status::skipped("takes up to " + std::to_string(limit) +
                           " keys, and queries of all heads");
  }
  const auto refused = [](const char* name) {
    return Status::skipped("rows of " + std::string(name) +
                           " do not begin at multiples of 16 bytes");
  };
  if (!rows_are_aligned(args.q)) return refused("q");
  if (!rows_are_aligned(args.k)) return refused("k");
  if (!rows_are_aligned(args.v)) return refused("v");
  if (!rows_are_aligned(args.out)) return refused("out");
  return Status::ok();
}

}  // namespace katt::attention::impl
