#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "nn/model/block.hpp"
#include "training/trainer.hpp"

/// Gradient checkpointing: the tensors that each block keeps between the passes.
namespace katt::training {

/// Reads the tensors that the blocks compute again: "none"; "all", "every:K" (blocks 0, K, 2K, …)
/// or a list "0,2,5": every tensor of these blocks, from their input; "cheap": the tensors that
/// cost no matrix product; or tensors by name, "n1:8,product:3", each with a number of last blocks.
/// Throws InputError.
[[nodiscard]] std::vector<nn::Recompute> parse_checkpointing(const std::string& where,
                                                             const std::string& text,
                                                             std::int64_t blocks);

/// A tensor that a block may keep or compute again.
struct RecomputeCost {
  nn::Recompute part = nn::Recompute::nothing;  ///< the tensor
  std::size_t bytes = 0;                        ///< bytes in a block that keeps it
  double time_s = 0;                            ///< seconds in a block that does not
};

/// The name of a tensor in nn::recomputable.
[[nodiscard]] const char* name_of(nn::Recompute part);

/// Measures every tensor of nn::recomputable on a block of the model's shapes with random values:
/// the fastest of six launches, in rounds over all of them. Allocates one block.
template <class Exec>
[[nodiscard]] std::vector<RecomputeCost> recompute_costs(const Exec& exec, nn::LlamaConfig config,
                                                         const TrainOptions& options);

/// The tensors that the blocks compute again, as text for parse_checkpointing(), and the costs
/// behind the choice; no costs when the text was given.
struct Checkpointing {
  std::string text;                      ///< for parse_checkpointing()
  std::vector<nn::Recompute> recompute;  ///< what each block computes again
  std::vector<RecomputeCost> costs;      ///< as measured; empty when the text was given
};

/// The least recomputation with which training fits into the given bytes. It drops tensors in the
/// order of time per byte, one block after the other, until training fits; then it brings back the
/// tensors with the most time for their bytes while there is room. The tensors of the last block
/// are still there when its backward pass begins, and cost no time. Throws InputError with the
/// least number of bytes when nothing fits.
template <class Exec>
[[nodiscard]] Checkpointing checkpointing_for_budget(const Exec& exec,
                                                     const nn::LlamaConfig& config,
                                                     TrainOptions options,
                                                     std::vector<RecomputeCost> costs,
                                                     std::size_t budget_bytes);

/// A text for parse_checkpointing(), or "budget:BYTES": checkpointing_for_budget() with costs that
/// this function measures, unless all tensors fit.
template <class Exec>
[[nodiscard]] Checkpointing plan_checkpointing(const Exec& exec, const nn::LlamaConfig& config,
                                               const TrainOptions& options,
                                               const std::string& where, const std::string& text);

}  // namespace katt::training
