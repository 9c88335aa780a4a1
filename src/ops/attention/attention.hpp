#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/status.hpp"
#include "core/tensor.hpp"
#include "op/variants.hpp"
#include "ops/attention/tile.hpp"

/// Scaled dot-product attention over heads (Vaswani et al. 2017, arXiv:1706.03762, eq. 1):
///
///   S = scale · Q·Kᵀ;  S ← the score rule of ScoreArgs;  S ← S + bias;
///   S(i, j) ← −inf where key j is not visible to query i
///   out = softmax(S) · V,   lse(i) = log Σ_j exp S(i, j)
///
/// With kv_heads < heads, query head h uses key/value head h / (heads / kv_heads) (GQA, MQA).
namespace katt::attention {

/// The steps that change scores before bias and mask, in this order:
///   S ← softcap · tanh(S / softcap)          if softcap > 0  (Gemma 2, arXiv:2408.00118, section 2)
///   S ← S − alibi_slopes[h] · |i + o − j|    where there are slopes, o as in MaskArgs
///                                            (ALiBi: Press et al. 2022, arXiv:2108.12409)
/// A user's own rule comes after both; see own_rule.hpp.
struct ScoreArgs {
  float softcap = 0.0F;                 ///< 0: none
  const float* alibi_slopes = nullptr;  ///< (heads) f32, in the memory of the backend
};

/// The slopes of the paper for a number of heads: 2^(−8(h + 1)/n) where n is a power of two; else
/// those of the largest power of two below, then every other slope of the next one.
[[nodiscard]] std::vector<float> alibi_slopes(std::int64_t heads);

/// The numbers of ScoreArgs by name: the attributes of case files, and axes of sweeps.
struct ScoreParameter {
  const char* name;         ///< of the attribute and the axis
  float ScoreArgs::*value;  ///< the member that it sets
  float minimum, maximum;   ///< the range that is accepted
  const char* help;         ///< what `katt info attention` says
};
/// Every number of ScoreArgs.
inline constexpr ScoreParameter score_parameters[]{
    {"softcap", &ScoreArgs::softcap, 0.0F, 1e6F, "cap of the scores; 0: none"}};

/// The keys that a query sees, and the bias of its scores. With n = kv_len[b] where given, else
/// seq_kv, and o = n − seq_q (bottom-right alignment, as FlashAttention 2.1 and later):
///   key j is visible to query i  iff  j < n
///                                and  j ≥ i + o − window_left   (window_left ≥ 0)
///                                and  j ≤ i + o + window_right  (window_right ≥ 0; causal: 0)
///                                and  block_mask(i / block_size, j / block_size) ≠ 0
/// A query that sees no key gives out = 0 and lse = −inf.
struct MaskArgs {
  bool causal = false;             ///< true: window_right is 0
  std::int64_t window_left = -1;   ///< keys to the left that stay visible; −1: all
  std::int64_t window_right = -1;  ///< keys to the right that stay visible; −1: all
  /// Added to the scores, in the dtype of q: (batch or 1, heads or 1, seq_q, seq_kv). May hold
  /// −inf.
  ConstTensorRef<4> bias{};
  /// Length of every batch entry, ≥ 0; where it exceeds seq_kv, keys from seq_kv on do not exist
  /// and only the alignment o follows it: (batch) int64 in the memory of the backend.
  const std::int64_t* kv_len = nullptr;
  /// (⌈seq_q / block_size⌉, ⌈seq_kv / block_size⌉), row-major, in the memory of the backend.
  const std::uint8_t* block_mask = nullptr;
  std::int64_t block_size = 0;  ///< queries, and keys, of a block of the block mask
  /// Elements from the block mask of a batch entry and of a K/V head to the next one's; 0: they have
  /// the same. Hosts alone read them.
  std::int64_t block_batch_stride = 0, block_head_stride = 0;
  /// true: blocks that hold 2 are visible in part, and a rule that is a program hides the rest.
  bool has_partial_blocks = false;
};

/// Largest head_dim. Every multiple of 8 up to it is accepted.
inline constexpr std::int64_t max_head_dim = 256;

/// Arguments of the forward pass. Tensors share one dtype, lie in the memory of the backend, and
/// may have any strides as long as the last axis is contiguous: (B, S, H, D) and (B, H, S, D)
/// storage both do without a copy.
struct ForwardArgs {
  ConstTensorRef<4> q;  ///< (batch, heads, seq_q, head_dim)
  ConstTensorRef<4> k;  ///< (batch, kv_heads, seq_kv, head_dim)
  ConstTensorRef<4> v;  ///< (batch, kv_heads, seq_kv, head_dim)
  TensorRef<4> out;     ///< (batch, heads, seq_q, head_dim)
  TensorRef<3> lse{};   ///< (batch, heads, seq_q) f32, natural logarithm; optional
  float scale = 0.0F;   ///< factor of Q·Kᵀ, usually 1 / √head_dim
  ScoreArgs score{};    ///< softcap and ALiBi
  MaskArgs mask{};      ///< the keys that a query sees, and the bias
  /// true: out and lse are for a backward pass. "auto" then chooses a variant that sums products in
  /// the same order.
  bool for_backward = false;

  std::int64_t batch() const { return q.extent[0]; }     ///< sequences
  std::int64_t heads() const { return q.extent[1]; }     ///< query heads
  std::int64_t kv_heads() const { return k.extent[1]; }  ///< key/value heads
  std::int64_t seq_q() const { return q.extent[2]; }     ///< queries of a sequence
  std::int64_t seq_kv() const { return k.extent[2]; }    ///< keys of a sequence
  std::int64_t head_dim() const { return q.extent[3]; }  ///< elements of a head
};

/// The forward variants of an execution space; the first is "naive". A program adds its own with
/// add() before it sweeps or calls forward().
template <class Exec>
VariantTable<Exec, ForwardArgs>& forward_variants();

/// Throws InputError when the shapes, strides, dtypes or mask of the arguments do not fit together.
void check(const ForwardArgs& args);
/// Throws InputError when the lengths of the keys, which the host can read here, are none.
void check_values(const ForwardArgs& args);

/// Bytes of workspace that forward() needs. Throws like forward().
template <class Exec>
[[nodiscard]] std::size_t workspace_bytes(const Exec& exec, const ForwardArgs& args,
                                          const Config& config);

/// Launches the forward pass on the execution space instance and returns without waiting for it.
/// Returns skipped with the reason, and launches nothing, when the variant cannot run these
/// arguments with this tile; never another variant in its place. Throws InputError for arguments
/// that check() refuses, an unknown variant, and a workspace smaller than workspace_bytes().
template <class Exec>
Status forward(const Exec& exec, const ForwardArgs& args, const Config& config,
               Workspace workspace);

/// FLOPs of the forward pass: 4 · head_dim for every visible (query, key) pair; softmax not
/// counted. The block mask and kv_len must be readable on the host.
[[nodiscard]] double forward_flops(const ForwardArgs& args);

/// Least traffic of the forward pass in bytes: q, k, v and the bias read once, out and lse written
/// once.
[[nodiscard]] double forward_bytes(const ForwardArgs& args);

}  // namespace katt::attention
