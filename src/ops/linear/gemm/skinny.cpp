#include "ops/linear/gemm/skinny.hpp"

#include "core/execution.hpp"
#include "ops/linear/gemm/inner/products.hpp"
#include "ops/linear/gemm/outer/few_rows.hpp"
#include "ops/linear/gemm/outer/low_rank.hpp"

namespace katt::linear::impl {

bool is_skinny(const GemmArgs& args) {
  return is_inner(args) || is_few_rows(args) || is_low_rank(args);
}

template <class Exec>
std::size_t skinny_workspace_bytes(const Exec& exec, const GemmArgs& args, SkinnyUnit unit) {
  if (args.trans_b) return inner_workspace_bytes(exec, args, unit);
  return args.trans_a ? low_rank_workspace_bytes<Exec>(args, unit)
                      : few_rows_workspace_bytes<Exec>(args, unit);
}

template <class Exec>
void skinny_product(const Exec& exec, const GemmArgs& args, SkinnyUnit unit, Workspace workspace,
                    const char* label) {
  if (args.trans_b) return inner_products(exec, args, unit, workspace, label);
  if (args.trans_a) return low_rank(exec, args, unit, workspace, label);
  few_rows(exec, args, unit, workspace, label);
}

#define KATT_INSTANTIATE_SKINNY(Exec)                                                          \
  template std::size_t skinny_workspace_bytes<Exec>(const Exec&, const GemmArgs&, SkinnyUnit); \
  template void skinny_product<Exec>(const Exec&, const GemmArgs&, SkinnyUnit, Workspace,      \
                                     const char*);

KATT_INSTANTIATE_SKINNY(Host)

}  // namespace katt::linear::impl
