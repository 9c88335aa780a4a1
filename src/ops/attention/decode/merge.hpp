#pragma once

#include <cstdint>

#include "core/tensor.hpp"

namespace katt::attention {

/// Results of attention over disjoint sets of keys, merged into the result over all of them
/// (Milakov & Gimelshein 2018, arXiv:1805.02867, section 3.1, for whole rows of values):
///
///   lse = log Σ_p exp(lse_p),   out = Σ_p exp(lse_p − lse) · out_p
///
/// A part that saw no key (lse_p = −inf) counts nothing, whatever its out_p holds; where no part
/// saw one, out = 0 and lse = −inf.
struct MergeArgs {
  ConstTensorRef<5> parts;      ///< (parts, batch, heads, seq_q, head_dim), any dtype
  ConstTensorRef<4> parts_lse;  ///< (parts, batch, heads, seq_q) f32, natural logarithm
  TensorRef<4> out;             ///< (batch, heads, seq_q, head_dim), any dtype
  TensorRef<3> lse{};           ///< (batch, heads, seq_q) f32; optional
};

/// Throws InputError when the shapes or dtypes of the arguments do not fit together.
void check(const MergeArgs& args);

/// Launches the merge on the execution space instance and returns without waiting for it. Sums are
/// taken in f32 in the order of the parts. Throws InputError for arguments that check() refuses.
template <class Exec>
void merge(const Exec& exec, const MergeArgs& args);

}  // namespace katt::attention
