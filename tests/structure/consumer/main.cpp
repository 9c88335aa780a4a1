// A user's program outside the tree: it adds an attention variant and a score rule of its own and is
// otherwise the program `katt`, so that `sweep` compares the variant with ours, and sweeps the rule on
// every engine.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>

#include <Kokkos_Core.hpp>
#include <katt/drivers/driver.hpp>
#include <katt/ops/attention/attention.hpp>
#include <katt/ops/attention/own_rule.hpp>

namespace {

using katt::attention::ForwardArgs;
using Exec = Kokkos::OpenMP;

/// The textbook loop: one query row at a time, scores of that row in the workspace of its thread.
void row_at_a_time(const Exec& exec, const ForwardArgs& args, katt::Workspace workspace) {
  const auto q = args.q.view<float, Kokkos::HostSpace>();
  const auto k = args.k.view<float, Kokkos::HostSpace>();
  const auto v = args.v.view<float, Kokkos::HostSpace>();
  const auto out = args.out.view<float, Kokkos::HostSpace>();
  const auto lse = args.lse.view<float, Kokkos::HostSpace>();
  const std::int64_t group = args.heads() / args.kv_heads();
  const std::int64_t n = args.seq_kv();
  const std::int64_t d = args.head_dim();
  const bool causal = args.mask.causal;
  const std::int64_t offset = n - args.seq_q();
  const float scale = args.scale;
  auto* scores = static_cast<float*>(workspace.data);
  Kokkos::parallel_for("consumer::row_at_a_time",
                       Kokkos::MDRangePolicy<Exec, Kokkos::Rank<3>>(
                           exec, {0, 0, 0}, {args.batch(), args.heads(), args.seq_q()}),
                       [=](std::int64_t b, std::int64_t h, std::int64_t i) {
                         float* s = scores + Exec::impl_hardware_thread_id() * n;
                         const std::int64_t seen = causal ? std::min(n, i + offset + 1) : n;
                         float largest = -std::numeric_limits<float>::infinity();
                         for (std::int64_t j = 0; j < seen; ++j) {
                           float dot = 0;
                           for (std::int64_t c = 0; c < d; ++c)
                             dot += q(b, h, i, c) * k(b, h / group, j, c);
                           s[j] = dot * scale;
                           largest = std::max(largest, s[j]);
                         }
                         float sum = 0;
                         for (std::int64_t c = 0; c < d; ++c) out(b, h, i, c) = 0;
                         for (std::int64_t j = 0; j < seen; ++j) {
                           const float p = std::exp(s[j] - largest);
                           sum += p;
                           for (std::int64_t c = 0; c < d; ++c)
                             out(b, h, i, c) += p * v(b, h / group, j, c);
                         }
                         for (std::int64_t c = 0; c < d && sum > 0; ++c) out(b, h, i, c) /= sum;
                         if (lse.data() != nullptr) lse(b, h, i) = largest + std::log(sum);
                       });
}

/// A learned distance penalty: s · (1 − w_h · d / (d + 32)) at distance d, where a head has learned
/// its weight w_h.
template <class Space>
struct DistancePenalty {
  static constexpr int parameters = 1;
  Kokkos::View<const float*, typename Space::memory_space> weights;  ///< (heads)

  KOKKOS_FUNCTION float parameter(int, std::int64_t, std::int64_t head) const {
    return weights(head);
  }
  template <class V>
  KOKKOS_FUNCTION V operator()(const V& score, const katt::attention::ScorePlace<V>& at,
                               V& slope) const {
    const V right = at.key - at.query;
    const V distance = katt::tile::max(right, V(-right));
    slope = V(1.0F) - at.parameter[0] * distance / (distance + V(32.0F));
    return score * slope;
  }
};

struct MakePenalty {
  template <class Space>
  DistancePenalty<Space> operator()(std::int64_t heads) const {
    const Kokkos::View<float*, typename Space::memory_space> weights(
        "consumer::weights", static_cast<std::size_t>(heads));
    const auto host = Kokkos::create_mirror_view(weights);
    for (std::int64_t h = 0; h < heads; ++h) host(h) = 0.25F * static_cast<float>(h + 1);
    Kokkos::deep_copy(weights, host);
    return {weights};
  }
};

}  // namespace

int main(int argc, char** argv) {
  katt::attention::forward_variants<Exec>().add({
      .name = "row_at_a_time",
      .description = "one query row after the other, no tiles",
      .supports =
          [](const Exec&, const ForwardArgs& args) {
            if (args.q.dtype != katt::Dtype::f32) return katt::Status::skipped("f32 only");
            const auto& mask = args.mask;
            if (mask.window_left >= 0 || mask.window_right >= 0 || args.score.softcap > 0 ||
                args.score.alibi_slopes != nullptr || mask.bias || mask.kv_len != nullptr ||
                mask.block_mask != nullptr) {
              return katt::Status::skipped("no mask but the causal one");
            }
            return katt::Status::ok();
          },
      .workspace_bytes =
          [](const Exec& exec, const ForwardArgs& args) {
            return sizeof(float) * static_cast<std::size_t>(exec.concurrency()) *
                   static_cast<std::size_t>(args.seq_kv());
          },
      .run = row_at_a_time,
  });
  katt::attention::add_score_rule("distance_penalty", "a learned penalty of the distance",
                                  MakePenalty{});
  return katt::driver_main(argc, argv);
}
