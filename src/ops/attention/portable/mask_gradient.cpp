#include "ops/attention/portable/mask_gradient.hpp"

#include "ops/attention/portable/mask_gradient_kernel.hpp"

namespace katt::attention::impl {

std::size_t mask_gradient_workspace_bytes(const Host& exec, const BackwardArgs& args) {
  const MaskGradientPlan plan(args);
  return plan.tiles.delta_bytes() + plan.tiles.shift_bytes() + plan.copy_bytes() +
         tile::team_workspace_bytes(exec, plan.scratch_bytes());
}

template void run_mask_gradient<float>(const Host&, const BackwardArgs&, const NoRule&, Workspace);
template void run_mask_gradient<f16>(const Host&, const BackwardArgs&, const NoRule&, Workspace);
template void run_mask_gradient<bf16>(const Host&, const BackwardArgs&, const NoRule&, Workspace);

}  // namespace katt::attention::impl
