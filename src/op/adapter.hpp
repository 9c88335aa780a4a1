#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>

#include "core/error.hpp"
#include "core/text.hpp"
#include "io/hdf5/case_file.hpp"
#include "machine/machine.hpp"
#include "op/buffer.hpp"
#include "op/registry.hpp"
#include "op/variants.hpp"

/// What the bench adapters of operators have in common.
namespace katt::bench {

/// An axis of integers from `minimum` on.
inline AxisSpec integer_axis(std::string name, std::int64_t fallback, double minimum,
                             std::string help, double maximum = static_cast<double>(1LL << 31)) {
  AxisSpec axis;
  axis.name = std::move(name);
  axis.fallback = fallback;
  axis.minimum = minimum;
  axis.maximum = maximum;
  axis.help = std::move(help);
  return axis;
}

/// An axis of real numbers.
inline AxisSpec real_axis(std::string name, double fallback, double minimum, double maximum,
                          std::string help) {
  AxisSpec axis;
  axis.name = std::move(name);
  axis.fallback = fallback;
  axis.minimum = minimum;
  axis.maximum = maximum;
  axis.help = std::move(help);
  return axis;
}

/// Integers in the memory of a backend.
inline Buffer integer_buffer(const std::string& label, Backend backend,
                             std::span<const std::int64_t> values) {
  const auto bytes = std::as_bytes(values);
  Buffer buffer(label, backend, bytes.size());
  buffer.upload(bytes);
  return buffer;
}

inline const std::int64_t* integers_of(const Buffer& buffer) {
  return reinterpret_cast<const std::int64_t*>(buffer.data());
}

/// Runs one variant to its end, for `katt run`, and returns which. Throws InputError for a variant
/// or tile that is refused and a workspace that does not fit.
template <class Exec, class Args>
Config run_variant(const std::string& op, const Exec& exec, const VariantTable<Exec, Args>& table,
                   const Args& args, const Config& request) {
  const Config config = table.resolve(exec, args, request);
  if (const Status status = table.supports(exec, args, config); !status.is_ok()) {
    throw InputError(op + ": variant " + config.variant + ": " + status.reason());
  }
  const std::size_t needed = table.workspace_bytes(exec, args, config);
  if (const std::size_t available = available_memory(backend_of<Exec>()); needed > available) {
    throw InputError(op + ": variant " + config.variant + " needs " +
                     human_bytes(static_cast<double>(needed)) + " of workspace, " +
                     human_bytes(static_cast<double>(available)) + " are available");
  }
  const Buffer workspace("katt::" + op + "::workspace", backend_of<Exec>(), needed);
  if (const Status status = table.run(exec, args, config, workspace.workspace()); !status.is_ok()) {
    throw InputError(op + ": " + status.reason());
  }
  exec.fence("katt::bench::run_variant");
  return config;
}

/// Writes which variant ran, and its setting, as attributes of an output file: "variant", "tile_q"
/// and so on; "backward_variant" … of the backward pass.
template <class Exec, class Args>
void record_variant(io::TensorFile& out, const VariantTable<Exec, Args>& table,
                    const Config& config, bool backward = false) {
  const std::string prefix = backward ? "backward_" : "";
  out.set_attribute(prefix + "variant", config.variant);
  const auto& parameters = table.find(config.variant).parameters;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    out.set_attribute(prefix + parameters[i], std::int64_t{config.setting.at(i)});
  }
}

}  // namespace katt::bench
