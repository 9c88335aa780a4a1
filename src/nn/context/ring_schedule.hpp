#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "nn/context/ring_attention.hpp"
#include "nn/device_memory.hpp"
#include "ops/attention/attention.hpp"
#include "ops/attention/backward.hpp"

/// The calls of attention that the steps of a ring make (nn/context/ring_attention.hpp), for every
/// mask.
namespace katt::nn {

/// Attention of whole sequences, with masks as on one rank (attention::MaskArgs).
struct RingProblem {
  std::int64_t batch = 0, seq_q = 0, seq_kv = 0;  ///< of whole sequences
  attention::ScoreArgs score{};
  bool causal = false;
  std::int64_t window_left = -1, window_right = -1;
  std::span<const std::int64_t> kv_len{};      ///< (batch), on the host, or empty
  std::span<const std::int64_t> block_mask{};  ///< whole, on the host, or empty
  std::int64_t block_size = 0;
  /// Added to the scores of this rank's queries, their rows in the rank's order, and of all keys in
  /// theirs: (batch or 1, heads or 1, rows, seq_kv).
  TensorRef<4> bias{};
};

/// Rows of a sequence of n tokens on one of R ranks: the chunks r and 2R − 1 − r of 2R, of ⌈n / 2R⌉
/// tokens each, the last ones shorter or empty. Every rank has room for two whole chunks.
struct ZigzagRows {
  std::int64_t seq = 0;
  int ranks = 1, rank = 0;

  [[nodiscard]] std::int64_t chunk() const { return (seq + 2 * ranks - 1) / (2 * ranks); }
  [[nodiscard]] std::int64_t rows() const { return 2 * chunk(); }
  /// The first (0) or second chunk: its begin in the sequence, and its tokens.
  [[nodiscard]] ranks::Part part(int which) const {
    return ranks::part_of(seq, 2 * ranks, which == 0 ? rank : 2 * ranks - 1 - rank);
  }
  /// The position of every row in the sequence; −1: the row is empty.
  [[nodiscard]] std::vector<std::int64_t> positions() const;
};

/// The places of the rows of all ranks, (rank, batch, row), in whole sequences, (batch, token).
struct ZigzagPlace {
  std::int64_t ranks, rows, chunk, seq;

  explicit ZigzagPlace(const ZigzagRows& of)
      : ranks(of.ranks), rows(of.rows()), chunk(of.chunk()), seq(of.seq) {}
  /// The row of the whole matrix; −1: the row of the rank is empty.
  [[nodiscard]] KOKKOS_FUNCTION std::int64_t whole_row(std::int64_t rank, std::int64_t b,
                                                       std::int64_t row) const {
    const std::int64_t position =
        row < chunk ? rank * chunk + row : (2 * ranks - 1 - rank) * chunk + row - chunk;
    return position < seq ? b * seq + position : -1;
  }
};

/// One call: the rows of this rank's queries, the rows of the present keys, and the mask between
/// them.
struct RingCall {
  std::int64_t q_begin = 0, q_count = 0, k_begin = 0, k_count = 0;
  attention::MaskArgs mask{};
};

/// The calls of one rank, with the tables of their masks in the memory of the execution space.
///
/// A step is one call when sequences are equal and cut evenly, and only causality hides keys.
/// Otherwise a call is a chunk of queries on a chunk of keys, and pairs without a visible key are
/// left out. With δ the distance of the chunks' alignment on whole sequences, o + q − k, key j of a
/// chunk is visible to query i of a chunk where i + δ − left ≤ j ≤ i + δ + right. A call has that
/// alignment through kv_len = queries + δ, which hides no visible key as long as right = 0 or δ is
/// no less than the keys that a chunk has more than queries; else the windows move by the
/// difference. Blocks of a block mask become as small as chunks cut them.
template <class Exec>
class RingSchedule {
 public:
  /// Throws InputError that names an option which a part cannot express: ALiBi or lengths of keys,
  /// together with keys after the query, except lengths alone. `gathered`: the keys of all ranks
  /// are here, in the order of the sequence, as if from rank 0.
  RingSchedule(const Exec& exec, const RingProblem& problem, int ranks, int rank,
               bool gathered = false);

  /// For keys that came from a rank.
  [[nodiscard]] const std::vector<RingCall>& calls(int source) const {
    return calls_[static_cast<std::size_t>(source)];
  }
  [[nodiscard]] const attention::ScoreArgs& score() const { return score_; }
  [[nodiscard]] std::int64_t batch() const { return batch_; }
  [[nodiscard]] std::int64_t q_rows() const { return q_rows_; }  ///< of a sequence, on this rank
  [[nodiscard]] std::int64_t kv_rows() const { return kv_rows_; }

 private:
  attention::ScoreArgs score_;
  std::int64_t batch_, q_rows_, kv_rows_;
  std::vector<std::vector<RingCall>> calls_;
  DeviceMemory<Exec> tables_;
};

/// As ring_forward() and ring_backward() of nn/context/ring_attention.hpp, with any mask; rows of
/// queries and of keys are batch · q_rows() and batch · kv_rows(), empty rows hold finite values,
/// and shape.seq is q_rows().
[[nodiscard]] RingBuffers lay_out_ring(Arena& arena, Dtype dtype, const RingShape& shape,
                                       std::int64_t kv_rows);
template <class Exec>
void ring_forward(Runner<Exec>& run, const Kernels& kernels, const RingShape& shape,
                  const RingForwardArgs& args, const RingBuffers& buffers,
                  const RingSchedule<Exec>& schedule);
template <class Exec>
void ring_backward(Runner<Exec>& run, const Kernels& kernels, const RingShape& shape,
                   const RingBackwardArgs& args, const RingBuffers& buffers,
                   const RingSchedule<Exec>& schedule);

}  // namespace katt::nn
