#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>

#include "core/check.hpp"
#include "core/error.hpp"
#include "core/tensor.hpp"
#include "ops/attention/attention.hpp"

/// Checks that the schemas do not express.
namespace katt::attention::impl {

/// head_dim and the numbers of heads. Throws InputError.
template <class Args>
void check_heads(const Args& args) {
  const auto fail = [](const std::string& message) { throw InputError("attention: " + message); };
  const std::int64_t d = args.head_dim();
  if (d <= 0 || d > max_head_dim || d % 8 != 0) {
    fail("head_dim " + std::to_string(d) + ": expected a multiple of 8 up to " +
         std::to_string(max_head_dim));
  }
  if (args.kv_heads() <= 0 || args.heads() % args.kv_heads() != 0) {
    fail("kv_heads " + std::to_string(args.kv_heads()) + ": does not divide heads " +
         std::to_string(args.heads()));
  }
}

/// Scale, score rule, bias and block mask. Throws InputError.
template <class Args>
void check_mask(const Args& args) {
  const auto fail = [](const std::string& message) { throw InputError("attention: " + message); };
  const MaskArgs& mask = args.mask;
  if (!std::isfinite(args.scale)) {
    fail("scale " + std::to_string(args.scale) + ": expected a finite number");
  }
  for (const ScoreParameter& parameter : score_parameters) {
    const float value = args.score.*parameter.value;
    if (value >= parameter.minimum && value <= parameter.maximum) continue;
    fail(std::string(parameter.name) + " " + std::to_string(value) + ": expected " +
         std::to_string(parameter.minimum) + " … " + std::to_string(parameter.maximum));
  }
  if (mask.bias) {
    check_tensor<4>("attention", "mask", mask.bias, args.q.dtype,
                    {mask.bias.extent[0] == 1 ? 1 : args.batch(),
                     mask.bias.extent[1] == 1 ? 1 : args.heads(), args.seq_q(), args.seq_kv()});
  }
  if (mask.block_mask == nullptr) return;
  if (mask.block_size <= 0) {
    fail("block_size " + std::to_string(mask.block_size) + ": expected > 0 with a block mask");
  }
  if (const std::int64_t longest = std::max(args.seq_q(), args.seq_kv()); longest > 0x7FFFFFFF) {
    fail("block_mask: of a sequence of " + std::to_string(longest) + ", expected below 2^31");
  }
}

/// Lengths of the keys of every sequence, in the memory of the host; null: there are none. Throws
/// InputError.
inline void check_lengths(const std::int64_t* lengths, std::int64_t batch, std::int64_t seq_kv) {
  for (std::int64_t b = 0; lengths != nullptr && b < batch; ++b) {
    if (lengths[b] >= 0 && lengths[b] <= seq_kv) continue;
    throw InputError("attention: kv_lengths: holds " + std::to_string(lengths[b]) +
                     ", expected lengths from 0 to the " + std::to_string(seq_kv) + " keys of k");
  }
}

/// out and lse of the forward pass. Throws InputError.
template <class Args>
void check_output(const Args& args) {
  check_tensor<4>("attention", "out", args.out, args.q.dtype, args.q.extent);
  if (args.lse) {
    check_tensor<3>("attention", "lse", args.lse, Dtype::f32,
                    {args.batch(), args.heads(), args.seq_q()});
  }
}

}  // namespace katt::attention::impl
