#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "nn/runner.hpp"
#include "nn/stream_rows.hpp"

/// Embedding, head and loss when tensor parallel ranks have parts of the vocabulary (Shoeybi et al.
/// 2019, arXiv:1909.08053, section 3). The ranks never gather logits. For a token with the ranks'
/// partial maxima m_r and logarithms of sums l_r = log Σ exp(logits − m_r),
///
///   m = max_r m_r,   l = log Σ_r exp(m_r − m + l_r),   loss = m + l − logit(target)
///
/// and one rank has the target's logit. With one rank these are the operators themselves.
namespace katt::nn {

/// The part of a vocabulary that a rank has.
struct VocabularyPart {
  std::int64_t first = 0, count = 0;
};

/// Ids for a rank's operators: counted from its first; −1 for ids of other ranks.
[[nodiscard]] std::vector<std::int64_t> local_ids(std::span<const std::int64_t> ids,
                                                  VocabularyPart part);
/// Targets, in the same way. Targets of other ranks become `part.count`, which counts as a target
/// and matches no column; −100 stays.
[[nodiscard]] std::vector<std::int64_t> local_targets(std::span<const std::int64_t> targets,
                                                      VocabularyPart part);

/// out = weight(ids), (T, hidden) or this rank's rows of it; ids are local.
template <class Exec>
void embed(Runner<Exec>& run, const Kernels& kernels, const TensorRef<2>& weight,
           const std::int64_t* ids, const TensorRef<2>& out, const StreamRows& rows = {});

/// The results of the loss for its backward pass; the last three are empty with one rank.
struct LossBuffers {
  TensorRef<1> loss;            ///< (1) f32: the mean, with one rank
  TensorRef<2> statistics;      ///< (T, 2) f32: m and l
  TensorRef<2> own_statistics;  ///< (T, 2) f32: m_r and l_r
  TensorRef<3> all_statistics;  ///< (ranks, T, 2) f32
  TensorRef<1> token_losses;    ///< (T) f32; 0 for the target −100
  TensorRef<2> kept_logits;     ///< (T, local vocab) f32, when they are kept for the backward pass
};

/// The loss of hidden (T, hidden) and the local targets.
template <class Exec>
void loss_forward(Runner<Exec>& run, const Kernels& kernels, const TensorRef<2>& hidden,
                  const TensorRef<2>& weight, const std::int64_t* targets, const LossBuffers& at);

/// The mean over `counted` targets. Waits for it.
template <class Exec>
[[nodiscard]] float mean_loss(Runner<Exec>& run, const LossBuffers& at, std::int64_t counted);

/// Computes dhidden, (T, hidden) or this rank's rows of it, and dweight of dloss · mean loss.
template <class Exec>
void loss_backward(Runner<Exec>& run, const Kernels& kernels, const TensorRef<2>& hidden,
                   const TensorRef<2>& weight, const std::int64_t* targets, const LossBuffers& at,
                   const TensorRef<2>& dhidden, const TensorRef<2>& dweight, float dloss,
                   const StreamRows& rows = {});

}  // namespace katt::nn
