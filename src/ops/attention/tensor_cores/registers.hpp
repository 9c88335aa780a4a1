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
    CompiledRegisters{"FlashMma", 64, 64, 64, {162, 164, 163, 224}},
    CompiledRegisters{"FlashMma", 64, 128, 64, {160, 162, 162, 222}},
    CompiledRegisters{"FlashMma", 128, 64, 64, {193, 193, 197, 214}},
    CompiledRegisters{"FlashMma", 128, 128, 64, {201, 201, 206, 218}},
    CompiledRegisters{"FlashMma", 256, 64, 64, {250, 250, 249, 245}},
    CompiledRegisters{"FlashMma", 256, 128, 64, {250, 250, 250, 245}},
    CompiledRegisters{"FlashMmaBackwardKv", 64, 32, 64, {194, 194, 192, 212}},
    CompiledRegisters{"FlashMmaBackwardKv", 64, 64, 64, {246, 246, 244, 244}},
    CompiledRegisters{"FlashMmaBackwardKv", 128, 32, 64, {247, 247, 249, 246}},
    CompiledRegisters{"FlashMmaBackwardQ", 64, 64, 64, {220, 220, 225, 253}},
    CompiledRegisters{"FlashMmaBackwardQ", 128, 64, 64, {240, 240, 240, 255}},
};

}  // namespace katt::attention::impl
