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
    CompiledRegisters{"FlashMma", 64, 64, 64, {154, 154, 157, 221}},
    CompiledRegisters{"FlashMma", 64, 128, 64, {153, 153, 155, 219}},
    CompiledRegisters{"FlashMma", 128, 64, 64, {187, 187, 189, 223}},
    CompiledRegisters{"FlashMma", 128, 128, 64, {194, 194, 197, 227}},
    CompiledRegisters{"FlashMma", 256, 64, 64, {246, 246, 244, 240}},
    CompiledRegisters{"FlashMma", 256, 128, 64, {248, 248, 248, 240}},
    CompiledRegisters{"FlashMmaBackwardKv", 64, 32, 64, {167, 167, 165, 217}},
    CompiledRegisters{"FlashMmaBackwardKv", 64, 64, 64, {217, 217, 217, 255}},
    CompiledRegisters{"FlashMmaBackwardKv", 128, 32, 64, {235, 235, 233, 255}},
    CompiledRegisters{"FlashMmaBackwardQ", 64, 64, 64, {202, 202, 204, 243}},
    CompiledRegisters{"FlashMmaBackwardQ", 128, 64, 64, {234, 234, 236, 251}},
};

}  // namespace katt::attention::impl
