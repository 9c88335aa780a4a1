#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "nn/model/block.hpp"
#include "training/trainer.hpp"

/// Gradient checkpointing: which blocks keep what between the passes.
namespace katt::training {

/// Reads what the blocks compute again: "none"; "all", "every:K" (blocks 0, K, 2K, …) or a list
/// "0,2,5", all that they can, from their input; "cheap", what costs no matrix product; or tensors
/// of the block by name, "n1:8,product:3", each in the last so many blocks. Throws InputError.
[[nodiscard]] std::vector<nn::Recompute> parse_checkpointing(const std::string& where,
                                                             const std::string& text,
                                                             std::int64_t blocks);

/// A tensor that a block may keep or compute again.
struct RecomputeCost {
  nn::Recompute part = nn::Recompute::nothing;
  std::size_t bytes = 0;  ///< of a block that keeps it
  double time_s = 0;      ///< of a block that does not
};

/// The name of a tensor in nn::recomputable.
[[nodiscard]] const char* name_of(nn::Recompute part);

/// Measures every tensor of nn::recomputable on a block of the model's shapes with random values:
/// the fastest of six launches, in rounds over all of them. Allocates one block.
template <class Exec>
[[nodiscard]] std::vector<RecomputeCost> recompute_costs(const Exec& exec, nn::LlamaConfig config,
                                                         const TrainOptions& options);

/// What the blocks compute again, as the text that parse_checkpointing() reads, and the costs by
/// which it was chosen; none where it was given.
struct Checkpointing {
  std::string text;
  std::vector<nn::Recompute> recompute;
  std::vector<RecomputeCost> costs;
};

/// The least recomputation with which training fits into so many bytes: tensors go in the order of
/// time per byte, a block after the other, until it fits; then those that took the most time for
/// their bytes come back where there is room. The tensors of the last block are still there when
/// its backward pass begins, and cost no time. Throws InputError where nothing fits, with the least
/// that does.
template <class Exec>
[[nodiscard]] Checkpointing checkpointing_for_budget(const Exec& exec,
                                                     const nn::LlamaConfig& config,
                                                     TrainOptions options,
                                                     std::vector<RecomputeCost> costs,
                                                     std::size_t budget_bytes);

/// What parse_checkpointing() reads, or "budget:BYTES": checkpointing_for_budget() of costs that
/// are measured here, unless everything can be kept.
template <class Exec>
[[nodiscard]] Checkpointing plan_checkpointing(const Exec& exec, const nn::LlamaConfig& config,
                                               const TrainOptions& options,
                                               const std::string& where, const std::string& text);

}  // namespace katt::training
