#pragma once

#include "nn/arena.hpp"
#include "nn/context/ring_schedule.hpp"
#include "nn/runner.hpp"

/// Attention of sequences that several ranks share, the plain way (Llama team 2024,
/// arXiv:2407.21783, section 3.3.2): the keys and values of all ranks are gathered, and the queries
/// of a rank attend to them in one call a chunk; gradients of keys and values are summed over the
/// ranks. A rank holds all keys and values, and computes nothing while they travel. This is the
/// baseline of ring attention and attention by heads.
namespace katt::nn {

/// Memory of both passes; rows of the ranks are (rank, batch, row).
struct GatheredBuffers {
  TensorRef<2> ranks_kv;   ///< (C · batch · rows, 2·kv_size)
  TensorRef<2> kv;         ///< (batch · seq_kv, 2·kv_size)
  TensorRef<2> dkv_part;   ///< as kv, for one call
  TensorRef<2> ranks_dkv;  ///< as ranks_kv, f32
  TensorRef<2> own_dkv;    ///< (batch · rows, 2·kv_size) f32
};

[[nodiscard]] GatheredBuffers lay_out_gathered(Arena& arena, Dtype dtype, const RingShape& shape,
                                               const ZigzagRows& keys, bool backward);

/// As ring_forward() and ring_backward(); `schedule` is one of gathered keys, kv and dkv are dense.
template <class Exec>
void gathered_forward(Runner<Exec>& run, const Kernels& kernels, const RingShape& shape,
                      const ZigzagRows& keys, const RingForwardArgs& args,
                      const GatheredBuffers& buffers, const RingSchedule<Exec>& schedule);
template <class Exec>
void gathered_backward(Runner<Exec>& run, const Kernels& kernels, const RingShape& shape,
                       const ZigzagRows& keys, const RingBackwardArgs& args,
                       const GatheredBuffers& buffers, const RingSchedule<Exec>& schedule);

}  // namespace katt::nn
