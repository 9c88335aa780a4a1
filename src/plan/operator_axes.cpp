#include "plan/operator_axes.hpp"

#include <algorithm>
#include <utility>

#include "machine/machine.hpp"
#include "plan/axes.hpp"

namespace katt::bench {

std::vector<std::string> built_backends() {
  std::vector<std::string> names;
  for (const Backend backend : all_backends) {
    if (is_built(backend)) names.emplace_back(name_of(backend));
  }
  return names;
}

std::vector<std::string> dtype_names() {
  std::vector<std::string> names;
  for (const Dtype dtype : all_dtypes) names.emplace_back(name_of(dtype));
  return names;
}

std::vector<AxisSpec> common_axes(const Operator& op) {
  const std::vector<std::string> backends = built_backends();
  return {
      {.name = "pass",
       .fallback = op.passes().front(),
       .choices = op.passes(),
       .help = "what to run"},
      {.name = "backend",
       .fallback = backends.front(),
       .choices = backends,
       .help = "where to run: openmp, serial, cuda"},
      {.name = "threads",
       .fallback = std::int64_t{0},
       .minimum = 1,
       .maximum = thread_limit,
       .help = "host threads (default: every core)"},
      {.name = "dtype",
       .fallback = std::string("f32"),
       .choices = dtype_names(),
       .help = "element type"},
  };
}

std::vector<AxisSpec> all_axes(const Operator& op) {
  std::vector<AxisSpec> axes = common_axes(op);
  for (AxisSpec& axis : op.axes()) axes.push_back(std::move(axis));
  return axes;
}

std::vector<std::string> axis_keys(const Operator& op) {
  std::vector<std::string> keys;
  for (const auto& specs : {op.axes(), common_axes(op)}) {
    for (const AxisSpec& spec : specs) {
      if (!spec.short_name.empty()) keys.push_back(spec.short_name);
      keys.push_back(spec.name);
    }
  }
  keys.insert(keys.end(), {"variant", "peer", "candidate", "tile", "tile_q", "tile_kv", "paired"});
  return keys;
}

std::optional<std::string> axis_of_key(const Operator& op, std::string_view key) {
  for (const AxisSpec& spec : op.axes()) {
    if (key == spec.name || (!spec.short_name.empty() && key == spec.short_name)) return spec.name;
  }
  const auto keys = axis_keys(op);
  if (std::find(keys.begin(), keys.end(), key) != keys.end()) return std::string(key);
  return std::nullopt;
}

std::vector<std::string> variant_names(const Operator& op) {
  std::vector<std::string> names{std::string(auto_variant)};
  for_each_variant(op, [&](const VariantInfo& info) { add_once(names, info.name); });
  return names;
}

std::vector<std::string> preset_names(const Operator& op) {
  std::vector<std::string> names;
  for_each_variant(op, [&](const VariantInfo& info) {
    for (const std::string& name : info.presets) add_once(names, name);
  });
  return names;
}

void fill_rest(const Operator& op, Point& point) {
  const auto axes = op.axes();
  for (const AxisSpec& axis : axes) {
    if (point.values.contains(axis.name)) continue;
    const AxisSpec* source = &axis;
    std::size_t steps = 0;
    while (!source->follows.empty() && !point.values.contains(source->name) &&
           steps++ < axes.size()) {
      const auto next = std::find_if(axes.begin(), axes.end(), [&](const AxisSpec& other) {
        return other.name == source->follows;
      });
      if (next == axes.end()) break;
      source = &*next;
    }
    const auto known = point.values.find(source->name);
    point.values[axis.name] = known != point.values.end() ? known->second : source->fallback;
  }
}

Point default_point(const Operator& op, Backend backend, std::string_view pass, Dtype dtype) {
  Point point;
  point.pass = pass;
  point.backend = backend;
  point.threads = resolved_threads(backend, 0);
  point.dtype = dtype;
  fill_rest(op, point);
  return point;
}

std::string refusal_here(const Operator& op, Backend backend, std::string_view pass,
                         const std::string& variant) {
  const auto refusal = [&](const Point& point) -> std::string {
    try {
      return op.supports(point, {.variant = variant}).reason();
    } catch (const InputError& error) {
      return error.what();
    }
  };
  std::string reason;
  for (const Dtype dtype : all_dtypes) {
    Point point = default_point(op, backend, pass, dtype);
    reason = refusal(point);
    for (const char* axis : {"seq_q", "tokens"}) {
      const auto found = point.values.find(axis);
      if (found != point.values.end()) found->second = std::int64_t{1};
    }
    if (reason.empty() || refusal(point).empty()) return {};
  }
  return reason;
}

}  // namespace katt::bench
