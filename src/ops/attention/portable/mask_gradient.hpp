#pragma once

#include <algorithm>
#include <cstddef>

#include "core/dtype.hpp"
#include "core/execution.hpp"
#include "core/status.hpp"
#include "op/variants.hpp"
#include "ops/attention/backward.hpp"

/// The gradient of the mask (BackwardArgs::dmask): a pass over the scores after the backward pass of
/// any variant of a host.
namespace katt::attention::impl {

/// Δ and RowShift of every row, the tile scratch of every thread, and of a mask of few tiles copies of
/// them: linear in seq_q.
[[nodiscard]] std::size_t mask_gradient_workspace_bytes(const Host& exec, const BackwardArgs& args);

template <class T, class Rule>
void run_mask_gradient(const Host& exec, const BackwardArgs& args, const Rule& rule,
                       Workspace workspace);

/// Variants of the backward pass that also compute dmask where the arguments ask for it. The
/// variants of a device refuse it.
template <class Exec, class Rule>
VariantTable<Exec, BackwardArgs> with_mask_gradient(const VariantTable<Exec, BackwardArgs>& plain,
                                                    const Rule& rule) {
  using Args = BackwardArgs;
  VariantTable<Exec, Args> table{};
  for (Variant<Exec, Args> variant : plain.all()) {
    if constexpr (is_host_v<Exec>) {
      variant.workspace_bytes = [own = variant.workspace_bytes](const Exec& exec, const Args& args,
                                                                const Setting& setting) {
        const std::size_t bytes = own ? own(exec, args, setting) : 0;
        return args.dmask ? std::max(bytes, mask_gradient_workspace_bytes(exec, args)) : bytes;
      };
      variant.run = [own = variant.run, rule](const Exec& exec, const Args& args,
                                              const Setting& setting, Workspace workspace) {
        own(exec, args, setting, workspace);
        if (!args.dmask) return;
        visit_dtype(args.q.dtype,
                    [&]<class T>() { run_mask_gradient<T>(exec, args, rule, workspace); });
      };
    } else {
      (void)rule;
      variant.supports = [own = variant.supports](const Exec& exec, const Args& args,
                                                  const Setting& setting) {
        if (args.dmask) {
          return Status::skipped("dmask: only hosts compute the gradient of the mask");
        }
        return own ? own(exec, args, setting) : Status::ok();
      };
    }
    table.add(variant);
  }
  return table;
}

}  // namespace katt::attention::impl
