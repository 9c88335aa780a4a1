#include "nn/model/vocabulary.hpp"

#include <Kokkos_Core.hpp>

#include "core/execution.hpp"
#include "core/views.hpp"
#include "nn/device_memory.hpp"
#include "ops/cross_entropy/cross_entropy.hpp"
#include "ops/embedding/embedding.hpp"
#include "ops/linear_cross_entropy/linear_cross_entropy.hpp"

namespace katt::nn {

namespace {

constexpr std::int64_t ignored = cross_entropy::default_ignore_index;

template <class Exec>
using Range = Kokkos::RangePolicy<Exec, Kokkos::IndexType<std::int64_t>>;

/// Rows of another rank's ids become zeros: the sum adds that rank's rows.
template <class Exec, class T>
struct ClearForeignRows {
  const std::int64_t* ids;
  StridedView<T, 2, typename Exec::memory_space> rows;
  std::int64_t columns;

  KOKKOS_FUNCTION void operator()(std::int64_t i) const {
    const std::int64_t t = i / columns;
    if (ids[t] < 0) rows(t, i % columns) = T(0.0F);
  }
};

/// The logit of every target of this rank's part, in f32; 0 for the others.
template <class Exec, class T>
struct TargetLogits {
  using Memory = typename Exec::memory_space;
  StridedView<const T, 2, Memory> hidden;
  StridedView<const T, 2, Memory> weight;
  const std::int64_t* targets;
  float* logits;

  KOKKOS_FUNCTION void operator()(std::int64_t t) const {
    const std::int64_t target = targets[t];
    float sum = 0.0F;
    if (target >= 0 && target < static_cast<std::int64_t>(weight.extent(0))) {
      for (std::size_t c = 0; c < hidden.extent(1); ++c) {
        sum += static_cast<float>(hidden(t, c)) * static_cast<float>(weight(target, c));
      }
    }
    logits[t] = sum;
  }
};

/// Combines the statistics of all parts, and turns the target's logit into the token's loss.
struct MergeStatistics {
  const float* all;  ///< (ranks, tokens, 2)
  std::int64_t ranks, tokens;
  const std::int64_t* targets;
  float* statistics;  ///< (tokens, 2)
  float* losses;      ///< in: logits of the targets

  KOKKOS_FUNCTION void operator()(std::int64_t t) const {
    const auto part = [&](std::int64_t r) { return all + (r * tokens + t) * 2; };
    float max = part(0)[0];
    for (std::int64_t r = 1; r < ranks; ++r) max = Kokkos::max(max, part(r)[0]);
    float sum = 0.0F;
    for (std::int64_t r = 0; r < ranks; ++r) {
      sum += Kokkos::exp((part(r)[0] - max) + part(r)[1]);
    }
    const bool counts = targets[t] != ignored;
    const float log_sum = counts ? Kokkos::log(sum) : 0.0F;
    statistics[2 * t] = max;
    statistics[2 * t + 1] = log_sum;
    losses[t] = counts ? (max - losses[t]) + log_sum : 0.0F;
  }
};

template <class Exec>
bool is_whole(const Runner<Exec>& run) {
  return run.groups().place.layout.tensor == 1;
}

}  // namespace

std::vector<std::int64_t> local_ids(std::span<const std::int64_t> ids, VocabularyPart part) {
  std::vector<std::int64_t> local(ids.begin(), ids.end());
  for (std::int64_t& id : local) {
    id -= part.first;
    if (id < 0 || id >= part.count) id = -1;
  }
  return local;
}

std::vector<std::int64_t> local_targets(std::span<const std::int64_t> targets,
                                        VocabularyPart part) {
  std::vector<std::int64_t> local(targets.begin(), targets.end());
  for (std::int64_t& target : local) {
    if (target == ignored) continue;
    target -= part.first;
    if (target < 0 || target >= part.count) target = part.count;
  }
  return local;
}

template <class Exec>
void embed(Runner<Exec>& run, const Kernels& kernels, const TensorRef<2>& weight,
           const std::int64_t* ids, const TensorRef<2>& out, const StreamRows& rows) {
  const TensorRef<2> all = rows.target(out);
  run(embedding::forward_variants<Exec>(),
      embedding::ForwardArgs{.weight = weight, .ids = ids, .out = all}, kernels.embedding);
  if (is_whole(run) || run.is_dry()) return;
  visit_dtype(all.dtype, [&]<class T>() {
    Kokkos::parallel_for(
        "katt::nn::clear_foreign_rows", Range<Exec>(run.exec(), 0, all.size()),
        ClearForeignRows<Exec, T>{ids, all.view<T, typename Exec::memory_space>(), all.extent[1]});
  });
  rows.sum(run, out);
}

template <class Exec>
void loss_forward(Runner<Exec>& run, const Kernels& kernels, const TensorRef<2>& hidden,
                  const TensorRef<2>& weight, const std::int64_t* targets, const LossBuffers& at) {
  const bool whole = is_whole(run);
  run(linear_cross_entropy::forward_variants<Exec>(),
      linear_cross_entropy::ForwardArgs{.hidden = hidden,
                                        .weight = weight,
                                        .targets = targets,
                                        .loss = at.loss,
                                        .statistics = whole ? at.statistics : at.own_statistics,
                                        .kept_logits = at.kept_logits},
      kernels.linear_cross_entropy);
  if (whole || run.is_dry()) return;
  const std::int64_t tokens = hidden.extent[0];
  visit_dtype(hidden.dtype, [&]<class T>() {
    using Memory = typename Exec::memory_space;
    Kokkos::parallel_for("katt::nn::target_logits", Range<Exec>(run.exec(), 0, tokens),
                         TargetLogits<Exec, T>{ConstTensorRef<2>(hidden).view<T, Memory>(),
                                               ConstTensorRef<2>(weight).view<T, Memory>(), targets,
                                               static_cast<float*>(at.token_losses.data)});
  });
  run.sum_over_tensor_ranks(at.token_losses);
  run.groups().tensor.all_gather(run.exec(), at.own_statistics, at.all_statistics).wait();
  Kokkos::parallel_for("katt::nn::merge_statistics", Range<Exec>(run.exec(), 0, tokens),
                       MergeStatistics{static_cast<const float*>(at.all_statistics.data),
                                       at.all_statistics.extent[0], tokens, targets,
                                       static_cast<float*>(at.statistics.data),
                                       static_cast<float*>(at.token_losses.data)});
}

template <class Exec>
float mean_loss(Runner<Exec>& run, const LossBuffers& at, std::int64_t counted) {
  if (is_whole(run)) {
    float loss = 0;
    copy_to_host(run.exec(), at.loss.data, std::as_writable_bytes(std::span(&loss, 1)));
    return loss;
  }
  std::vector<float> losses(static_cast<std::size_t>(at.token_losses.extent[0]));
  copy_to_host(run.exec(), at.token_losses.data, std::as_writable_bytes(std::span(losses)));
  double sum = 0;
  for (const float loss : losses) sum += loss;
  return static_cast<float>(sum / static_cast<double>(counted));  // NaN of nothing, as above
}

template <class Exec>
void loss_backward(Runner<Exec>& run, const Kernels& kernels, const TensorRef<2>& hidden,
                   const TensorRef<2>& weight, const std::int64_t* targets, const LossBuffers& at,
                   const TensorRef<2>& dhidden, const TensorRef<2>& dweight, float dloss,
                   const StreamRows& rows) {
  run(linear_cross_entropy::backward_variants<Exec>(),
      linear_cross_entropy::BackwardArgs{.hidden = hidden,
                                         .weight = weight,
                                         .targets = targets,
                                         .statistics = at.statistics,
                                         .kept_logits = at.kept_logits,
                                         .dhidden = rows.target(dhidden),
                                         .dweight = dweight,
                                         .dloss = dloss},
      kernels.linear_cross_entropy);
  rows.sum(run, dhidden);
}

#define KATT_INSTANTIATE_VOCABULARY(Exec)                                                         \
  template void embed<Exec>(Runner<Exec>&, const Kernels&, const TensorRef<2>&,                   \
                            const std::int64_t*, const TensorRef<2>&, const StreamRows&);         \
  template void loss_forward<Exec>(Runner<Exec>&, const Kernels&, const TensorRef<2>&,            \
                                   const TensorRef<2>&, const std::int64_t*, const LossBuffers&); \
  template float mean_loss<Exec>(Runner<Exec>&, const LossBuffers&, std::int64_t);                \
  template void loss_backward<Exec>(Runner<Exec>&, const Kernels&, const TensorRef<2>&,           \
                                    const TensorRef<2>&, const std::int64_t*, const LossBuffers&, \
                                    const TensorRef<2>&, const TensorRef<2>&, float,              \
                                    const StreamRows&);

KATT_FOR_EACH_EXEC(KATT_INSTANTIATE_VOCABULARY)

}  // namespace katt::nn
