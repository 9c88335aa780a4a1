#pragma once

#include <array>
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "core/execution.hpp"
#include "op/variants.hpp"
#include "ops/attention/gpus.hpp"
#include "ops/attention/tile.hpp"
#include "tile/vec/vec.hpp"

/// Tiles of the portable variants by the name of a CPU or GPU.
namespace katt::attention::impl {

/// A CPU by its vectors; its tile keeps S, P and O of a query tile in the first two caches.
struct CpuPreset {
  std::string_view name;
  int lanes;  ///< f32 of a vector
  Tile tile;
};
inline constexpr std::array cpu_presets{CpuPreset{"avx2", 8, {32, 64}},
                                        CpuPreset{"avx512", 16, {64, 64}},
                                        CpuPreset{"amx", 16, {64, 64}}};

/// The presets; gpu_tile(head_dim, shared_bytes) is the tile for a block with so much shared memory.
template <class Exec, class Args, class GpuTile>
std::vector<Preset<Exec, Args>> portable_presets(const GpuTile& gpu_tile) {
  const auto elsewhere = [](std::string_view name, const std::string& what) {
    return Status::skipped("preset " + std::string(name) + " is of a " + what +
                           ", the backend is " + std::string(name_of(backend_of<Exec>())));
  };
  std::vector<Preset<Exec, Args>> presets;
  for (const CpuPreset& cpu : cpu_presets) {
    Status status = Status::ok();
    if (!is_host_v<Exec>) {
      status = elsewhere(cpu.name, "CPU");
    } else if (tile::lanes_v<Host> < cpu.lanes) {
      status = Status::skipped("preset " + std::string(cpu.name) + ": vectors of " +
                               std::to_string(cpu.lanes) + " f32, this build has vectors of " +
                               std::to_string(tile::lanes_v<Host>));
    }
    presets.push_back({std::string(cpu.name), cpu.tile, status});
  }
  for (const Gpu& gpu : gpus) {
    presets.push_back({std::string(gpu.name),
                       [gpu, gpu_tile](const Args& args) {
                         return gpu_tile(args.head_dim(),
                                         static_cast<std::size_t>(gpu.block_shared_bytes));
                       },
                       is_host_v<Exec> ? elsewhere(gpu.name, "GPU (" + std::string(gpu.title) + ")")
                                       : Status::ok()});
  }
  return presets;
}

}  // namespace katt::attention::impl
