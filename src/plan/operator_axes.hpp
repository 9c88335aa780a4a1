#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "op/registry.hpp"

/// The axes and other keys that a sweep may name of an operator, and its points.
namespace katt::bench {

/// Calls f(info) for the variants of every backend of this build and every pass.
template <class F>
void for_each_variant(const Operator& op, const F& f) {
  for (const Backend backend : all_backends) {
    if (!is_built(backend)) continue;
    for (const std::string& pass : op.passes()) {
      for (const VariantInfo& info : op.variants(backend, pass)) f(info);
    }
  }
}

/// Names of the backends of this build, and of all dtypes.
[[nodiscard]] std::vector<std::string> built_backends();
[[nodiscard]] std::vector<std::string> dtype_names();

/// The axes of every operator: pass, backend, threads, dtype.
[[nodiscard]] std::vector<AxisSpec> common_axes(const Operator& op);
/// These, and then the operator's own.
[[nodiscard]] std::vector<AxisSpec> all_axes(const Operator& op);

/// Every key that an entry of this operator may hold: axes by name and short name, variant, peer,
/// candidate, tile, tile_q, tile_kv, paired.
[[nodiscard]] std::vector<std::string> axis_keys(const Operator& op);

/// The axis that a key means ("seq" → "seq_q"), or nothing.
[[nodiscard]] std::optional<std::string> axis_of_key(const Operator& op, std::string_view key);

/// Names of devices that can stand in place of a tile, e.g. "h200", "amx".
[[nodiscard]] std::vector<std::string> preset_names(const Operator& op);

/// The point with all axes at their fallback.
[[nodiscard]] Point default_point(const Operator& op, Backend backend, std::string_view pass,
                                  Dtype dtype);

/// The reason, at the default point, why no point of a variant can run on this machine; empty when
/// a point can, in some dtype, at the default axes or with one token.
[[nodiscard]] std::string refusal_here(const Operator& op, Backend backend, std::string_view pass,
                                       const std::string& variant);

/// Names of an operator's variants on the backends of this build, `auto` first.
[[nodiscard]] std::vector<std::string> variant_names(const Operator& op);

/// Sets the axes that a point lacks: to the value of the axis that they follow, or to their fallback.
void fill_rest(const Operator& op, Point& point);

}  // namespace katt::bench
