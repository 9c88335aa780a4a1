#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "core/views.hpp"
#include "ops/attention/bf16_panels/scores.hpp"
#include "ops/attention/scores.hpp"

/// The operands of the backward pass on bf16 panels, packed into its workspace: K and V, Q and dO
/// in the forms that the five products take them in, and RowShift and Δ of every query row.
#if defined(KATT_BF16_PANELS)
namespace katt::attention::impl {

inline constexpr int largest_group = 8;  ///< blocks of 32 in the largest tile

/// Parts of a piece of memory, one after the other: what counts it also divides it. Without memory
/// all parts are null.
class Carver {
 public:
  explicit Carver(std::byte* memory) : memory_(memory) {}
  template <class T>
  void operator()(T*& part, std::int64_t count) {
    part = memory_ == nullptr ? nullptr : reinterpret_cast<T*>(memory_ + bytes_);
    bytes_ += static_cast<std::size_t>(count) * sizeof(T);
  }
  std::size_t bytes() const { return bytes_; }

 private:
  std::byte* memory_;
  std::size_t bytes_ = 0;
};

/// Extents of a backward pass.
struct BackwardLayout {
  int depth;                  ///< 32 dimensions each
  int query_group;            ///< blocks of 32 query rows
  int key_group;              ///< blocks of 32 keys
  std::int64_t heads;         ///< batch · kv heads
  std::int64_t row_blocks;    ///< per K/V head
  std::int64_t key_blocks;    ///< per K/V head
  std::int64_t key_groups;    ///< per K/V head
  std::int64_t chunks;        ///< per K/V head, of key groups
  bool by_heads;              ///< a work item is all of a head
  std::int64_t packed_heads;  ///< number of heads with room in the workspace

  BackwardLayout(const BackwardArgs& args, Tile tile, int threads)
      : depth(bf16_panels::depth_panels(args.head_dim())),
        query_group(tile.q / bf16_panels::block),
        key_group(tile.kv / bf16_panels::block),
        heads(args.batch() * args.kv_heads()),
        row_blocks(divide_up(args.seq_q() * (args.heads() / args.kv_heads()), bf16_panels::block)),
        key_blocks(divide_up(args.seq_kv(), bf16_panels::block)),
        key_groups(divide_up(key_blocks, key_group)),
        chunks(key_sections(heads, key_groups)),
        by_heads(goes_by_heads(heads, threads, head_bytes())),
        packed_heads(by_heads ? threads : heads) {}

  /// Elements of a block of 32 rows of any packed operand.
  std::int64_t block_elements() const { return depth * 2LL * bf16_panels::panel_elements; }
  /// Bytes of the packed operands of a head: three forms of keys, four of queries, partial dQᵀ.
  std::int64_t head_bytes() const {
    return block_elements() * (3 * key_blocks * 2 + row_blocks * (4 * 2 + chunks * 4));
  }
};

/// The workspace without the scratch of the threads.
struct PackedOperands {
  bf16 *k_rows, *v_rows, *k_columns;     ///< operands A, of a block of keys
  bf16 *q_transposed, *dout_transposed;  ///< operands B, of a block of query rows
  bf16 *q_pairs, *dout_pairs;            ///< likewise, in pairs of rows
  float *shift, *low, *delta;            ///< of query rows: RowShift, Δ
  float* dq;                             ///< of a chunk: partial dQᵀ
  std::size_t bytes;

  PackedOperands(std::byte* memory, const BackwardLayout& layout) {
    Carver take(memory);
    const std::int64_t keys = layout.packed_heads * layout.key_blocks * layout.block_elements();
    const std::int64_t queries = layout.packed_heads * layout.row_blocks * layout.block_elements();
    for (bf16** part : {&k_rows, &v_rows, &k_columns}) take(*part, keys);
    for (bf16** part : {&q_transposed, &dout_transposed, &q_pairs, &dout_pairs}) {
      take(*part, queries);
    }
    for (float** part : {&shift, &low, &delta}) {
      take(*part, layout.packed_heads * layout.row_blocks * bf16_panels::block);
    }
    take(dq, layout.chunks * queries);
    bytes = take.bytes();
  }
};

/// The tensors of a backward pass and their packed forms.
struct PackedBackward : BackwardProblem<bf16, NoRule> {
  BlockScores block_scores;
  BackwardLayout layout;
  PackedOperands operands;
  std::int64_t first_head = 0;  ///< the one whose operands come first

  PackedBackward(const BackwardArgs& args, const BlockScores& rule, const BackwardLayout& extents,
                 Workspace space)
      : BackwardProblem(args, {}),
        block_scores(rule),
        layout(extents),
        operands(static_cast<std::byte*>(space.data), layout) {}

  bf16* of_keys(bf16* operand, std::int64_t head, std::int64_t block) const {
    return operand + ((head - first_head) * layout.key_blocks + block) * layout.block_elements();
  }
  bf16* of_queries(bf16* operand, std::int64_t head, std::int64_t block) const {
    return operand + ((head - first_head) * layout.row_blocks + block) * layout.block_elements();
  }
  float* of_rows(float* statistic, std::int64_t head, std::int64_t block) const {
    return statistic + ((head - first_head) * layout.row_blocks + block) * bf16_panels::block;
  }
  /// Partial dQᵀ: [32 dimensions][query panel 2][dim panel 2] panels.
  float* dq_part(std::int64_t head, std::int64_t chunk, std::int64_t block) const {
    return operands.dq +
           (((head - first_head) * layout.chunks + chunk) * layout.row_blocks + block) *
               layout.depth * 4 * bf16_panels::panel_floats;
  }

  void pack_keys(std::int64_t head, std::int64_t block) const {
    const std::int64_t first = block * bf16_panels::block;
    const int live = live_keys(*this, head, first);
    const bf16* from_k = k.row(head / kv_heads, head % kv_heads, first);
    const bf16* from_v = v.row(head / kv_heads, head % kv_heads, first);
    bf16_panels::pack_row_block(from_k, k.stride_seq, live, head_dim,
                                of_keys(operands.k_rows, head, block));
    bf16_panels::pack_row_block(from_v, v.stride_seq, live, head_dim,
                                of_keys(operands.v_rows, head, block));
    for (int d = 0; d < layout.depth; ++d) {
      const int first_dim = d * bf16_panels::depth;
      bf16_panels::pack_columns(
          from_k + first_dim, k.stride_seq, live, head_dim - first_dim, 2,
          of_keys(operands.k_columns, head, block) + d * 2 * bf16_panels::panel_elements);
    }
  }

  PackedRows packed_rows(std::int64_t head, std::int64_t block) const {
    return {head % kv_heads, group, block * bf16_panels::block};
  }
  int count_of(std::int64_t block) const {
    return static_cast<int>(
        std::min<std::int64_t>(bf16_panels::block, rows - block * bf16_panels::block));
  }

  /// Returns true when a row of the block is steep: its shift is still unknown.
  bool pack_queries(std::int64_t head, std::int64_t block) const {
    const std::int64_t b = head / kv_heads;
    const int count = count_of(block);
    const BlockRows at(packed_rows(head, block), count);
    const auto pack = [&](const HeadRows<const bf16>& source, bf16* transposed, bf16* pairs) {
      const auto row = [&](int r, int d) -> const bf16* {
        return r < count ? source.row(b, at.head[r], at.query[r]) + d : nullptr;
      };
      transposed = of_queries(transposed, head, block);
      pairs = of_queries(pairs, head, block);
      for (int d = 0; d < layout.depth; ++d) {
        const int first_dim = d * bf16_panels::depth;
        const std::ptrdiff_t to = d * 2 * bf16_panels::panel_elements;
        for (int t = 0; t < 2; ++t) {
          bf16_panels::pack_transposed(
              [&](int i) { return row(t * bf16_panels::rows + i, first_dim); },
              head_dim - first_dim, transposed + to + t * bf16_panels::panel_elements);
        }
        bf16_panels::pack_pairs([&](int r) { return row(r, first_dim); }, head_dim - first_dim, 2,
                                pairs + to);
      }
    };
    pack(q, operands.q_transposed, operands.q_pairs);
    pack(dout, operands.dout_transposed, operands.dout_pairs);
    float* delta = of_rows(operands.delta, head, block);
    const ScoreUnit unit = block_scores.unit();
    bool steep = false;
    for (int r = 0; r < bf16_panels::block; ++r) {
      const float row_lse =
          r < count ? lse(b, at.head[r], at.query[r]) : -Kokkos::Experimental::infinity_v<float>;
      set_shift(head, block, r, RowShift::of_lse(row_lse, unit));
      steep = steep || RowShift::is_steep(row_lse);
    }
    using Vec = bf16_panels::HostVec;
    for (int first = 0; first < bf16_panels::block; first += bf16_panels::rows) {
      const auto row_of = [&](const HeadRows<const bf16>& tensor) {
        return [&, first](int i) {
          const int r = first + i;
          return r < count ? tensor.row(b, at.head[r], at.query[r]) : nullptr;
        };
      };
      // vdpbf16ps adds a pair's second product first
      tile::store(delta + first, row_deltas<2, Vec>(row_of(out), row_of(dout), head_dim));
    }
    for (int r = 0; dlse && r < count; ++r) delta[r] -= lse_gradient(b, at.head[r], at.query[r]);
    return steep;
  }

  void set_shift(std::int64_t head, std::int64_t block, int r, const RowShift& of_row) const {
    of_rows(operands.shift, head, block)[r] = of_row.shift;
    of_rows(operands.low, head, block)[r] = of_row.low;
  }
};

}  // namespace katt::attention::impl
#endif
