#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "nn/block.hpp"
#include "training/trainer.hpp"

/// Gradient checkpointing: which blocks keep what between the passes.
namespace katt::training {

/// Reads which blocks compute again all that they can, from their input: "all", "none", "every:K"
/// (blocks 0, K, 2K, …) or a list "0,2,5"; or "cheap": every block computes again what costs no
/// matrix product. Throws InputError.
[[nodiscard]] std::vector<nn::Recompute> parse_checkpointing(const std::string& where,
                                                             const std::string& text,
                                                             std::int64_t blocks);

/// The least recomputation with which training fits into so many bytes: first the cheap parts of
/// one block after the other, then whole blocks. Throws InputError where nothing fits, with the
/// least that does.
template <class Exec>
[[nodiscard]] std::vector<nn::Recompute> checkpointing_for_budget(const Exec& exec,
                                                                  const nn::LlamaConfig& config,
                                                                  TrainOptions options,
                                                                  std::size_t budget_bytes);

}  // namespace katt::training
