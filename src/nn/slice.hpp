#pragma once

#include <cstdint>
#include <vector>

#include "nn/config.hpp"
#include "ranks/groups.hpp"

/// The part of a model that one of several ranks holds.
namespace katt::nn {

/// A rank holds the blocks of its stage's parts, and of each block the `tensor_rank`-th of `tensor`
/// equal parts of the query heads, of the key/value heads and of the columns of the MLP. The
/// vocabulary is cut like ranks::part_of(), the last part perhaps shorter; norms, and the biases of
/// the projections o and down, are on every rank of a tensor group.
struct Slice {
  int tensor = 1, tensor_rank = 0;
  /// A pipeline of S stages and V parts a stage cuts the blocks into S · V parts, as equal as
  /// possible; stage s has the parts s, s + S, … . These are the blocks of each part, in order.
  /// Without virtual stages there is one part.
  std::vector<ranks::Part> parts;
  std::int64_t blocks = 0;  ///< blocks of all parts
  bool embedding = true;    ///< true: the embedding is here
  bool head = true;         ///< true: the last norm and the head are here

  /// The slice of a single rank: the whole model.
  explicit Slice(const LlamaConfig& config, const ranks::Place& place = {});
  /// The v-th part of this slice.
  [[nodiscard]] Slice of_part(std::size_t v) const;
  [[nodiscard]] bool has_block(std::int64_t block) const;
};

/// Throws InputError, naming the model's number and the possible ones, when a layout cannot share
/// it.
void check_layout(const LlamaConfig& config, const ranks::Layout& layout);

/// The configuration of the part; with one rank it is the model's.
[[nodiscard]] LlamaConfig part_of_config(const LlamaConfig& config, const Slice& slice);

}  // namespace katt::nn
