#pragma once

#include <type_traits>

#include "core/execution.hpp"
#include "ops/attention/tile.hpp"

/// The tiles that the portable kernels are built for.
namespace katt::attention::impl {

#if defined(KATT_HAS_CUDA) || defined(KATT_FEW_TILES)
/// A CUDA build has its host backends for tests, without vectors: few tiles, for a short build. So
/// has a build with sanitizers.
using HostFlashTiles = TileList<TileShape<64, 64>, TileShape<32, 32>, TileShape<32, 64>>;
#else
/// Tiles whose S, P and O stay in L1 or L2.
using HostFlashTiles =
    TileList<TileShape<64, 64>, TileShape<16, 64>, TileShape<32, 32>, TileShape<32, 64>,
             TileShape<32, 128>, TileShape<64, 32>, TileShape<64, 128>, TileShape<64, 256>,
             TileShape<128, 64>, TileShape<128, 128>>;
#endif

/// Tiles for shared memory; the default depends on head_dim, see portable/device_tiles.hpp.
using DeviceFlashTiles = TileList<TileShape<64, 32>, TileShape<32, 32>, TileShape<64, 64>,
                                  TileShape<128, 32>, TileShape<32, 16>>;

/// The tiles of the flash variant, by backend; portable/device_tiles.hpp has a host's default. Only
/// this list names, dispatches and instantiates them.
template <class Exec>
using FlashTiles = std::conditional_t<is_host_v<Exec>, HostFlashTiles, DeviceFlashTiles>;

}  // namespace katt::attention::impl
