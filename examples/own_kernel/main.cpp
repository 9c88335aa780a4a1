// Softmax with one pass over a row for the maximum and the sum (Milakov & Gimelshein 2018, arXiv:1805.02867), as a variant
// beside Katt's own: the program is `katt` in all else.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include <Kokkos_Core.hpp>
#include <katt/drivers/driver.hpp>
#include <katt/ops/softmax/softmax.hpp>

namespace {

using Exec = katt::Host;
using katt::softmax::ForwardArgs;

/// out(t, ·) = exp(x(t, ·) − m) / s, with m and s found in one pass: a larger m rescales s.
void online(const Exec& exec, const ForwardArgs& args) {
  const auto x = args.x.view<float, Kokkos::HostSpace>();      // (tokens, vocab)
  const auto out = args.out.view<float, Kokkos::HostSpace>();  // (tokens, vocab)
  const std::int64_t tokens = args.x.extent[0];
  const std::int64_t vocab = args.x.extent[1];
  Kokkos::parallel_for("own_kernel::online", Kokkos::RangePolicy<Exec>(exec, 0, tokens),
                       [=](std::int64_t t) {
                         float m = std::numeric_limits<float>::lowest();
                         float s = 0.0F;
                         for (std::int64_t v = 0; v < vocab; ++v) {
                           const float larger = std::max(m, x(t, v));
                           s = s * std::exp(m - larger) + std::exp(x(t, v) - larger);
                           m = larger;
                         }
                         for (std::int64_t v = 0; v < vocab; ++v)
                           out(t, v) = std::exp(x(t, v) - m) / s;
                       });
}

katt::Status f32_only(const ForwardArgs& args) {
  if (args.x.dtype == katt::Dtype::f32) return katt::Status::ok();
  return katt::Status::skipped("online computes f32 only");
}

}  // namespace

int main(int argc, char** argv) {
  katt::softmax::forward_variants<Exec>().add({.name = "online",
                                               .description = "maximum and sum in one pass",
                                               .supports = f32_only,
                                               .run = online});
  return katt::driver_main(argc, argv);
}
