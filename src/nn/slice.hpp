#pragma once

#include <cstdint>

#include "dist/groups.hpp"
#include "nn/config.hpp"

/// What one of several ranks holds of a model.
namespace katt::nn {

/// Blocks first_block … first_block + blocks − 1; of each the `tensor_rank`-th of `tensor` equal
/// parts of the query heads, of the key/value heads and of the columns of the MLP. The vocabulary
/// is cut like dist::part_of(), the last part perhaps shorter; norms, and the biases of the
/// projections o and down, are on every rank of a tensor group.
struct Slice {
  int tensor = 1, tensor_rank = 0;
  std::int64_t first_block = 0, blocks = 0;
  bool embedding = true;  ///< whether the embedding is here
  bool head = true;       ///< whether the last norm and the head are

  /// Of one rank: the whole model.
  explicit Slice(const LlamaConfig& config, const dist::Place& place = {});
};

/// Throws InputError, naming what the model has and what would do, where a layout cannot share it.
void check_layout(const LlamaConfig& config, const dist::Layout& layout);

/// The configuration of the part: that of the model for one rank.
[[nodiscard]] LlamaConfig part_of_config(const LlamaConfig& config, const Slice& slice);

}  // namespace katt::nn
