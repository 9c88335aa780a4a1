#pragma once

#include <cstdint>

#include "core/parts.hpp"
#include "nn/runner.hpp"

namespace katt::nn {

/// The rows of the residual stream when tensor parallel ranks share them (sequence parallelism,
/// Korthikanti et al. 2022, arXiv:2205.05198, section 4.2.2): each rank has ⌈T / ranks⌉ of the T
/// tokens' rows and normalises only these. Before a product the ranks gather all rows, after it
/// they scatter the sum of their results, instead of one sum that all of them get:
///
///   n (rows of the rank) → all_gather → product → reduce_scatter → delta (rows of the rank)
///
/// All ranks have equally many rows. Rows behind the last token are zero, and stay so, since norms,
/// sums and their gradients turn zeros into zeros. Without memory of its own every rank has all
/// rows, gathering does nothing and the sum covers all rows.
struct StreamRows {
  TensorRef<2> all{};  ///< (ranks · ⌈T / ranks⌉, hidden), zero behind T; empty: not shared
  std::int64_t tokens = 0;  ///< T

  /// Rows of each rank.
  [[nodiscard]] static std::int64_t rows_of_rank(std::int64_t tokens, const ranks::Layout& layout) {
    if (!layout.shares_rows()) return tokens;
    return (tokens + layout.tensor - 1) / layout.tensor;
  }

  /// The place where a product writes the term from which sum() makes `own`.
  [[nodiscard]] TensorRef<2> target(const TensorRef<2>& own) const {
    return all ? rows_of(all, 0, tokens) : own;
  }

  /// The T rows of all ranks. `own` may be the rank's place among them.
  template <class Exec>
  [[nodiscard]] TensorRef<2> gather(Runner<Exec>& run, const TensorRef<2>& own) const {
    if (all) run.gather_from_tensor_ranks(own, all);
    return target(own);
  }

  /// own ← this rank's rows of the sum over the ranks of target(own).
  template <class Exec>
  void sum(Runner<Exec>& run, const TensorRef<2>& own) const {
    if (all) {
      run.scatter_sum_to_tensor_ranks(all, own);
    } else {
      run.sum_over_tensor_ranks(own);
    }
  }
};

}  // namespace katt::nn
