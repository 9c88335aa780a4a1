#pragma once

#include <cstdint>
#include <vector>

#include "nn/config.hpp"
#include "ranks/groups.hpp"

/// What one of several ranks holds of a model.
namespace katt::nn {

/// Of the blocks those of a stage's parts; of each the `tensor_rank`-th of `tensor` equal
/// parts of the query heads, of the key/value heads and of the columns of the MLP. The vocabulary
/// is cut like ranks::part_of(), the last part perhaps shorter; norms, and the biases of the
/// projections o and down, are on every rank of a tensor group.
struct Slice {
  int tensor = 1, tensor_rank = 0;
  /// Of a pipeline of S stages and V parts a stage, S · V parts as equal as can be, stage s has s,
  /// s + S, …: the blocks of each, in their order. Without virtual stages one part.
  std::vector<ranks::Part> parts;
  std::int64_t blocks = 0;  ///< of all parts
  bool embedding = true;    ///< whether the embedding is here
  bool head = true;         ///< whether the last norm and the head are

  /// Of one rank: the whole model.
  explicit Slice(const LlamaConfig& config, const ranks::Place& place = {});
  /// What the v-th part has of it.
  [[nodiscard]] Slice of_part(std::size_t v) const;
  [[nodiscard]] bool has_block(std::int64_t block) const;
};

/// Throws InputError, naming what the model has and what would do, where a layout cannot share it.
void check_layout(const LlamaConfig& config, const ranks::Layout& layout);

/// The configuration of the part: that of the model for one rank.
[[nodiscard]] LlamaConfig part_of_config(const LlamaConfig& config, const Slice& slice);

}  // namespace katt::nn
