#pragma once

#include <cstdint>
#include <vector>

#include "nn/parameters.hpp"
#include "ranks/groups.hpp"

/// The division of a step's rows and of the optimizer's work among ranks with the same parameters.
namespace katt::training {

/// One rank's share of a step's rows: microbatches of `batch` rows, from `first` on.
struct RowShare {
  std::int64_t first = 0, rows = 0, microbatches = 0;
};

/// `rows` (--batch · --accumulation) make a step, and data ranks share them. A microbatch has at
/// most `batch` rows: the largest number that divides a rank's rows. `micro_batches` > 0 sets the
/// number of microbatches. Throws InputError when the ranks do not divide the rows, or the
/// microbatches do not divide a rank's rows.
[[nodiscard]] RowShare share_rows(std::int64_t batch, std::int64_t accumulation,
                                  const ranks::Place& place, std::int64_t micro_batches);

/// A range of elements of the flat arrays, and the offset of its optimizer state.
struct Piece {
  std::int64_t begin = 0, count = 0;
  std::int64_t state = 0;
};

/// The buckets in which replicas sum gradients, the last elements first, as the backward pass
/// produces them; and the pieces that this rank updates: its part of every bucket with ZeRO-1, else
/// all.
class Sharing {
 public:
  Sharing(std::int64_t size, const ranks::Place& place, std::int64_t bucket);

  [[nodiscard]] const std::vector<ranks::Part>& buckets() const { return buckets_; }
  [[nodiscard]] const std::vector<Piece>& pieces() const { return pieces_; }
  /// The piece of a range that this rank updates.
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

/// The elements whose squares this rank adds to the norm of the whole model's gradient: the
/// elements of its pieces that no other rank of the model counts.
[[nodiscard]] std::vector<ranks::Part> counted_parts(const nn::ParameterLayout& layout,
                                                     const Sharing& sharing);

}  // namespace katt::training
