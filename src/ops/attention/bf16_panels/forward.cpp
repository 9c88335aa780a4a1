#include <algorithm>

#include "core/thread_slot.hpp"
#include "core/views.hpp"
#include "ops/attention/bf16_panels/panels.hpp"
#include "ops/attention/bf16_panels/scores.hpp"
#include "ops/attention/tile.hpp"
#include "tile/bf16/bf16_engine.hpp"
#include "tile/vec/flush_subnormals.hpp"

/// Flash attention, forward, on packed bf16 panels (tile/bf16/bf16_units.hpp: AMX, or the dot
/// products of AVX512-BF16). K and V are packed into panels once for each K/V head, all of them
/// before or, with many short heads, each by the thread that computes it; then
///
///   for every (batch, kv head, group of query blocks), in parallel:
///     for every section of keys that fits the second-level cache:
///       for every block of 32 query rows of the group:
///         for every live block of 32 keys of the section:  QueryBlock::push
///     out = Oᵀ / l, transposed;  lse = m + log l
///
/// This is the loop of portable/forward_kernel.hpp with another order: one pass of the tile unit
/// over K and V would need 64 bytes a cycle from the second-level cache. So all blocks of the group
/// use the keys of a section before the next section, and the engine keeps three stages of
/// neighbouring key blocks in flight. Blocks see the keys in the same order for every group and
/// number of threads: the results have the same bits.
namespace katt::attention::impl {

template <>
const std::vector<Tile>& panel_tiles<ForwardArgs>() {
  static const std::vector<Tile> tiles{{512, 128}, {32, 32},   {32, 64},   {32, 128},  {64, 32},
                                       {64, 64},   {64, 128},  {64, 256},  {128, 64},  {128, 128},
                                       {128, 256}, {256, 128}, {256, 256}, {512, 256}, {1024, 128}};
  return tiles;
}

#if defined(KATT_BF16_PANELS)
namespace {

/// Sizes and places of the packed panels and of the scratch.
struct WorkspaceParts {
  int depth;                  ///< 32 dimensions each
  int group;                  ///< key blocks between two additions to the output, a power of 2
  std::int64_t key_blocks;    ///< of 32 keys, up to whole groups
  std::int64_t section;       ///< key blocks of a section, whole groups
  std::int64_t heads;         ///< batch · kv heads
  std::int64_t row_blocks;    ///< of 32 packed query rows
  std::int64_t item_blocks;   ///< row blocks of a work item
  bool by_heads;              ///< a work item is all of a head
  std::int64_t packed_heads;  ///< there is room for

  WorkspaceParts(const ForwardArgs& args, Tile tile, UnitName unit, int threads)
      : depth(bf16_panels::depth_panels(args.head_dim())),
        group(tile.kv / bf16_panels::block),
        key_blocks(divide_up(divide_up(args.seq_kv(), bf16_panels::block), group) * group),
        section(std::max<std::int64_t>(
                    bf16_panels::section_bytes(unit) / (2 * block_bytes()) / group, 1) *
                group),
        heads(args.batch() * args.kv_heads()),
        row_blocks(divide_up(args.seq_q() * (args.heads() / args.kv_heads()), bf16_panels::block)),
        item_blocks(std::clamp<std::int64_t>(
            heads * row_blocks / (items_per_thread * threads), 1,
            std::min<std::int64_t>(tile.q / bf16_panels::block,
                                   std::max<std::int64_t>(row_blocks, 1)))),
        by_heads(goes_by_heads(heads, threads, 2 * key_blocks * block_bytes())),
        packed_heads(by_heads ? threads : heads) {}

  std::int64_t block_elements() const { return depth * 2LL * bf16_panels::panel_elements; }
  std::int64_t block_bytes() const { return depth * 2LL * bf16_panels::panel_bytes; }
  std::int64_t items() const { return divide_up(row_blocks, item_blocks); }

  /// Bytes of all packed K, and of all packed V.
  std::size_t packed_bytes() const {
    return static_cast<std::size_t>(packed_heads * key_blocks * block_bytes());
  }
  /// Scratch of a thread: scores, probabilities, then the states of the row blocks of an item.
  std::size_t probabilities() const { return 8 * bf16_panels::panel_bytes; }
  std::size_t states() const {
    return probabilities() + static_cast<std::size_t>(4 * group) * bf16_panels::panel_bytes;
  }
  std::size_t state_bytes() const { return bf16_panels::state_bytes(depth); }
  std::size_t scratch_bytes() const {
    return states() + static_cast<std::size_t>(item_blocks) * state_bytes();
  }

  /// Panels of K: [depth][key panel 2]. `place` is the head's index among the places in the
  /// workspace.
  std::int64_t k_offset(std::int64_t place, std::int64_t block) const {
    return (place * key_blocks + block) * block_elements();
  }
  /// Panels of V: groups of blocks as [32 dimensions][block of the group][dim panel 2].
  std::int64_t v_offset(std::int64_t place, std::int64_t block) const {
    const std::int64_t in_group = block & (group - 1);
    return (place * key_blocks + block - in_group) * block_elements() +
           in_group * 2 * bf16_panels::panel_elements;
  }
  /// From 32 dimensions of a block of V to the next.
  std::ptrdiff_t v_stride() const { return group * 2 * bf16_panels::panel_elements; }
};

struct Bf16Forward : ForwardProblem<bf16, NoRule> {
  BlockScores block_scores;
  WorkspaceParts layout;
  bf16* packed_k;
  bf16* packed_v;
  std::byte* scratch;
  std::int64_t first_head = 0;  ///< the one whose keys come first

  Bf16Forward(const ForwardArgs& args, const BlockScores& rule, const WorkspaceParts& places,
              Workspace space)
      : ForwardProblem(args, {}), block_scores(rule), layout(places) {
    auto* bytes = static_cast<std::byte*>(space.data);
    packed_k = reinterpret_cast<bf16*>(bytes);
    packed_v = reinterpret_cast<bf16*>(bytes + layout.packed_bytes());
    scratch = bytes + 2 * layout.packed_bytes();
  }

  /// One block of keys.
  void pack(std::int64_t head, std::int64_t block) const {
    const std::int64_t first = block * bf16_panels::block;
    const int live = live_keys(*this, head, first);
    bf16* to_k = packed_k + layout.k_offset(head - first_head, block);
    bf16* to_v = packed_v + layout.v_offset(head - first_head, block);
    const auto row = [&](const HeadRows<const bf16>& tensor) {
      return live > 0 ? tensor.row(head / kv_heads, head % kv_heads, first) : nullptr;
    };
    bf16_panels::pack_row_block(row(k), k.stride_seq, live, head_dim, to_k);
    const bf16* source = row(v);
    for (int d = 0; d < layout.depth; ++d) {
      const int first_dim = d * bf16_panels::depth;
      bf16_panels::pack_columns(live > 0 ? source + first_dim : nullptr, v.stride_seq, live,
                                head_dim - first_dim, 2, to_v + d * layout.v_stride());
    }
  }

  /// All of a head, by one thread.
  template <bf16_panels::Unit U, int Depth>
  void attend_head(std::int64_t head, std::byte* buffers) const {
    for (std::int64_t block = 0; block < layout.key_blocks; ++block) pack(head, block);
    for (std::int64_t item = 0; item < layout.items(); ++item)
      attend<U, Depth>(head, item, buffers);
  }

  /// A group of query blocks.
  template <bf16_panels::Unit U, int Depth>
  void attend(std::int64_t head, std::int64_t item, std::byte* buffers) const {
    using Block = bf16_panels::QueryBlock<U, Depth>;
    const std::int64_t first_block = (layout.items() - 1 - item) * layout.item_blocks;
    const std::int64_t b = head / kv_heads;
    const std::int64_t kv_head = head % kv_heads;
    const Mask mask = scores.masks.of(b, kv_head);
    const std::int64_t blocks = std::min(layout.item_blocks, layout.row_blocks - first_block);

    const typename Block::Buffers shared{reinterpret_cast<float*>(buffers),
                                         reinterpret_cast<bf16*>(buffers + layout.probabilities())};
    const auto state_of = [&](std::int64_t n) {
      return typename Block::State(buffers + layout.states() +
                                   static_cast<std::size_t>(n) * layout.state_bytes());
    };
    const auto packed_of = [&](std::int64_t n) {
      return PackedRows{kv_head, group, (first_block + n) * bf16_panels::block};
    };
    const auto count_of = [&](std::int64_t n) {
      return static_cast<int>(std::min<std::int64_t>(
          bf16_panels::block, rows - (first_block + n) * bf16_panels::block));
    };

    [[maybe_unused]] const typename U::Session session;
    for (std::int64_t n = 0; n < blocks; ++n)
      load_queries(state_of(n), packed_of(n), count_of(n), b);

    const std::int64_t first_query = packed_of(0).query(0);
    const std::int64_t last_query = packed_of(blocks - 1).query(count_of(blocks - 1) - 1);
    const KeyRange live = mask.live(first_query, last_query);
    const std::int64_t section_keys = layout.section * bf16_panels::block;
    for (std::int64_t section = live.begin / section_keys * section_keys; section < live.end;
         section += section_keys) {
      for (std::int64_t n = 0; n < blocks; ++n) {
        const std::int64_t section_end = std::min(section + section_keys, live.end);
        meet(Block(state_of(n), shared, layout.group), mask, b, head, packed_of(n), count_of(n),
             section, section_end);
      }
    }
    for (std::int64_t n = 0; n < blocks; ++n) {
      write_output<Depth>(state_of(n), packed_of(n), count_of(n), b);
    }
  }

  /// One block of queries and the keys [begin, end).
  template <class Block>
  void meet(Block block, const Mask& mask, std::int64_t b, std::int64_t head,
            const PackedRows& packed, int count, std::int64_t begin, std::int64_t end) const {
    struct {
      std::int64_t key = 0;
      int columns = 0;
      TileState state = TileState::full;
    } pending;  // between its scores and its softmax
    const auto adjust = [&](float* products) {
      return block_scores.adjust({products, count, pending.columns}, pending.state, b, packed,
                                 pending.key);
    };
    LiveKeys<std::int64_t> blocks(mask, packed.query(0), packed.query(count - 1),
                                  bf16_panels::block, begin, end);
    while (blocks.valid()) {
      const std::int64_t key = blocks.key();
      const int columns = blocks.columns();
      const TileState state = blocks.state();
      blocks.next();
      const std::int64_t n = key / bf16_panels::block;
      block.push(packed_k + layout.k_offset(head - first_head, n),
                 packed_v + layout.v_offset(head - first_head, n), layout.v_stride(), adjust);
      pending = {key, columns, state};
    }
    block.finish(adjust);
  }

  template <class State>
  void load_queries(const State& state, const PackedRows& packed, int count, std::int64_t b) const {
    const BlockRows at(packed, count);
    for (int d = 0; d < layout.depth; ++d) {
      for (int t = 0; t < 2; ++t) {
        bf16_panels::pack_transposed(
            [&](int i) -> const bf16* {
              const int r = t * bf16_panels::rows + i;
              return r < count ? q.row(b, at.head[r], at.query[r]) + d * bf16_panels::depth
                               : nullptr;
            },
            head_dim - d * bf16_panels::depth, state.q + (d * 2 + t) * bf16_panels::panel_elements);
      }
    }
    state.clear();
  }

  template <int Depth, class State>
  void write_output(const State& state, const PackedRows& packed, int count, std::int64_t b) const {
    using Vec = bf16_panels::HostVec;
    const BlockRows at(packed, count);
    state.complete();
    for (int t = 0; t * bf16_panels::rows < count; ++t) {
      const float* sums = state.sum + t * bf16_panels::rows;
      const auto sum = tile::load<Vec>(sums);
      const Vec inverse =
          Kokkos::Experimental::condition(sum == Vec(0.0F), Vec(0.0F), Vec(1.0F) / sum);
      const int first = t * bf16_panels::rows;
      const int live = std::min(bf16_panels::rows, count - first);
      for (int d = 0; d < Depth; ++d) {
        const float* o = state.o + (d * 4 + t * 2) * bf16_panels::panel_floats;
        const int first_dim = d * bf16_panels::depth;
        store_transposed(
            [&](int i) { return Vec(tile::load<Vec>(o + i * bf16_panels::rows) * inverse); },
            head_dim - first_dim, live,
            [&](int r) { return out.row(b, at.head[first + r], at.query[first + r]) + first_dim; });
      }
      if (!lse) continue;
      for (int r = first; r < first + live; ++r) {
        lse(b, at.head[r], at.query[r]) = block_scores.unit().lse(state.max[r], state.sum[r]);
      }
    }
  }
};

}  // namespace

std::size_t panels_workspace_bytes(const Host& exec, const ForwardArgs& args, Tile tile,
                                   UnitName unit) {
  const WorkspaceParts layout(args, tile, unit, exec.concurrency());
  return 2 * layout.packed_bytes() +
         static_cast<std::size_t>(exec.concurrency()) * thread_slice_bytes(layout.scratch_bytes());
}

void run_on_panels(const Host& exec, const ForwardArgs& args, const BlockScores& scores, Tile tile,
                   UnitName unit, Workspace workspace) {
  using Policy =
      Kokkos::RangePolicy<Host, Kokkos::Schedule<Kokkos::Dynamic>, Kokkos::IndexType<std::int64_t>>;
  const WorkspaceParts layout(args, tile, unit, exec.concurrency());
  const Bf16Forward forward(args, scores, layout, workspace);
  if (!layout.by_heads) {
    Kokkos::parallel_for("katt::attention::flash_pack",
                         Policy(exec, 0, layout.heads * layout.key_blocks),
                         [forward, blocks = layout.key_blocks](std::int64_t item) {
                           forward.pack(item / blocks, item % blocks);
                         });
  }
  visit_unit_and_depth(unit, layout.depth, [&]<class U, int Depth>() {
    Policy policy(exec, 0, layout.by_heads ? layout.heads : layout.heads * layout.items());
    policy.set_chunk_size(1);
    const ThreadSlot<Host> thread;
    Kokkos::parallel_for(
        "katt::attention::flash_forward", policy, [forward, layout, thread](std::int64_t item) {
          const tile::FlushSubnormals flushing;
          const int slot = thread.acquire();
          std::byte* buffers = forward.scratch + static_cast<std::size_t>(slot) *
                                                     thread_slice_bytes(layout.scratch_bytes());
          if (layout.by_heads) {
            Bf16Forward of_slot = forward;
            of_slot.first_head = item - slot;
            of_slot.template attend_head<U, Depth>(item, buffers);
          } else {
            forward.template attend<U, Depth>(item / layout.items(), item % layout.items(),
                                              buffers);
          }
          thread.release(slot);
        });
  });
}

#endif

}  // namespace katt::attention::impl
