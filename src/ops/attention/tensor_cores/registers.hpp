#pragma once

// Written by scripts/kernel_table --write-registers from the target tuned_kernels: do not edit.

#include <array>
#include <string_view>

namespace katt::attention::impl {

/// Registers of a thread of a kernel on mma.sync, as ptxas assigns them.
struct CompiledRegisters {
  std::string_view kernel;
  int head_dim;
  int tile_q;
  int tile_kv;
  std::array<int, 4> registers;  ///< by register_capabilities
};

inline constexpr std::array register_capabilities{80, 86, 90, 120};

inline constexpr std::array compiled_registers{
    CompiledRegisters{"FlashMma", 64, 64, 64, {152, 152, 157, 219}},
    CompiledRegisters{"FlashMma", 64, 128, 64, {152, 152, 155, 217}},
    CompiledRegisters{"FlashMma", 128, 64, 64, {183, 183, 189, 220}},
    CompiledRegisters{"FlashMma", 128, 128, 64, {190, 190, 197, 220}},
    CompiledRegisters{"FlashMma", 256, 64, 64, {245, 245, 244, 241}},
    CompiledRegisters{"FlashMma", 256, 128, 64, {245, 245, 248, 241}},
    CompiledRegisters{"FlashMmaBackwardKv", 64, 32, 64, {220, 220, 188, 199}},
    CompiledRegisters{"FlashMmaBackwardKv", 64, 64, 64, {255, 255, 248, 246}},
    CompiledRegisters{"FlashMmaBackwardKv", 128, 32, 64, {255, 255, 250, 255}},
    CompiledRegisters{"FlashMmaBackwardQ", 64, 64, 64, {255, 255, 215, 251}},
    CompiledRegisters{"FlashMmaBackwardQ", 128, 64, 64, {255, 255, 238, 254}},
};

}  // namespace katt::attention::impl
