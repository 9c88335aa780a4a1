#include <string>

#include "core/execution.hpp"
#include "ops/attention/portable/backward_kernel.hpp"
#include "ops/attention/portable/device_tiles.hpp"
#include "ops/attention/portable/portable.hpp"
#include "ops/attention/portable/tiles.hpp"

namespace katt::attention::impl {

template <class Exec, class T>
Status flash_supports(const Exec& exec, const BackwardArgs& args, Tile tile) {
  return tile::teams_support(
      exec, BackwardPlan::of<Exec>(args, tile).scratch_bytes(),
      "tile " + names({tile}) + " at head_dim " + std::to_string(args.head_dim()));
}

template <class Exec, class T>
std::size_t flash_workspace_bytes(const Exec& exec, const BackwardArgs& args, Tile tile) {
  const auto plan = BackwardPlan::of<Exec>(args, tile);
  return plan.delta_bytes() + plan.shift_bytes() + plan.dq_bytes() +
         tile::team_workspace_bytes(exec, plan.scratch_bytes());
}

#define KATT_INSTANTIATE_FLASH_BACKWARD(Exec, T)                                               \
  template Status flash_supports<Exec, T>(const Exec&, const BackwardArgs&, Tile);             \
  template std::size_t flash_workspace_bytes<Exec, T>(const Exec&, const BackwardArgs&, Tile); \
  template void run_flash<Exec, T>(const Exec&, const BackwardArgs&, const NoRule&, Tile,      \
                                   Workspace);
KATT_FOR_EACH_EXEC(KATT_INSTANTIATE_FLASH_BACKWARD, float)
KATT_FOR_EACH_EXEC(KATT_INSTANTIATE_FLASH_BACKWARD, f16)
KATT_FOR_EACH_EXEC(KATT_INSTANTIATE_FLASH_BACKWARD, bf16)

}  // namespace katt::attention::impl
