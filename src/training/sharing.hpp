#pragma once

#include <cstdint>
#include <vector>

#include "nn/parameters.hpp"
#include "ranks/groups.hpp"

/// How ranks that hold the same parameters share a step's rows and the optimizer's work.
namespace katt::training {

/// What one rank computes of the rows of a step: microbatches of so many rows, from `first` on.
struct RowShare {
  std::int64_t first = 0, rows = 0, microbatches = 0;
};

/// `rows` (--batch · --accumulation) make a step, and data ranks share them out. A microbatch has
/// at most `batch` rows, the most that divide a rank's; with `micro_batches` > 0 there are so many.
/// Throws InputError where the ranks do not divide the rows, or the microbatches a rank's.
[[nodiscard]] RowShare share_rows(std::int64_t batch, std::int64_t accumulation,
                                  const ranks::Place& place, std::int64_t micro_batches);

/// A run of elements of the flat arrays, and where the optimizer's state of it lies.
struct Piece {
  std::int64_t begin = 0, count = 0;
  std::int64_t state = 0;
};

/// The buckets in which gradients are summed over the replicas, the last elements first, as the
/// backward pass gives them; and the pieces that this rank updates: with ZeRO-1 its part of every
/// bucket, else all.
class Sharing {
 public:
  Sharing(std::int64_t size, const ranks::Place& place, std::int64_t bucket);

  [[nodiscard]] const std::vector<ranks::Part>& buckets() const { return buckets_; }
  [[nodiscard]] const std::vector<Piece>& pieces() const { return pieces_; }
  /// What of a range this rank updates.
  [[nodiscard]] std::vector<Piece> pieces_of(ranks::Part range) const;
  /// Elements of the optimizer's state.
  [[nodiscard]] std::int64_t state_size() const { return state_size_; }
  /// This rank's piece of a bucket.
  [[nodiscard]] ranks::Part own(ranks::Part bucket) const;
  [[nodiscard]] bool is_cut() const { return is_cut_; }

 private:
  int replicas_, replica_;
  bool is_cut_;
  std::vector<ranks::Part> buckets_;
  std::vector<Piece> pieces_;
  std::int64_t state_size_ = 0;
};

/// The elements whose squares this rank adds to the norm of the whole model's gradient: those of
/// its pieces that no other rank of the model counts.
[[nodiscard]] std::vector<ranks::Part> counted_parts(const nn::ParameterLayout& layout,
                                                     const Sharing& sharing);

}  // namespace katt::training
