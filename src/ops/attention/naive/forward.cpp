#include "core/execution.hpp"
#include "ops/attention/naive/forward_kernel.hpp"

namespace katt::attention::impl {

#define KATT_INSTANTIATE_NAIVE_ENGINE(Exec) \
  template std::string naive_engine<Exec>(const Exec&, const ForwardArgs&);
#define KATT_INSTANTIATE_NAIVE(Exec, T)                                                 \
  template std::size_t naive_workspace_bytes<Exec, T>(const Exec&, const ForwardArgs&); \
  template void run_naive<Exec, T>(const Exec&, const ForwardArgs&, const NoRule&, Workspace);

KATT_FOR_EACH_EXEC(KATT_INSTANTIATE_NAIVE_ENGINE)
KATT_FOR_EACH_EXEC(KATT_INSTANTIATE_NAIVE, float)
KATT_FOR_EACH_EXEC(KATT_INSTANTIATE_NAIVE, f16)
KATT_FOR_EACH_EXEC(KATT_INSTANTIATE_NAIVE, bf16)

}  // namespace katt::attention::impl
