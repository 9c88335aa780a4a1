#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "bench/registry.hpp"

namespace katt::attention {

/// Devices whose tiles have a name: those of attention/presets.hpp, and the CPUs "avx2", "avx512"
/// and "amx".
[[nodiscard]] std::vector<std::string> tile_presets();

/// The tile of a variant for a device at a point, with the reason where the backend, this machine
/// or the dtype cannot take it. Nothing for variants that have no tiles of their own for devices.
[[nodiscard]] std::optional<bench::PresetTile> preset_tile_of(const bench::Point& point,
                                                              std::string_view variant,
                                                              std::string_view preset);

}  // namespace katt::attention
