#include <algorithm>
#include <array>

#include "core/thread_slot.hpp"
#include "ops/attention/bf16_panels/backward_operands.hpp"
#include "ops/attention/bf16_panels/panels.hpp"
#include "ops/attention/tile.hpp"
#include "tile/bf16/bf16_engine.hpp"
#include "tile/vec/flush_subnormals.hpp"

/// The backward pass of portable/backward_kernel.hpp on packed bf16 panels, transposed as the
/// forward pass is, so that lse and Δ are vectors of queries:
///
///   for every (batch, kv head, chunk of key groups), in parallel:
///     for every group of key blocks:  dK = dV = 0
///       for every group of query blocks:
///         for every live pair of blocks (32 keys × 32 queries):
///           Sᵀ = K·Qᵀ, dPᵀ = V·dOᵀ;  Pᵀ = e^(S − lse), dSᵀ = Pᵀ ∘ (dPᵀ − Δ)
///         dV += Pᵀ·dO, dK += dSᵀ·Q    for every key block, over the query blocks of the group
///         dQᵀ(chunk) += Kᵀ·dSᵀ        for every query block, over the key blocks of the group
///       write dK, dV
///   afterwards dQ = Σ over chunks, in order, transposed
///
/// Operands are packed before, for all heads; blocks of query rows that RowShift::is_steep() then
/// go over their keys once, for the largest score and the sum of every row. With many short heads,
/// one thread does all of this for a head.
///
/// While a unit computes the products of a pair, the vector unit turns the pair before into Pᵀ and
/// dSᵀ. Pᵀ is an operand A (keys × queries), dSᵀ both A and, in pairs of keys, B.
namespace katt::attention::impl {

template <>
const std::vector<Tile>& panel_tiles<BackwardArgs>() {
  static const std::vector<Tile> tiles{{128, 128}, {32, 32},  {32, 64},  {32, 128}, {64, 32},
                                       {64, 64},   {64, 128}, {64, 256}, {128, 64}, {256, 128}};
  return tiles;
}

#if defined(KATT_BF16_PANELS)
namespace {

/// Pᵀ and dSᵀ of 32 keys × 32 queries, two keys at a call.
struct Gradients {
  const float* scores;  ///< [query panel 2][32 keys][16 queries]
  const float* dp;      ///< likewise
  bf16* p_rows;         ///< A: [32 keys][32 queries]
  bf16* ds_rows;        ///< A
  bf16* ds_pairs;       ///< B: [query panel 2][16 pairs of keys][16 queries]
  __m512 scale;
  __m512 shift[2];  ///< RowShift, by query panel
  __m512 low[2];
  __m512 delta[2];

  KOKKOS_FORCEINLINE_FUNCTION void pair(int i) const {
    __m512 ds[2][2];
#pragma GCC unroll 2
    for (int k = 0; k < 2; ++k) {
      const int key = 2 * i + k;
      __m512 p[2];
#pragma GCC unroll 2
      for (int t = 0; t < 2; ++t) {
        const int at = (t * 32 + key) * 16;
        const __m512 above = _mm512_sub_ps(_mm512_load_ps(scores + at), shift[t]);
        p[t] = tile::exp2_of_16_bits(_mm512_fmsub_ps(above, scale, low[t]));
        ds[t][k] = _mm512_mul_ps(p[t], _mm512_sub_ps(_mm512_load_ps(dp + at), delta[t]));
      }
      _mm512_store_si512(p_rows + key * bf16_panels::depth, avx512::bf16_of_finite(p[0], p[1]));
      _mm512_store_si512(ds_rows + key * bf16_panels::depth,
                         avx512::bf16_of_finite(ds[0][k], ds[1][k]));
    }
#pragma GCC unroll 2
    for (int t = 0; t < 2; ++t) {
      _mm512_store_si512(ds_pairs + t * bf16_panels::panel_elements + i * bf16_panels::depth,
                         avx512::bf16_pairs_of_finite(ds[t][0], ds[t][1]));
    }
  }

  KOKKOS_FORCEINLINE_FUNCTION void share(int i, int steps) const {
    for (int p = 16 * i / steps; p < 16 * (i + 1) / steps; ++p) pair(p);
  }
};

/// The first or the second half of another's work.
struct Half {
  const Gradients& work;
  int half;
  KOKKOS_FORCEINLINE_FUNCTION void share(int i, int steps) const {
    work.share(half * steps + i, 2 * steps);
  }
};

struct Bf16Backward : PackedBackward {
  using PackedBackward::PackedBackward;

  /// Buffers of a thread.
  struct Scratch {
    float* scores;   ///< two squares
    float* dp;       ///< two squares
    bf16* p_rows;    ///< [key block][query block] squares
    bf16* ds_rows;   ///< likewise
    bf16* ds_pairs;  ///< likewise
    float* dk;       ///< [key block][32 dimensions] squares: [dim panel 2][key panel 2]
    float* dv;       ///< likewise

    std::size_t bytes;

    Scratch(std::byte* memory, const BackwardLayout& layout) {
      Carver take(memory);
      const std::int64_t square = 2LL * bf16_panels::panel_elements;
      const std::int64_t pairs = std::int64_t{layout.query_group} * layout.key_group;
      for (float** part : {&scores, &dp}) take(*part, 2 * square);
      for (bf16** part : {&p_rows, &ds_rows, &ds_pairs}) take(*part, pairs * square);
      for (float** part : {&dk, &dv})
        take(*part, std::int64_t{layout.key_group} * layout.depth * square);
      bytes = take.bytes();
    }
  };

  /// A live pair of blocks: its index in the group, and its mask.
  struct Pair {
    int key_block = 0;
    int query_block = 0;
    int columns = 0;
    TileState state = TileState::full;
  };

  /// Computes all of a head.
  template <bf16_panels::Unit U, int Depth>
  void run_head(std::int64_t head, std::byte* memory) const {
    for (std::int64_t block = 0; block < layout.key_blocks; ++block) pack_keys(head, block);
    for (std::int64_t block = 0; block < layout.row_blocks; ++block) {
      if (pack_queries(head, block)) settle_shifts<U, Depth>(head, block, memory);
    }
    for (std::int64_t chunk = 0; chunk < layout.chunks; ++chunk) {
      run_chunk<U, Depth>(head, chunk, memory);
    }
    for (std::int64_t block = 0; block < layout.row_blocks; ++block) sum_queries(head, block);
  }

  /// RowShift of the steep rows of a block: largest score and sum, online, over its keys.
  template <bf16_panels::Unit U, int Depth>
  void settle_shifts(std::int64_t head, std::int64_t block, std::byte* memory) const {
    const std::int64_t b = head / kv_heads;
    const PackedRows packed = packed_rows(head, block);
    const int count = count_of(block);
    const bf16* q_panels = of_queries(operands.q_transposed, head, block);
    float* products = Scratch(memory, layout).scores;
    const __m512 factor = _mm512_set1_ps(block_scores.unit().factor);
    alignas(64) float largest[bf16_panels::block];
    alignas(64) float sum[bf16_panels::block];
    std::fill_n(largest, bf16_panels::block, tile::lowest_score);
    std::fill_n(sum, bf16_panels::block, 0.0F);
    [[maybe_unused]] const typename U::Session session;
    const Mask mask = scores.masks.of(b, head % kv_heads);
    LiveKeys<std::int64_t> blocks(mask, packed.query(0), packed.query(count - 1),
                                  bf16_panels::block);
    for (; blocks.valid(); blocks.next()) {
      const bf16* k_panels = of_keys(operands.k_rows, head, blocks.key() / bf16_panels::block);
      U::template product_2x2<Depth>(
          [&](int d) { return k_panels + d * 2 * bf16_panels::panel_elements; },
          [&](int d) { return q_panels + d * 2 * bf16_panels::panel_elements; }, Depth, false,
          products, bf16_panels::nothing);
      block_scores.adjust({products, count, blocks.columns()}, blocks.state(), b, packed,
                          blocks.key());
      for (int t = 0; t < 2; ++t) {
        const float* of_panel = products + t * 2 * bf16_panels::panel_floats;
        const __m512 before = _mm512_load_ps(largest + t * 16);
        __m512 above = before;
        for (int j = 0; j < bf16_panels::block; ++j) {
          above = _mm512_max_ps(above, _mm512_load_ps(of_panel + j * 16));
        }
        const auto power = [&](__m512 score) {
          return tile::exp2_of_16_bits(_mm512_mul_ps(_mm512_sub_ps(score, above), factor));
        };
        __m512 total = _mm512_mul_ps(_mm512_load_ps(sum + t * 16), power(before));
        for (int j = 0; j < bf16_panels::block; ++j) {
          total = _mm512_add_ps(total, power(_mm512_load_ps(of_panel + j * 16)));
        }
        _mm512_store_ps(largest + t * 16, above);
        _mm512_store_ps(sum + t * 16, total);
      }
    }
    const BlockRows at(packed, count);
    for (int r = 0; r < count; ++r) {
      const float row_lse = lse(b, at.head[r], at.query[r]);
      if (!RowShift::is_steep(row_lse)) continue;
      set_shift(head, block, r,
                RowShift::of_steep(row_lse, block_scores.unit(), largest[r], sum[r]));
    }
  }

  template <bf16_panels::Unit U, int Depth>
  void run_chunk(std::int64_t head, std::int64_t chunk, std::byte* memory) const {
    const Scratch at(memory, layout);
    const std::int64_t begin = layout.key_groups * chunk / layout.chunks;
    const std::int64_t end = layout.key_groups * (chunk + 1) / layout.chunks;
    // Sums begin with their first products.
    if (begin == end) clear(dq_part(head, chunk, 0), layout.row_blocks * Depth);
    [[maybe_unused]] const typename U::Session session;
    for (std::int64_t keys = begin; keys < end; ++keys) {
      const std::int64_t first_key = keys * layout.key_group;
      const auto key_blocks =
          static_cast<int>(std::min<std::int64_t>(layout.key_group, layout.key_blocks - first_key));
      if (layout.row_blocks == 0) {
        clear(at.dk, key_blocks * Depth);
        clear(at.dv, key_blocks * Depth);
      }
      for (std::int64_t row = 0; row < layout.row_blocks; row += layout.query_group) {
        const auto row_blocks =
            static_cast<int>(std::min<std::int64_t>(layout.query_group, layout.row_blocks - row));
        meet<U, Depth>(at, head, chunk, first_key, key_blocks, row, row_blocks, keys == begin);
      }
      for (int n = 0; n < key_blocks; ++n) write_keys<Depth>(at, head, first_key + n, n);
    }
  }

  /// One group of keys and one group of queries.
  template <bf16_panels::Unit U, int Depth>
  void meet(const Scratch& at, std::int64_t head, std::int64_t chunk, std::int64_t first_key,
            int key_blocks, std::int64_t first_row, int row_blocks, bool first_keys) const {
    const std::int64_t b = head / kv_heads;
    const Mask mask = scores.masks.of(b, head % kv_heads);
    const auto slot = [&](int key_block, int query_block) {
      return static_cast<std::ptrdiff_t>(key_block * layout.query_group + query_block) * 2 *
             bf16_panels::panel_elements;
    };
    std::array<std::array<int, largest_group>, largest_group> rows_of_key{};
    std::array<std::array<int, largest_group>, largest_group> keys_of_row{};
    std::array<int, largest_group> row_counts{};
    std::array<int, largest_group> key_counts{};
    Pair before;
    bool pending = false;
    int parity = 0;
    const auto gradients = [&]() {
      const std::int64_t row = first_row + before.query_block;
      float* products = at.scores + parity * 4 * bf16_panels::panel_floats;
      float* dp = at.dp + parity * 4 * bf16_panels::panel_floats;
      const float* shift = of_rows(operands.shift, head, row);
      const float* low = of_rows(operands.low, head, row);
      const float* delta = of_rows(operands.delta, head, row);
      const std::int64_t key = (first_key + before.key_block) * bf16_panels::block;
      const ScoreTile pair{products, count_of(row), before.columns};
      const PackedRows packed = packed_rows(head, row);
      const bool sloped = block_scores.sloped();
      const float factor =
          sloped ? block_scores.differentiate(pair, dp, delta, before.state, b, packed, key)
                 : block_scores.adjust(pair, before.state, b, packed, key);
      const std::ptrdiff_t to = slot(before.key_block, before.query_block);
      const auto delta_of = [&](int t) {
        return sloped ? _mm512_setzero_ps() : _mm512_loadu_ps(delta + t * 16);
      };
      return Gradients{.scores = products,
                       .dp = dp,
                       .p_rows = at.p_rows + to,
                       .ds_rows = at.ds_rows + to,
                       .ds_pairs = at.ds_pairs + to,
                       .scale = _mm512_set1_ps(factor),
                       .shift = {_mm512_loadu_ps(shift), _mm512_loadu_ps(shift + 16)},
                       .low = {_mm512_loadu_ps(low), _mm512_loadu_ps(low + 16)},
                       .delta = {delta_of(0), delta_of(1)}};
    };
    for (int kb = 0; kb < key_blocks; ++kb) {
      const std::int64_t key = (first_key + kb) * bf16_panels::block;
      for (int qb = 0; qb < row_blocks; ++qb) {
        const PackedRows packed = packed_rows(head, first_row + qb);
        const std::int64_t first = packed.query(0);
        const std::int64_t last = packed.query(count_of(first_row + qb) - 1);
        const int columns =
            static_cast<int>(std::min<std::int64_t>(bf16_panels::block, seq_kv - key));
        TileState state = mask.tile(first, last, key, key + columns);
        if (state == TileState::dead) continue;
        if (columns < bf16_panels::block) state = TileState::partial;
        const bf16* k_panels = of_keys(operands.k_rows, head, first_key + kb);
        const bf16* v_panels = of_keys(operands.v_rows, head, first_key + kb);
        const bf16* q_panels = of_queries(operands.q_transposed, head, first_row + qb);
        const bf16* do_panels = of_queries(operands.dout_transposed, head, first_row + qb);
        const auto products = [&](const auto& first_half, const auto& second_half) {
          const int next = parity ^ 1;
          U::template product_2x2<Depth>(
              [&](int d) { return k_panels + d * 2 * bf16_panels::panel_elements; },
              [&](int d) { return q_panels + d * 2 * bf16_panels::panel_elements; }, Depth, false,
              at.scores + next * 4 * bf16_panels::panel_floats, first_half);
          U::template product_2x2<Depth>(
              [&](int d) { return v_panels + d * 2 * bf16_panels::panel_elements; },
              [&](int d) { return do_panels + d * 2 * bf16_panels::panel_elements; }, Depth, false,
              at.dp + next * 4 * bf16_panels::panel_floats, second_half);
        };
        if (pending) {
          const Gradients work = gradients();
          products(Half{work, 0}, Half{work, 1});
        } else {
          products(bf16_panels::nothing, bf16_panels::nothing);
        }
        parity ^= 1;
        pending = true;
        before = {kb, qb, columns, state};
        rows_of_key[kb][row_counts[kb]++] = qb;
        keys_of_row[qb][key_counts[qb]++] = kb;
      }
    }
    if (pending) gradients().share(0, 1);

    for (int kb = 0; kb < key_blocks; ++kb) {
      for (int d = 0; d < Depth; ++d) {
        const std::ptrdiff_t sum =
            static_cast<std::ptrdiff_t>(kb * Depth + d) * 4 * bf16_panels::panel_floats;
        const auto add = [&](const bf16* left, bf16* operand, float* target) {
          accumulate<U>(
              first_row > 0, row_counts[kb],
              [&](int i) { return left + slot(kb, rows_of_key[kb][i]); },
              [&](int i) {
                return of_queries(operand, head, first_row + rows_of_key[kb][i]) +
                       d * 2 * bf16_panels::panel_elements;
              },
              target + sum);
        };
        add(at.p_rows, operands.dout_pairs, at.dv);
        add(at.ds_rows, operands.q_pairs, at.dk);
      }
    }
    for (int qb = 0; qb < row_blocks; ++qb) {
      float* target = dq_part(head, chunk, first_row + qb);
      for (int d = 0; d < Depth; ++d) {
        accumulate<U>(
            !first_keys, key_counts[qb],
            [&](int i) {
              return of_keys(operands.k_columns, head, first_key + keys_of_row[qb][i]) +
                     d * 2 * bf16_panels::panel_elements;
            },
            [&](int i) { return at.ds_pairs + slot(keys_of_row[qb][i], qb); },
            target + d * 4 * bf16_panels::panel_floats);
      }
    }
  }

  /// target = (resume ? target : 0) + A·B.
  template <bf16_panels::Unit U, class A, class B>
  static void accumulate(bool resume, int steps, const A& a, const B& b, float* target) {
    if (steps == 4) {
      U::template product_2x2<4>(a, b, 4, resume, target, bf16_panels::nothing);
    } else if (steps > 0) {
      U::template product_2x2<0>(a, b, steps, resume, target, bf16_panels::nothing);
    } else if (!resume) {
      clear(target, 1);
    }
  }

  /// Sums of 32 × 32, `count` of them.
  static void clear(float* sums, std::int64_t count) {
    std::fill_n(sums, count * 4 * bf16_panels::panel_floats, 0.0F);
  }

  template <int Depth>
  void write_keys(const Scratch& at, std::int64_t head, std::int64_t block, int n) const {
    const std::int64_t first = block * bf16_panels::block;
    const auto write = [&](const float* sums, float factor, const HeadRows<bf16>& target) {
      bf16* rows_of_head = target.row(head / kv_heads, head % kv_heads, 0);
      for (int d = 0; d < Depth * 2 && d * bf16_panels::rows < head_dim; ++d) {
        for (int t = 0; t < 2; ++t) {
          const std::int64_t key = first + t * bf16_panels::rows;
          const int live =
              static_cast<int>(std::clamp<std::int64_t>(seq_kv - key, 0, bf16_panels::rows));
          const float* panel =
              sums + ((n * Depth + d / 2) * 4 + d % 2 * 2 + t) * bf16_panels::panel_floats;
          bf16_panels::HostVec rows[bf16_panels::rows];
          for (int i = 0; i < bf16_panels::rows; ++i) {
            rows[i] = bf16_panels::HostVec(
                tile::load<bf16_panels::HostVec>(panel + i * bf16_panels::rows) *
                bf16_panels::HostVec(factor));
          }
          store_rows(rows, live, head_dim - d * bf16_panels::rows, [&](int i) {
            return rows_of_head + (key + i) * target.stride_seq + d * bf16_panels::rows;
          });
        }
      }
    };
    write(at.dk, scores.scale, dk);
    write(at.dv, 1.0F, dv);
  }

  /// dQ = scale · Σ over chunks, for a block of query rows.
  void sum_queries(std::int64_t head, std::int64_t block) const {
    using Vec = bf16_panels::HostVec;
    const int count = count_of(block);
    const BlockRows places(packed_rows(head, block), count);
    const std::int64_t b = head / kv_heads;
    for (int d = 0; d < layout.depth; ++d) {
      const int first_dim = d * bf16_panels::depth;
      for (int t = 0; t * bf16_panels::rows < count; ++t) {
        const int at = (d * 4 + t * 2) * bf16_panels::panel_floats;
        store_transposed(
            [&](int i) {
              Vec sum(0.0F);
              for (std::int64_t chunk = 0; chunk < layout.chunks; ++chunk) {
                sum =
                    sum + tile::load<Vec>(dq_part(head, chunk, block) + at + i * bf16_panels::rows);
              }
              return Vec(sum * Vec(scores.scale));
            },
            head_dim - first_dim, std::min(bf16_panels::rows, count - t * bf16_panels::rows),
            [&](int i) {
              const int r = t * bf16_panels::rows + i;
              return dq.row(b, places.head[r], places.query[r]) + first_dim;
            });
      }
    }
  }
};

}  // namespace

std::size_t panels_workspace_bytes(const Host& exec, const BackwardArgs& args, Tile tile,
                                   UnitName /*unit*/) {
  const BackwardLayout layout(args, tile, exec.concurrency());
  return PackedOperands(nullptr, layout).bytes +
         static_cast<std::size_t>(exec.concurrency()) *
             thread_slice_bytes(Bf16Backward::Scratch(nullptr, layout).bytes);
}

void run_on_panels(const Host& exec, const BackwardArgs& args, const BlockScores& scores, Tile tile,
                   UnitName unit, Workspace workspace) {
  using Policy =
      Kokkos::RangePolicy<Host, Kokkos::Schedule<Kokkos::Dynamic>, Kokkos::IndexType<std::int64_t>>;
  const BackwardLayout layout(args, tile, exec.concurrency());
  const Bf16Backward backward(args, scores, layout, workspace);
  std::byte* scratch = static_cast<std::byte*>(workspace.data) + backward.operands.bytes;
  const std::size_t bytes = thread_slice_bytes(Bf16Backward::Scratch(nullptr, layout).bytes);
  constexpr const char* label = "katt::attention::flash_backward";
  // Calls run.operator()<U, Depth>(item, slot of the thread, its scratch), one item at a time.
  const auto launch = [&](const char* name, std::int64_t items, const auto& run) {
    visit_unit_and_depth(unit, layout.depth, [&]<class U, int Depth>() {
      Policy policy(exec, 0, items);
      policy.set_chunk_size(1);
      const ThreadSlot<Host> thread;
      Kokkos::parallel_for(name, policy, [run, thread, scratch, bytes](std::int64_t item) {
        const tile::FlushSubnormals flushing;
        const int slot = thread.acquire();
        run.template operator()<U, Depth>(item, slot,
                                          scratch + static_cast<std::size_t>(slot) * bytes);
        thread.release(slot);
      });
    });
  };
  if (layout.by_heads) {
    return launch(label, layout.heads,
                  [backward]<class U, int Depth>(std::int64_t head, int slot, std::byte* memory) {
                    Bf16Backward of_slot = backward;
                    of_slot.first_head = head - slot;
                    of_slot.template run_head<U, Depth>(head, memory);
                  });
  }
  // f(head, block) for `blocks` of every head.
  const auto for_blocks = [&](const char* label, std::int64_t blocks, const auto& f) {
    Kokkos::parallel_for(label, Policy(exec, 0, layout.heads * blocks),
                         [f, blocks](std::int64_t item) { f(item / blocks, item % blocks); });
  };
  for_blocks("katt::attention::backward_pack_keys", layout.key_blocks,
             [backward](std::int64_t head, std::int64_t n) { backward.pack_keys(head, n); });
  launch("katt::attention::backward_pack_queries", layout.heads * layout.row_blocks,
         [backward, blocks = layout.row_blocks]<class U, int Depth>(std::int64_t item, int,
                                                                    std::byte* memory) {
           const std::int64_t head = item / blocks, block = item % blocks;
           if (backward.pack_queries(head, block)) {
             backward.template settle_shifts<U, Depth>(head, block, memory);
           }
         });
  launch(label, layout.heads * layout.chunks,
         [backward, chunks = layout.chunks]<class U, int Depth>(std::int64_t item, int,
                                                                std::byte* memory) {
           backward.template run_chunk<U, Depth>(item / chunks, item % chunks, memory);
         });
  for_blocks("katt::attention::backward_sum_dq", layout.row_blocks,
             [backward](std::int64_t head, std::int64_t n) { backward.sum_queries(head, n); });
}

#endif

}  // namespace katt::attention::impl
