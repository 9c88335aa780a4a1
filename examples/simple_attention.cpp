// Attention on tensors of your own: allocate views, ask for the workspace, run, and compare flash
// with naive.
#include <cmath>
#include <cstdio>

#include <Kokkos_Core.hpp>

#include "ops/attention/attention.hpp"

using Exec = Kokkos::DefaultExecutionSpace;
using Tensor = Kokkos::View<float****, Kokkos::LayoutRight, Exec::memory_space>;

/// Runs a variant and returns its workspace in bytes.
std::size_t attend(const Exec& exec, const katt::attention::ForwardArgs& args,
                   const char* variant) {
  const katt::Config config{.variant = variant};
  const std::size_t bytes = katt::attention::workspace_bytes(exec, args, config);
  const Kokkos::View<std::byte*, Exec::memory_space> workspace("workspace", bytes);
  const katt::Status status = katt::attention::forward(exec, args, config, workspace);
  if (!status.is_ok()) std::printf("%s: %s\n", variant, status.reason().c_str());
  exec.fence();
  return bytes;
}

int main(int argc, char** argv) {
  const Kokkos::ScopeGuard kokkos(argc, argv);
  const Exec exec;
  const int batch = 1, heads = 4, seq = 512, head_dim = 64;
  const Tensor q("q", batch, heads, seq, head_dim), k("k", batch, heads, seq, head_dim);
  const Tensor v("v", batch, heads, seq, head_dim);
  Kokkos::parallel_for(
      "fill",
      Kokkos::MDRangePolicy<Exec, Kokkos::Rank<4>>(exec, {0, 0, 0, 0},
                                                   {batch, heads, seq, head_dim}),
      KOKKOS_LAMBDA(int b, int h, int s, int d) {
        q(b, h, s, d) = Kokkos::sin(0.1F * static_cast<float>(s + 3 * d));
        k(b, h, s, d) = Kokkos::cos(0.2F * static_cast<float>(s - d + h));
        v(b, h, s, d) = Kokkos::sin(0.3F * static_cast<float>(s * d % 17));
      });

  const Tensor naive("naive", batch, heads, seq, head_dim),
      flash("flash", batch, heads, seq, head_dim);
  katt::attention::ForwardArgs args{.q = q,
                                    .k = k,
                                    .v = v,
                                    .out = naive,
                                    .scale = 1.0F / std::sqrt(static_cast<float>(head_dim)),
                                    .mask = {.causal = true}};
  const std::size_t naive_bytes = attend(exec, args, "naive");
  args.out = flash;
  const std::size_t flash_bytes = attend(exec, args, "flash");

  float largest = 0;
  Kokkos::parallel_reduce(
      "compare", Kokkos::RangePolicy<Exec>(exec, 0, naive.size()),
      KOKKOS_LAMBDA(std::size_t i, float& most) {
        most = Kokkos::fmax(most, Kokkos::fabs(naive.data()[i] - flash.data()[i]));
      },
      Kokkos::Max<float>(largest));
  std::printf("workspace: naive %zu bytes, flash %zu bytes; largest difference %.2g\n", naive_bytes,
              flash_bytes, largest);
  return largest < 1e-4F && flash_bytes < naive_bytes ? 0 : 1;
}
