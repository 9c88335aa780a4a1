#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/error.hpp"
#include "op/buffer.hpp"
#include "op/registry.hpp"
#include "op/variants.hpp"

namespace katt::bench {

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

/// A candidate for any operation with a variant table: owns its outputs (an object with poison())
/// and the workspace, and leaves the check of the outputs to a function.
template <class Exec, class Args, class Output>
class VariantCandidate final : public Candidate {
 public:
  using Check = std::function<Errors(const Output&)>;

  /// `label` names the workspace's allocation, e.g. "katt::attention::workspace".
  VariantCandidate(const std::string& label, Exec exec, const VariantTable<Exec, Args>& table,
                   Args args, const Config& config, Output output, Check check)
      : exec_(std::move(exec)),
        args_(std::move(args)),
        call_(table.call(exec_, args_, config)),
        output_(std::move(output)),
        check_(std::move(check)),
        workspace_(label, backend_of<Exec>(), call_.workspace_bytes()) {
    if (!call_.status().is_ok()) throw InputError(call_.status().reason());
  }

  void run() override { call_.launch(workspace_.workspace()); }
  void fence() override { exec_.fence("katt::bench::candidate"); }
  void poison() override { output_.poison(); }
  Errors verify() override { return check_(output_); }
  [[nodiscard]] std::string engine() const override { return call_.engine(); }

 private:
  Exec exec_;
  Args args_;
  Call<Exec, Args> call_;
  Output output_;
  Check check_;
  Buffer workspace_;
};

}  // namespace katt::bench
