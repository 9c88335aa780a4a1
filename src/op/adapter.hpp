#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/error.hpp"
#include "core/text.hpp"
#include "io/hdf5/case_file.hpp"
#include "machine/machine.hpp"
#include "op/buffer.hpp"
#include "op/registry.hpp"
#include "op/variants.hpp"

/// Parts that the adapters of operators share.
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

/// An axis that is 1 or 0.
inline AxisSpec flag_axis(std::string name, std::string help, bool fallback = false) {
  return integer_axis(std::move(name), fallback ? 1 : 0, 0, std::move(help), 1);
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

/// The variants of a table as users see them; the first is the baseline.
template <class Exec, class Args>
std::vector<VariantInfo> describe(const VariantTable<Exec, Args>& table) {
  std::vector<VariantInfo> infos;
  for (const auto& variant : table.all()) {
    infos.push_back(
        {variant.name, variant.description, infos.empty(), variant.parameters, variant.settings});
    for (const auto& preset : variant.presets) infos.back().presets.push_back(preset.name);
  }
  return infos;
}

/// A preset of a variant for these arguments; nothing where the variant has none of that name.
template <class Exec, class Args>
std::optional<PresetTile> find_preset(const VariantTable<Exec, Args>& table, const Exec& exec,
                                      const Args& args, std::string_view variant,
                                      std::string_view name) {
  for (const auto& preset : table.find(std::string(variant)).presets) {
    if (preset.name != name) continue;
    const Status status = preset.supports ? preset.supports(exec, args, {}) : Status::ok();
    return PresetTile{preset.setting(exec, args, {}), status.reason()};
  }
  return std::nullopt;
}

/// A call of a pass, decided (Call of op/variants.hpp), whatever the operator's arguments are.
class DecidedCall {
 public:
  virtual ~DecidedCall() = default;
  [[nodiscard]] virtual const Status& status() const = 0;
  [[nodiscard]] virtual Config config() const = 0;
  /// Names of the values of config().setting.
  [[nodiscard]] virtual const std::vector<std::string>& parameters() const = 0;
  [[nodiscard]] virtual std::size_t workspace_bytes() const = 0;
  [[nodiscard]] virtual std::string engine() const = 0;
  virtual void launch(Workspace workspace) = 0;
  virtual void fence() = 0;
};

/// Owns the instance and the arguments of its call.
template <class Exec, class Args>
class DecidedCallOf final : public DecidedCall {
 public:
  DecidedCallOf(Exec exec, const VariantTable<Exec, Args>& table, const Args& args,
                const Config& config)
      : exec_(std::move(exec)), args_(args), call_(table.call(exec_, args_, config)) {}

  [[nodiscard]] const Status& status() const override { return call_.status(); }
  [[nodiscard]] Config config() const override { return call_.config(); }
  [[nodiscard]] const std::vector<std::string>& parameters() const override {
    return call_.variant().parameters;
  }
  [[nodiscard]] std::size_t workspace_bytes() const override { return call_.workspace_bytes(); }
  [[nodiscard]] std::string engine() const override { return call_.engine(); }
  void launch(Workspace workspace) override { call_.launch(workspace); }
  void fence() override { exec_.fence("katt::bench::call"); }

 private:
  Exec exec_;
  Args args_;
  Call<Exec, Args> call_;
};

/// Runs a call to its end, for `katt run`. Throws InputError where it is refused and where its
/// workspace does not fit.
void run_to_end(const std::string& op, DecidedCall& call, Backend backend);

/// The same for a variant of a table; returns what ran.
template <class Exec, class Args>
Config run_variant(const std::string& op, const Exec& exec, const VariantTable<Exec, Args>& table,
                   const Args& args, const Config& request) {
  DecidedCallOf<Exec, Args> call(exec, table, args, request);
  run_to_end(op, call, backend_of<Exec>());
  return call.config();
}

/// Writes which variant ran, and its setting by the names of `parameters`, as attributes of an output
/// file: "variant", "tile_q" and so on; "backward_variant" … of the backward pass.
void record_variant(io::TensorFile& out, const Config& config,
                    std::span<const std::string> parameters, bool backward = false);

}  // namespace katt::bench
