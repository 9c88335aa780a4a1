#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <string>

#include "core/check.hpp"
#include "core/error.hpp"
#include "core/tensor.hpp"
#include "ops/attention/attention.hpp"
#include "ops/attention/mask.hpp"

/// Checks and counts that the two passes share.
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
    check_tensor<4>("attention", "bias", mask.bias, args.q.dtype,
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

/// q, k, v and the mask of either pass. Throws InputError.
template <class Args>
void check_inputs(const Args& args) {
  check_heads(args);
  const std::array<std::int64_t, 4> kv{args.batch(), args.kv_heads(), args.seq_kv(),
                                       args.head_dim()};
  check_tensor<4>("attention", "k", args.k, args.q.dtype, kv);
  check_tensor<4>("attention", "v", args.v, args.q.dtype, kv);
  check_mask(args);
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

/// Scores that an unfused implementation stores, counted without overflow.
template <class Args>
double stored_scores(const Args& args) {
  return static_cast<double>(args.batch()) * static_cast<double>(args.heads()) *
         static_cast<double>(args.seq_q()) * static_cast<double>(args.seq_kv());
}

/// Visible (query, key) pairs of one head, summed over the batch. The masks must be readable on the
/// host.
template <class Args>
double visible_pairs(const Args& args) {
  const Masks masks(args);
  double pairs = 0;
  for (std::int64_t b = 0; b < args.batch(); ++b) {
    const Mask mask = masks.of(b);
    for (std::int64_t i = 0; i < args.seq_q(); ++i) {
      const std::int64_t begin = mask.interval.begin(i);
      const std::int64_t end = mask.interval.end(i);
      if (mask.blocks.blocks == nullptr) {
        pairs += static_cast<double>(std::max<std::int64_t>(0, end - begin));
        continue;
      }
      const std::int64_t size = mask.blocks.size;
      for (std::int64_t j = begin; j < end; j = (j / size + 1) * size) {
        if (mask.blocks.visible(i, j)) {
          pairs += static_cast<double>(std::min(end, (j / size + 1) * size) - j);
        }
      }
    }
  }
  return pairs;
}

}  // namespace katt::attention::impl
