#pragma once

#include <algorithm>
#include <cstdint>

#include "ops/attention/mask.hpp"

/// Counts that both passes share.
namespace katt::attention::impl {

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
