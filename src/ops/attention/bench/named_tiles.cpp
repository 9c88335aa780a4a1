#include "ops/attention/bench/named_tiles.hpp"

#include <array>

#include "bench/machine.hpp"
#include "ops/attention/bf16_panels/backward.hpp"
#include "ops/attention/bf16_panels/forward.hpp"
#include "ops/attention/portable/device_tiles.hpp"
#include "ops/attention/presets.hpp"
#include "ops/attention/tiles.hpp"

namespace katt::attention {

namespace {

/// A CPU by its vectors; its tile keeps S, P and O of a query tile in the first two caches.
struct HostPreset {
  std::string_view name;
  int lanes;  ///< f32 of a vector
  Tile tile;
};
constexpr std::array host_presets{HostPreset{"avx2", 8, {32, 64}},
                                  HostPreset{"avx512", 16, {64, 64}}};

using Host = Kokkos::DefaultHostExecutionSpace;

/// Why bf16 panels of AMX cannot serve the point.
std::string amx_refusal(const bench::Point& point) {
  if (point.dtype != Dtype::bf16) {
    return "preset amx: the tiles of AMX take bf16, the dtype is " +
           std::string(name_of(point.dtype));
  }
  const std::string& reason = tile::amx::refusal();
  return reason.empty() ? "" : "preset amx: " + reason;
}

std::optional<bench::PresetTile> host_tile(const bench::Point& point, std::string_view preset) {
  if (preset == "amx") {
    return bench::PresetTile{point.pass == "backward" ? impl::bf16_backward_tile_list().front()
                                                      : impl::bf16_tile_list().front(),
                             amx_refusal(point)};
  }
  for (const HostPreset& known : host_presets) {
    if (known.name != preset) continue;
    if (tile::lanes_v<Host> >= known.lanes) return bench::PresetTile{known.tile};
    return bench::PresetTile{known.tile, "preset " + std::string(preset) + ": vectors of " +
                                             std::to_string(known.lanes) +
                                             " f32, this build has vectors of " +
                                             std::to_string(tile::lanes_v<Host>)};
  }
  return std::nullopt;
}

}  // namespace

std::vector<std::string> tile_presets() {
  std::vector<std::string> names{"avx2", "avx512", "amx"};
  for (const DevicePreset& device : device_presets) names.emplace_back(device.name);
  return names;
}

std::optional<bench::PresetTile> preset_tile_of(const bench::Point& point, std::string_view variant,
                                                std::string_view preset) {
  const bool on_host = point.backend != Backend::cuda;
  const auto device = device_preset(preset);
  if (variant == "flash" && !device) {
    auto choice = host_tile(point, preset);
    if (choice && !on_host) {
      choice->refusal = "preset " + std::string(preset) + " is of a CPU, the backend is cuda";
    }
    return choice;
  }
  if (!device) return std::nullopt;
  const std::int64_t head_dim = point.integer("head_dim");
  const auto shared_bytes = static_cast<std::size_t>(device->block_shared_bytes);
  const Tile portable = point.pass == "backward"
                            ? impl::portable_backward_tile(head_dim, shared_bytes)
                            : impl::portable_forward_tile(head_dim, shared_bytes);
  if (variant == "flash" || on_host) {
    if (variant != "flash") return std::nullopt;
    return bench::PresetTile{portable, on_host
                                           ? "preset " + std::string(preset) + " is of a GPU (" +
                                                 std::string(device->title) + "), the backend is " +
                                                 std::string(name_of(point.backend))
                                           : ""};
  }
  if (variant != "flash_mma" && variant != "flash_wgmma") return std::nullopt;
  const Pass pass = point.pass == "backward" ? Pass::backward : Pass::forward;
  if (const auto tile = preset_tile(*device, variant, head_dim, pass)) {
    return bench::PresetTile{*tile};
  }
  const Tile first = impl::tensor_core_tiles(variant, pass).front();
  return bench::PresetTile{first,
                           "preset " + std::string(preset) + ": " +
                               preset_supports(*device, variant, head_dim, first, pass).reason()};
}

}  // namespace katt::attention
