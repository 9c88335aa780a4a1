#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "core/views.hpp"
#include "ops/attention/bf16_panels/scores.hpp"
#include "ops/attention/scores.hpp"

/// What the backward pass on bf16 panels reads, packed into its workspace: K and V, Q and dO in the
/// forms that the five products take them in, and lse and Δ of every query row.
#if defined(KATT_BF16_PANELS)
namespace katt::attention::impl {

inline constexpr int largest_group = 8;  ///< blocks of 32 in the largest tile
inline constexpr std::size_t square_bytes = 4 * bf16_panels::panel_bytes;       ///< 32 × 32 f32
inline constexpr std::size_t half_square_bytes = 2 * bf16_panels::panel_bytes;  ///< 32 × 32 bf16

/// Sizes and places in the workspace.
struct BackwardLayout {
  int depth;                ///< 32 dimensions each
  int query_group;          ///< blocks of 32 query rows
  int key_group;            ///< blocks of 32 keys
  std::int64_t group;       ///< query heads per K/V head
  std::int64_t rows;        ///< packed query rows per K/V head
  std::int64_t heads;       ///< batch · kv heads
  std::int64_t row_blocks;  ///< per K/V head
  std::int64_t key_blocks;  ///< per K/V head
  std::int64_t key_groups;  ///< per K/V head
  std::int64_t chunks;      ///< per K/V head, of key groups

  BackwardLayout(const BackwardArgs& args, Tile tile)
      : depth(bf16_panels::depth_panels(args.head_dim())),
        query_group(tile.q / bf16_panels::block),
        key_group(tile.kv / bf16_panels::block),
        group(args.heads() / args.kv_heads()),
        rows(args.seq_q() * group),
        heads(args.batch() * args.kv_heads()),
        row_blocks(divide_up(rows, bf16_panels::block)),
        key_blocks(divide_up(args.seq_kv(), bf16_panels::block)),
        key_groups(divide_up(key_blocks, key_group)) {
    // Work items below which keys are split into chunks: enough for the threads of a large host.
    constexpr std::int64_t least_items = 16;
    const std::int64_t wanted = heads == 0 ? 1 : divide_up(least_items, heads);
    chunks = std::max<std::int64_t>(1, std::min(wanted, key_groups));
  }

  /// Elements of a block of 32 rows of any packed operand.
  std::int64_t block_elements() const { return depth * 2LL * bf16_panels::panel_elements; }

  // Offsets in bytes. Operands: K, V (A by rows), K (A by columns); Q, dO (B transposed), Q, dO (B
  // in pairs).
  std::size_t key_operand(int n) const {
    return static_cast<std::size_t>(n * heads * key_blocks * block_elements()) * sizeof(bf16);
  }
  std::size_t query_operand(int n) const {
    return key_operand(3) +
           static_cast<std::size_t>(n * heads * row_blocks * block_elements()) * sizeof(bf16);
  }
  std::size_t statistics(int n) const {
    return query_operand(4) +
           static_cast<std::size_t>(n * heads * row_blocks * bf16_panels::block) * sizeof(float);
  }
  std::size_t dq_bytes() const {
    return static_cast<std::size_t>(heads * chunks * row_blocks * depth) * square_bytes;
  }
  std::size_t dq() const { return statistics(2); }
  std::size_t scratch() const { return dq() + dq_bytes(); }
  std::size_t scratch_bytes() const {
    const auto pairs = static_cast<std::size_t>(query_group) * static_cast<std::size_t>(key_group);
    return 4 * square_bytes + 3 * pairs * half_square_bytes +
           2 * static_cast<std::size_t>(key_group) * static_cast<std::size_t>(depth) * square_bytes;
  }
};

/// The tensors of a backward pass and their packed forms.
struct PackedBackward {
  StridedView<const bf16, 4, Kokkos::HostSpace> q, k, v, out, dout;
  StridedView<const float, 3, Kokkos::HostSpace> lse;
  StridedView<bf16, 4, Kokkos::HostSpace> dq, dk, dv;
  Masks masks;
  Bias<bf16> bias;
  float scale;
  float softcap;
  BackwardLayout layout;
  std::byte* workspace;

  PackedBackward(const BackwardArgs& args, const BackwardLayout& places, Workspace space)
      : q(args.q.view<bf16, Kokkos::HostSpace>()),
        k(args.k.view<bf16, Kokkos::HostSpace>()),
        v(args.v.view<bf16, Kokkos::HostSpace>()),
        out(args.out.view<bf16, Kokkos::HostSpace>()),
        dout(args.dout.view<bf16, Kokkos::HostSpace>()),
        lse(args.lse.view<float, Kokkos::HostSpace>()),
        dq(args.dq.view<bf16, Kokkos::HostSpace>()),
        dk(args.dk.view<bf16, Kokkos::HostSpace>()),
        dv(args.dv.view<bf16, Kokkos::HostSpace>()),
        masks(args),
        bias(args.mask.bias),
        scale(args.scale),
        softcap(args.mask.softcap),
        layout(places),
        workspace(static_cast<std::byte*>(space.data)) {}

  bf16* key_operand(int n, std::int64_t head, std::int64_t block) const {
    return reinterpret_cast<bf16*>(workspace + layout.key_operand(n)) +
           (head * layout.key_blocks + block) * layout.block_elements();
  }
  bf16* query_operand(int n, std::int64_t head, std::int64_t block) const {
    return reinterpret_cast<bf16*>(workspace + layout.query_operand(n)) +
           (head * layout.row_blocks + block) * layout.block_elements();
  }
  /// −lse in base 2 (n = 0) and Δ (n = 1) of a block of query rows.
  float* statistics(int n, std::int64_t head, std::int64_t block) const {
    return reinterpret_cast<float*>(workspace + layout.statistics(n)) +
           (head * layout.row_blocks + block) * bf16_panels::block;
  }
  /// Partial dQᵀ: [32 dimensions][query panel 2][dim panel 2] panels.
  float* dq_part(std::int64_t head, std::int64_t chunk, std::int64_t block) const {
    return reinterpret_cast<float*>(workspace + layout.dq()) +
           ((head * layout.chunks + chunk) * layout.row_blocks + block) * layout.depth * 4 *
               bf16_panels::panel_floats;
  }

  void pack_keys(std::int64_t item) const {
    const std::int64_t head = item / layout.key_blocks;
    const std::int64_t block = item % layout.key_blocks;
    const auto kv_heads = static_cast<std::int64_t>(k.extent(1));
    const std::int64_t first = block * bf16_panels::block;
    const int live = static_cast<int>(
        std::min<std::int64_t>(bf16_panels::block, static_cast<std::int64_t>(k.extent(2)) - first));
    const int head_dim = static_cast<int>(k.extent(3));
    const bf16* from_k = &k(head / kv_heads, head % kv_heads, first, 0);
    const bf16* from_v = &v(head / kv_heads, head % kv_heads, first, 0);
    const auto k_stride = static_cast<std::int64_t>(k.stride(2));
    const auto v_stride = static_cast<std::int64_t>(v.stride(2));
    bf16_panels::pack_row_block(from_k, k_stride, live, head_dim, key_operand(0, head, block));
    bf16_panels::pack_row_block(from_v, v_stride, live, head_dim, key_operand(1, head, block));
    for (int d = 0; d < layout.depth * 2; ++d) {
      const int column = d * bf16_panels::rows;
      bf16_panels::pack_columns(from_k + column, k_stride, column < head_dim ? live : 0,
                                head_dim - column,
                                key_operand(2, head, block) + d * bf16_panels::panel_elements);
    }
  }

  PackedRows packed_rows(std::int64_t head, std::int64_t block) const {
    return {head % static_cast<std::int64_t>(k.extent(1)), layout.group,
            block * bf16_panels::block};
  }
  int count_of(std::int64_t block) const {
    return static_cast<int>(
        std::min<std::int64_t>(bf16_panels::block, layout.rows - block * bf16_panels::block));
  }

  /// A block of packed query rows: the work of one item.
  struct QueryItem {
    std::int64_t head, block, b;
    PackedRows packed;
    int count;
  };
  QueryItem query_item(std::int64_t item) const {
    const std::int64_t head = item / layout.row_blocks;
    const std::int64_t block = item % layout.row_blocks;
    return {head, block, head / static_cast<std::int64_t>(k.extent(1)), packed_rows(head, block),
            count_of(block)};
  }

  void pack_queries(std::int64_t item) const {
    const QueryItem at = query_item(item);
    const PackedRows& packed = at.packed;
    const int head_dim = static_cast<int>(q.extent(3));
    for (int n = 0; n < 2; ++n) {
      const auto& source = n == 0 ? q : dout;
      const auto row = [&](int r, int d) -> const bf16* {
        return r < at.count && d < head_dim ? &source(at.b, packed.head(r), packed.query(r), d)
                                            : nullptr;
      };
      bf16* transposed = query_operand(n, at.head, at.block);
      bf16* pairs = query_operand(2 + n, at.head, at.block);
      for (int d = 0; d < layout.depth * 2; ++d) {
        bf16_panels::pack_transposed(
            [&](int i) { return row(d % 2 * bf16_panels::rows + i, d / 2 * bf16_panels::depth); },
            head_dim - d / 2 * bf16_panels::depth, transposed + d * bf16_panels::panel_elements);
        bf16_panels::pack_pairs([&](int r) { return row(r, d * bf16_panels::rows); },
                                head_dim - d * bf16_panels::rows,
                                pairs + d * bf16_panels::panel_elements);
      }
    }
    float* shift = statistics(0, at.head, at.block);
    float* delta = statistics(1, at.head, at.block);
    for (int r = 0; r < bf16_panels::block; ++r) {
      shift[r] = r < at.count ? -BinaryLse(lse(at.b, packed.head(r), packed.query(r))).high
                              : -Kokkos::Experimental::infinity_v<float>;
      delta[r] = r < at.count ? row_delta<bf16_panels::HostVec>(
                                    &out(at.b, packed.head(r), packed.query(r), 0),
                                    &dout(at.b, packed.head(r), packed.query(r), 0), head_dim)
                              : 0.0F;
    }
  }
};

}  // namespace katt::attention::impl
#endif
