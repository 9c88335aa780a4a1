#pragma once

#include <cstddef>
#include <cstdint>

#include "core/dtype.hpp"
#include "ops/linear/gemm/gemm.hpp"
#include "tile/bf16/bf16_units.hpp"
#include "tile/extents.hpp"

/// Operands of the products of gemm/bf16/bf16.cpp, and their prefetches.
#if defined(KATT_BF16_PANELS)
namespace katt::linear::impl {

namespace bf16_panels = tile::bf16_panels;

/// A factor of the product: `extent` indices i over k steps. In a gated product panels of sixteen
/// rows of the gate and of `data` alternate, as many of each as make panels.
struct Factor {
  const bf16* data;
  std::int64_t stride;
  bool along;  ///< rows run along k: element (i, k) at i · stride + k, else at k · stride + i
  std::int64_t rows, k;
  const bf16* gate = nullptr;
  ElementScales scales{};  ///< not of one with a gate

  std::int64_t extent() const { return gate == nullptr ? rows : 2 * round_up(rows, panel); }

  const bf16* at(std::int64_t index, std::int64_t step) const {
    if (gate == nullptr) return data + (along ? index * stride + step : step * stride + index);
    return (is_gate(index) ? gate : data) + row_of(index) * stride + step;
  }
  /// Indices from the beginning of a panel on that are there.
  std::int64_t count(std::int64_t index) const {
    return rows - (gate == nullptr ? index : row_of(index));
  }
  /// From the first panel of a strip of rows along k to its second.
  std::int64_t panel_bytes() const {
    if (gate == nullptr) return panel * stride * static_cast<std::int64_t>(sizeof(bf16));
    return static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(data) -
                                     reinterpret_cast<std::uintptr_t>(gate));
  }

 private:
  static constexpr std::int64_t panel = bf16_panels::rows;
  static bool is_gate(std::int64_t index) { return index / panel % 2 == 0; }
  static std::int64_t row_of(std::int64_t index) {
    return index / (2 * panel) * panel + index % panel;
  }
};

/// Prefetches so many cache lines at every step.
struct Ahead {
  const std::byte* from = nullptr;
  std::int64_t line_bytes = 0, step_bytes = 0;  ///< distances of lines and of steps
  int lines = 0;

  void operator()() {
    for (int i = 0; i < lines; ++i) __builtin_prefetch(from + i * line_bytes, 0, 2);
    from += step_bytes;
  }
};

/// Work beside the products of a multiplication: prefetches alone.
struct Prefetches {
  Ahead first, second;

  KOKKOS_FORCEINLINE_FUNCTION void ahead() {
    first();
    second();
  }
  KOKKOS_FORCEINLINE_FUNCTION void share(int /*i*/, int /*n*/) const {}
};

/// Operands of a product (bf16_units.hpp). Packed, 32 steps of k are `step_bytes` apart.
struct PackedWalk {
  const std::byte* from;
  std::int64_t step_bytes;

  static bf16_panels::Packed<PackedWalk> of(const std::byte* from, int panels) {
    return {{.from = from, .step_bytes = panels * bf16_panels::panel_bytes}};
  }
  KOKKOS_FORCEINLINE_FUNCTION const bf16* operator()(int step) const {
    return reinterpret_cast<const bf16*>(from + step * step_bytes);
  }
};

/// Rows along k of a left factor, where they lie.
struct RowWalk {
  const bf16* from;
  std::int64_t row_bytes, panel_bytes;

  RowWalk(const Factor& factor, std::int64_t index, std::int64_t step)
      : from(factor.at(index, step)),
        row_bytes(factor.stride * 2),
        panel_bytes(factor.panel_bytes()) {}
  KOKKOS_FORCEINLINE_FUNCTION const bf16* operator()(int step) const {
    return from + step * bf16_panels::depth;
  }
};

}  // namespace katt::linear::impl
#endif
