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
    CompiledRegisters{"FlashMma", 64, 64, 64, {168, 168, 168, 168}},
    CompiledRegisters{"FlashMma", 64, 128, 64, {168, 168, 168, 168}},
    CompiledRegisters{"FlashMma", 128, 64, 64, {208, 208, 208, 208}},
    CompiledRegisters{"FlashMma", 128, 128, 64, {208, 208, 208, 208}},
    CompiledRegisters{"FlashMma", 256, 64, 64, {255, 255, 255, 255}},
    CompiledRegisters{"FlashMma", 256, 128, 64, {255, 255, 255, 255}},
    CompiledRegisters{"FlashMmaBackwardKv", 64, 32, 64, {192, 192, 192, 192}},
    CompiledRegisters{"FlashMmaBackwardKv", 64, 64, 64, {248, 248, 248, 248}},
    CompiledRegisters{"FlashMmaBackwardKv", 128, 32, 64, {248, 248, 248, 248}},
    CompiledRegisters{"FlashMmaBackwardQ", 64, 64, 64, {248, 248, 248, 248}},
    CompiledRegisters{"FlashMmaBackwardQ", 128, 64, 64, {248, 248, 248, 248}},
};

}  // namespace katt::attention::impl
