// A user's program that needs an operator and nothing else of katt.
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <vector>

#include <Kokkos_Core.hpp>
#include <katt/core/execution.hpp>
#include <katt/ops/softmax/softmax.hpp>

int main(int argc, char** argv) {
  const Kokkos::ScopeGuard kokkos(argc, argv);
  const katt::Host exec;
  constexpr int rows = 3;
  constexpr int columns = 40;
  const Kokkos::View<float**, Kokkos::LayoutRight, Kokkos::HostSpace> x("x", rows, columns);
  for (int r = 0; r < rows; ++r) {
    for (int c = 0; c < columns; ++c) x(r, c) = static_cast<float>(r * c % 7);
  }
  const katt::softmax::ForwardArgs args{.x = x, .out = x};
  const katt::Config config{.variant = "fused"};
  std::vector<std::byte> workspace(
      katt::softmax::forward_variants<katt::Host>().workspace_bytes(exec, args, config));
  const katt::Status status =
      katt::softmax::forward(exec, args, config, {workspace.data(), workspace.size()});
  exec.fence();
  for (int r = 0; r < rows && status.is_ok(); ++r) {
    float sum = 0;
    for (int c = 0; c < columns; ++c) sum += x(r, c);
    if (std::abs(sum - 1.0F) > 1e-5F) return 1;
  }
  std::printf("softmax: %s\n", status.is_ok() ? "ok" : status.reason().c_str());
  return status.is_ok() ? 0 : 1;
}
