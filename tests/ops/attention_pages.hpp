#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

#include "ops/attention/decode/paged.hpp"
#include "tests/ops/attention_problems.hpp"

namespace katt::attention {

// One query; a few; 64 packed rows, the most; keys around the split of 128 and the tile of 32;
// ragged head_dim; groups of 1, 3 to 7.
inline const std::vector<Shape> decode_shapes{
    {1, 8, 2, 1, 300, 128}, {2, 7, 1, 1, 131, 64}, {1, 4, 4, 1, 1, 8},     {2, 3, 1, 5, 257, 40},
    {1, 16, 1, 4, 33, 72},  {1, 2, 2, 13, 7, 24},  {3, 8, 8, 1, 129, 256}, {1, 4, 2, 2, 0, 16},
    {1, 6, 1, 1, 47, 8},    {1, 5, 1, 1, 81, 136},
};

/// The keys and values of a problem in shuffled pages of a larger pool.
struct Pages {
  bench::Tensor<4> k, v;
  bench::Buffer table, lengths;
  std::int64_t per_sequence = 0;

  Pages(const ProblemData& data, Backend backend, std::int64_t page_size, HeadLayout layout) {
    const HostProblem& p = data.shape;
    per_sequence = (p.seq_kv + page_size - 1) / page_size;
    const std::int64_t pages = p.batch * per_sequence + 3;
    std::vector<std::int64_t> order(static_cast<std::size_t>(pages));
    std::iota(order.begin(), order.end(), 0);
    for (std::size_t i = order.size() - 1; i > 0; --i) {
      std::swap(order[i], order[testing::hash(11, i) % (i + 1)]);
    }
    const std::array<std::int64_t, 4> extent{pages, p.kv_heads, page_size, p.head_dim};
    const auto paged = [&](const std::vector<float>& dense) {
      std::vector<float> values(
          static_cast<std::size_t>(pages * p.kv_heads * page_size * p.head_dim),
          std::numeric_limits<float>::quiet_NaN());
      for (std::int64_t row = 0; row < p.batch * p.kv_heads * p.seq_kv; ++row) {
        const std::int64_t j = row % p.seq_kv;
        const std::int64_t h = row / p.seq_kv % p.kv_heads;
        const std::int64_t b = row / p.seq_kv / p.kv_heads;
        const std::int64_t page = order[static_cast<std::size_t>(b * per_sequence + j / page_size)];
        const std::int64_t target = (page * p.kv_heads + h) * page_size + j % page_size;
        std::copy_n(dense.begin() + row * p.head_dim, p.head_dim,
                    values.begin() + target * p.head_dim);
      }
      bench::Tensor<4> tensor("pages", backend, data.dtype, extent, layout);
      tensor.upload(values);
      return tensor;
    };
    k = paged(data.k);
    v = paged(data.v);
    std::vector<std::int64_t> counts = data.kv_len;
    if (counts.empty()) counts.assign(static_cast<std::size_t>(p.batch), p.seq_kv);
    table = {"table", backend, order.size() * 8};
    table.upload(std::as_bytes(std::span(order)));
    lengths = {"lengths", backend, counts.size() * 8};
    lengths.upload(std::as_bytes(std::span(counts)));
  }

  /// The arguments of a problem with these keys.
  PagedArgs args(const ForwardArgs& contiguous) const {
    PagedArgs args;
    args.q = contiguous.q;
    args.k_pages = k.ref();
    args.v_pages = v.ref();
    args.block_table = reinterpret_cast<const std::int64_t*>(table.data());
    args.pages_per_sequence = per_sequence;
    args.out = contiguous.out;
    args.lse = contiguous.lse;
    args.scale = contiguous.scale;
    args.score = contiguous.score;
    args.mask = contiguous.mask;
    args.mask.kv_len = reinterpret_cast<const std::int64_t*>(lengths.data());
    return args;
  }
};

}  // namespace katt::attention
