#pragma once

#include <array>
#include <optional>
#include <string_view>

namespace katt {

/// The resources of a GPU's multiprocessor (CUDA C++ Programming Guide, "Technical Specifications
/// per Compute Capability"), the number of multiprocessors, and the speed of the memory (NVIDIA's
/// data sheets).
struct Gpu {
  std::string_view name;  ///< as users type it
  std::string_view title;
  int capability;          ///< 10 · major + minor
  int threads;             ///< resident threads
  int blocks;              ///< resident blocks
  int registers;           ///< 32-bit registers
  int shared_bytes;        ///< of the multiprocessor
  int block_shared_bytes;  ///< that one block can have
  int multiprocessors;
  int memory_gb_s;  ///< 10⁹ bytes a second
};

/// The GPUs with known tiles and occupancies; scripts/kernel_table reads these lines.
inline constexpr std::array gpus{
    Gpu{"rtx3090ti", "RTX 3090 Ti", 86, 1536, 16, 65536, 102400, 101376, 84, 1008},
    Gpu{"rtx5080", "RTX 5080", 120, 1536, 24, 65536, 102400, 101376, 84, 960},
    Gpu{"a100", "A100", 80, 2048, 32, 65536, 167936, 166912, 108, 1555},
    Gpu{"h100", "H100", 90, 2048, 32, 65536, 233472, 232448, 132, 3352},
    Gpu{"h200", "H200", 90, 2048, 32, 65536, 233472, 232448, 132, 4800},
};

/// The GPU of that name, or nothing.
constexpr std::optional<Gpu> find_gpu(std::string_view name) {
  for (const Gpu& gpu : gpus) {
    if (gpu.name == name) return gpu;
  }
  return std::nullopt;
}

}  // namespace katt
