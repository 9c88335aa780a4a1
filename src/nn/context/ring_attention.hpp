#pragma once

#include <cstdint>
#include <vector>

#include "nn/arena.hpp"
#include "nn/runner.hpp"

/// Attention of sequences that several ranks share (Liu et al. 2023, arXiv:2310.01889): blocks of
/// keys and values travel around the ring. A rank attends to the block that it has while the next
/// one arrives, and merges the results by their log-sum-exp:
///
///   lse = log(exp(lse) + exp(lse')),   out = exp(lse_before − lse) · out + exp(lse' − lse) · out'
///
/// With C ranks, rank r has the chunks r and 2C − 1 − r of 2C equal ones (the zigzag order of
/// Brandon et al. 2023, arXiv:2311.09431): causal work is then balanced. Its queries see these keys
/// of a block from rank s:
///
///   s = r | all of it, causally: the two chunks in their order
///   s < r | all queries the first chunk of it, none the second
///   s > r | the queries of the second chunk all of it, those of the first nothing
///
/// So each step is one call of the operator with a plain mask, and exact.
namespace katt::nn {

/// The positions of a rank's rows in a sequence. 2 · ranks divides the number of tokens.
[[nodiscard]] std::vector<std::int64_t> zigzag_positions(std::int64_t seq, int ranks, int rank);

/// Memory of both passes beside the memory for one rank; T local tokens.
struct RingBuffers {
  TensorRef<2> kv, next_kv;    ///< (T, 2·kv_size): keys and values that are here, that come
  TensorRef<2> sum;            ///< (T, q_size) f32: out, or dq
  TensorRef<2> part;           ///< (T, q_size): of one block
  TensorRef<3> part_lse;       ///< (2·batch, heads, seq) f32: of one block; weights of the sums
  TensorRef<2> dkv, next_dkv;  ///< (T, 2·kv_size) f32: travel with their keys and values
  TensorRef<2> dkv_part;       ///< (T, 2·kv_size)
};

/// The shapes of a layer.
struct RingShape {
  std::int64_t batch = 0, seq = 0;  ///< local
  std::int64_t heads = 0, kv_heads = 0, head_dim = 0;
};

[[nodiscard]] RingBuffers lay_out_ring(Arena& arena, Dtype dtype, const RingShape& shape);

struct RingForwardArgs {
  TensorRef<2> q;   ///< (T, q_size), rows any distance apart
  TensorRef<2> kv;  ///< (T, 2·kv_size): keys, then values
  TensorRef<2> out;
  TensorRef<3> lse;  ///< (batch, heads, seq) f32
  float scale = 1.0F;
  bool for_backward = false;  ///< as attention::ForwardArgs has it
};

struct RingBackwardArgs {
  TensorRef<2> q, kv, out, dout;
  TensorRef<3> lse;
  TensorRef<2> dq, dkv;
  float scale = 1.0F;
};

/// Both passes are causal, over the runner's context group.
template <class Exec>
void ring_forward(Runner<Exec>& run, const Kernels& kernels, const RingShape& shape,
                  const RingForwardArgs& args, const RingBuffers& buffers);
template <class Exec>
void ring_backward(Runner<Exec>& run, const Kernels& kernels, const RingShape& shape,
                   const RingBackwardArgs& args, const RingBuffers& buffers);

}  // namespace katt::nn
