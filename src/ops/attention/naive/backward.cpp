#include "core/execution.hpp"
#include "ops/attention/naive/backward_kernel.hpp"

namespace katt::attention::impl {

#define KATT_INSTANTIATE_NAIVE_BACKWARD_ENGINE(Exec) \
  template std::string naive_engine<Exec>(const Exec&, const BackwardArgs&);
#define KATT_INSTANTIATE_NAIVE_BACKWARD(Exec, T)                                         \
  template std::size_t naive_workspace_bytes<Exec, T>(const Exec&, const BackwardArgs&); \
  template void run_naive<Exec, T>(const Exec&, const BackwardArgs&, const NoRule&, Workspace);

KATT_FOR_EACH_EXEC(KATT_INSTANTIATE_NAIVE_BACKWARD_ENGINE)
KATT_FOR_EACH_EXEC(KATT_INSTANTIATE_NAIVE_BACKWARD, float)
KATT_FOR_EACH_EXEC(KATT_INSTANTIATE_NAIVE_BACKWARD, f16)
KATT_FOR_EACH_EXEC(KATT_INSTANTIATE_NAIVE_BACKWARD, bf16)

}  // namespace katt::attention::impl
