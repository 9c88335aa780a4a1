#include "ops/attention/bf16_panels/forward.hpp"

#include <algorithm>

#include "core/thread_slot.hpp"
#include "core/views.hpp"
#include "ops/attention/bf16_panels/scores.hpp"
#include "ops/attention/tiles.hpp"
#include "tile/bf16_engine.hpp"

/// Flash attention, forward, on packed bf16 panels (tile/bf16_units.hpp: AMX, or the dot
/// products of AVX512-BF16). K and V are packed into panels once for each K/V head;
/// then
///
///   for every (batch, kv head, group of query blocks), in parallel:
///     for every section of keys that fits the second-level cache:
///       for every block of 32 query rows of the group:
///         for every live block of 32 keys of the section:  QueryBlock::push
///     out = Oᵀ / l, transposed;  lse = (m + log2 l) · ln 2
///
/// This is the loop of portable/forward_kernel.hpp with another order: one pass of the tile unit
/// over K and V would ask the second-level cache for 64 bytes a cycle, so the keys of a section are
/// met by all blocks of the group before the next section, and the engine holds three stages of
/// neighbouring key blocks in flight. Blocks see the keys in the same order whatever the group and
/// the number of threads: the results have the same bits.
namespace katt::attention::impl {

const std::vector<Tile>& bf16_tile_list() {
  static const std::vector<Tile> tiles{{512, 128}, {32, 32},   {32, 64},   {32, 128},  {64, 32},
                                       {64, 64},   {64, 128},  {64, 256},  {128, 64},  {128, 128},
                                       {128, 256}, {256, 128}, {256, 256}, {512, 256}, {1024, 128}};
  return tiles;
}

Status flash_bf16_supports(const ForwardArgs& /*args*/, Tile tile) {
  const auto& tiles = bf16_tile_list();
  if (std::find(tiles.begin(), tiles.end(), tile) != tiles.end()) return Status::ok();
  return Status::skipped("tile " + names({tile}) +
                         " is not built for bf16 on tiles; built: " + names(tiles));
}

#if defined(KATT_BF16_PANELS)
namespace {

/// Work items that a thread should have at least, so that all end together.
constexpr std::int64_t items_per_thread = 4;

/// Sizes and places of the packed panels and of the scratch.
struct Layout {
  int depth;                 ///< 32 dimensions each
  int group;                 ///< key blocks between two additions to the output
  std::int64_t key_blocks;   ///< of 32 keys, up to whole groups
  std::int64_t section;      ///< key blocks of a section, whole groups
  std::int64_t heads;        ///< batch · kv heads
  std::int64_t row_blocks;   ///< of 32 packed query rows
  std::int64_t item_blocks;  ///< row blocks of a work item

  Layout(const ForwardArgs& args, Tile tile, int threads)
      : depth(bf16_panels::depth_panels(args.head_dim())),
        group(tile.kv / bf16_panels::block),
        key_blocks(divide_up(divide_up(args.seq_kv(), bf16_panels::block), group) * group),
        section(
            std::max<std::int64_t>(bf16_panels::section_bytes() / (2 * block_bytes()) / group, 1) *
            group),
        heads(args.batch() * args.kv_heads()),
        row_blocks(divide_up(args.seq_q() * (args.heads() / args.kv_heads()), bf16_panels::block)),
        item_blocks(std::clamp<std::int64_t>(
            heads * row_blocks / (items_per_thread * threads), 1,
            std::min<std::int64_t>(tile.q / bf16_panels::block,
                                   std::max<std::int64_t>(row_blocks, 1)))) {}

  std::int64_t block_elements() const { return depth * 2LL * bf16_panels::panel_elements; }
  std::int64_t block_bytes() const { return depth * 2LL * bf16_panels::panel_bytes; }
  std::int64_t items() const { return divide_up(row_blocks, item_blocks); }

  /// Bytes of all packed K, and of all packed V.
  std::size_t packed_bytes() const {
    return static_cast<std::size_t>(heads * key_blocks * block_bytes());
  }
  std::size_t scratch_bytes() const {
    const std::size_t state = static_cast<std::size_t>(depth) * (2 + 4) * bf16_panels::panel_bytes +
                              2 * bf16_panels::block * sizeof(float);
    return static_cast<std::size_t>(8 + 4 * group) * bf16_panels::panel_bytes +
           static_cast<std::size_t>(item_blocks) * state;
  }

  /// Panels of K: [depth][key panel 2].
  std::int64_t k_offset(std::int64_t head, std::int64_t block) const {
    return (head * key_blocks + block) * block_elements();
  }
  /// Panels of V: groups of blocks as [32 dimensions][block of the group][dim panel 2].
  std::int64_t v_offset(std::int64_t head, std::int64_t block) const {
    return (head * key_blocks + block / group * group) * block_elements() +
           block % group * 2 * bf16_panels::panel_elements;
  }
  /// From 32 dimensions of a block of V to the next.
  std::ptrdiff_t v_stride() const { return group * 2 * bf16_panels::panel_elements; }
};

struct Bf16Forward {
  StridedView<const bf16, 4, Kokkos::HostSpace> q, k, v;
  StridedView<bf16, 4, Kokkos::HostSpace> out;
  StridedView<float, 3, Kokkos::HostSpace> lse;
  Masks masks;
  Bias<bf16> bias;
  float scale;
  float softcap;
  std::int64_t group;  ///< query heads per K/V head
  std::int64_t rows;   ///< packed query rows per K/V head
  Layout layout;
  bf16* packed_k;
  bf16* packed_v;
  std::byte* scratch;

  Bf16Forward(const ForwardArgs& args, const Layout& places, Workspace space)
      : q(args.q.view<bf16, Kokkos::HostSpace>()),
        k(args.k.view<bf16, Kokkos::HostSpace>()),
        v(args.v.view<bf16, Kokkos::HostSpace>()),
        out(args.out.view<bf16, Kokkos::HostSpace>()),
        lse(args.lse.view<float, Kokkos::HostSpace>()),
        masks(args),
        bias(args.mask.bias),
        scale(args.scale),
        softcap(args.mask.softcap),
        group(args.heads() / args.kv_heads()),
        rows(args.seq_q() * group),
        layout(places) {
    auto* bytes = static_cast<std::byte*>(space.data);
    packed_k = reinterpret_cast<bf16*>(bytes);
    packed_v = reinterpret_cast<bf16*>(bytes + layout.packed_bytes());
    scratch = bytes + 2 * layout.packed_bytes();
  }

  /// One block of keys of one K/V head.
  void pack(std::int64_t item) const {
    const std::int64_t block = item % layout.key_blocks;
    const std::int64_t head = item / layout.key_blocks;
    const auto kv_heads = static_cast<std::int64_t>(k.extent(1));
    const std::int64_t first = block * bf16_panels::block;
    const int live = static_cast<int>(std::clamp<std::int64_t>(
        static_cast<std::int64_t>(k.extent(2)) - first, 0, bf16_panels::block));
    const int head_dim = static_cast<int>(k.extent(3));
    bf16* to_k = packed_k + layout.k_offset(head, block);
    bf16* to_v = packed_v + layout.v_offset(head, block);
    const auto row = [&](const auto& view) {
      return live > 0 ? &view(head / kv_heads, head % kv_heads, first, 0) : nullptr;
    };
    bf16_panels::pack_row_block(row(k), static_cast<std::int64_t>(k.stride(2)), live, head_dim,
                                to_k);
    const bf16* source = row(v);
    for (int d = 0; d < layout.depth * 2; ++d) {
      const bool beyond = source == nullptr || d * bf16_panels::rows >= head_dim;
      bf16_panels::pack_columns(
          beyond ? nullptr : source + d * bf16_panels::rows, static_cast<std::int64_t>(v.stride(2)),
          beyond ? 0 : live, head_dim - d * bf16_panels::rows,
          to_v + d / 2 * layout.v_stride() + d % 2 * bf16_panels::panel_elements);
    }
  }

  /// A key block between its scores and its softmax.
  struct Pending {
    std::int64_t key = 0;
    int columns = 0;
    TileState state = TileState::full;
  };

  template <bf16_panels::Unit U, int Depth>
  void attend(std::int64_t item, std::byte* buffers) const {
    using Block = bf16_panels::QueryBlock<U, Depth>;
    const std::int64_t items = layout.items();
    const std::int64_t first_block = (items - 1 - item % items) * layout.item_blocks;
    const std::int64_t head = item / items;
    const auto kv_heads = static_cast<std::int64_t>(k.extent(1));
    const std::int64_t b = head / kv_heads;
    const std::int64_t kv_head = head % kv_heads;
    const ScoreRule<bf16> rule{masks.of(b), bias, softcap, scale};
    const std::int64_t blocks = std::min(layout.item_blocks, layout.row_blocks - first_block);

    const typename Block::Buffers shared{
        reinterpret_cast<float*>(buffers),
        reinterpret_cast<bf16*>(buffers + 8 * bf16_panels::panel_bytes)};
    std::byte* states = buffers + (8 + 4 * layout.group) * bf16_panels::panel_bytes;
    const auto state_of = [&](std::int64_t n) {
      std::byte* at = states + n * Block::state_bytes;
      return typename Block::State(at);
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
    const KeyRange live = rule.mask.live(first_query, last_query);
    const std::int64_t section_keys = layout.section * bf16_panels::block;
    for (std::int64_t section = live.begin / section_keys * section_keys; section < live.end;
         section += section_keys) {
      for (std::int64_t n = 0; n < blocks; ++n) {
        const std::int64_t section_end = std::min(section + section_keys, live.end);
        meet<Depth>(Block(state_of(n), shared, layout.group), rule, b, head, packed_of(n),
                    count_of(n), section, section_end);
      }
    }
    for (std::int64_t n = 0; n < blocks; ++n) {
      write_output<Depth>(state_of(n), packed_of(n), count_of(n), b);
    }
  }

  /// One block of queries and the keys [begin, end).
  template <int Depth, class Block>
  void meet(Block block, const ScoreRule<bf16>& rule, std::int64_t b, std::int64_t head,
            const PackedRows& packed, int count, std::int64_t begin, std::int64_t end) const {
    const std::int64_t first = packed.query(0);
    const std::int64_t last = packed.query(count - 1);
    const KeyRange live = rule.mask.live(first, last);
    Pending pending;
    const auto adjust = [&](float* scores) {
      return adjust_scores({scores, count, pending.columns}, rule, pending.state, b, packed,
                           pending.key);
    };
    const std::int64_t stop = std::min(live.end, end);
    LiveColumns columns_seen(rule.mask.blocks, first, last);
    // The first live block of keys from `key` on, at or behind `stop` where there is none.
    const auto live_block = [&](std::int64_t key) {
      for (; key < stop; key += bf16_panels::block) {
        if (const std::int64_t next = columns_seen.next(key, stop);
            next >= key + bf16_panels::block) {
          key = next / bf16_panels::block * bf16_panels::block;
          if (next >= stop) break;
        }
        const std::int64_t key_end = std::min<std::int64_t>(key + bf16_panels::block, live.end);
        TileState state = rule.mask.interval.tile(first, last, key, key_end);
        if (state != TileState::dead) {
          state = both(state, columns_seen.tile(first, last, key, key_end));
        }
        if (state == TileState::dead) continue;
        const int columns = static_cast<int>(key_end - key);
        if (columns < bf16_panels::block && state == TileState::full) state = TileState::partial;
        return Pending{key, columns, state};
      }
      return Pending{stop, 0, TileState::dead};
    };
    const bool sparse = rule.mask.blocks.blocks != nullptr;
    Pending current =
        live_block(std::max(live.begin / bf16_panels::block * bf16_panels::block, begin));
    while (current.key < stop) {
      const Pending next = live_block(current.key + bf16_panels::block);
      if (sparse && next.key < stop) ask_for<Depth>(head, next.key / bf16_panels::block);
      const std::int64_t n = current.key / bf16_panels::block;
      block.push(packed_k + layout.k_offset(head, n), packed_v + layout.v_offset(head, n),
                 layout.v_stride(), adjust);
      pending = current;
      current = next;
    }
    block.finish(adjust);
  }

  /// Asks for a block of keys, from the second-level cache as the tile unit does: where the mask is
  /// sparse few blocks of queries meet it, and most of them would wait for the last cache.
  template <int Depth>
  void ask_for(std::int64_t head, std::int64_t n) const {
    constexpr int line = 64 / sizeof(bf16);
    const bf16* keys = packed_k + layout.k_offset(head, n);
    const bf16* values = packed_v + layout.v_offset(head, n);
    for (int d = 0; d < Depth; ++d) {
      for (int i = 0; i < 2 * bf16_panels::panel_elements; i += line) {
        _mm_prefetch(keys + d * 2 * bf16_panels::panel_elements + i, _MM_HINT_T1);
        _mm_prefetch(values + d * layout.v_stride() + i, _MM_HINT_T1);
      }
    }
  }

  /// The rows of a block: divided once, not for each tile.
  struct Rows {
    std::int64_t head[bf16_panels::block];
    std::int64_t query[bf16_panels::block];

    Rows(const PackedRows& packed, int count) {
      for (int r = 0; r < count; ++r) {
        head[r] = packed.head(r);
        query[r] = packed.query(r);
      }
    }
  };

  template <class State>
  void load_queries(const State& state, const PackedRows& packed, int count, std::int64_t b) const {
    const int head_dim = static_cast<int>(q.extent(3));
    const Rows at(packed, count);
    for (int d = 0; d < layout.depth; ++d) {
      for (int t = 0; t < 2; ++t) {
        bf16_panels::pack_transposed(
            [&](int i) -> const bf16* {
              const int r = t * bf16_panels::rows + i;
              return r < count ? &q(b, at.head[r], at.query[r], d * bf16_panels::depth) : nullptr;
            },
            head_dim - d * bf16_panels::depth, state.q + (d * 2 + t) * bf16_panels::panel_elements);
      }
    }
    state.clear();
  }

  template <int Depth, class State>
  void write_output(const State& state, const PackedRows& packed, int count, std::int64_t b) const {
    using Vec = bf16_panels::HostVec;
    const int head_dim = static_cast<int>(q.extent(3));
    const Rows at(packed, count);
    for (int t = 0; t * bf16_panels::rows < count; ++t) {
      const float* sums = state.sum + t * bf16_panels::rows;
      const auto sum = tile::load<Vec>(sums);
      const Vec inverse =
          Kokkos::Experimental::condition(sum == Vec(0.0F), Vec(0.0F), Vec(1.0F) / sum);
      const int first = t * bf16_panels::rows;
      const int live = std::min(bf16_panels::rows, count - first);
      for (int d = 0; d < Depth * 2 && d * bf16_panels::rows < head_dim; ++d) {
        const float* o = state.o + (d / 2 * 4 + t * 2 + d % 2) * bf16_panels::panel_floats;
        Vec square[bf16_panels::rows];
        for (int i = 0; i < bf16_panels::rows; ++i) {
          square[i] = Vec(tile::load<Vec>(o + i * bf16_panels::rows) * inverse);
        }
        tile::transpose(square);
        store_rows(square, live, head_dim - d * bf16_panels::rows, [&](int i) {
          return &out(b, at.head[first + i], at.query[first + i], d * bf16_panels::rows);
        });
      }
      if (lse.data() == nullptr) continue;
      for (int r = first; r < first + live; ++r) {
        lse(b, at.head[r], at.query[r]) = state.sum[r] == 0.0F
                                              ? -Kokkos::Experimental::infinity_v<float>
                                              : natural_lse(state.max[r], state.sum[r]);
      }
    }
  }
};

}  // namespace

template <class Exec>
std::size_t flash_bf16_workspace_bytes(const Exec& exec, const ForwardArgs& args, Tile tile) {
  const Layout layout(args, tile, exec.concurrency());
  return 2 * layout.packed_bytes() +
         static_cast<std::size_t>(exec.concurrency()) * layout.scratch_bytes();
}

template <class Exec>
void flash_bf16_forward(const Exec& exec, const ForwardArgs& args, Tile tile, Workspace workspace) {
  using Policy =
      Kokkos::RangePolicy<Exec, Kokkos::Schedule<Kokkos::Dynamic>, Kokkos::IndexType<std::int64_t>>;
  const Layout layout(args, tile, exec.concurrency());
  const Bf16Forward forward(args, layout, workspace);
  Kokkos::parallel_for("katt::attention::flash_pack",
                       Policy(exec, 0, layout.heads * layout.key_blocks),
                       [forward](std::int64_t item) { forward.pack(item); });
  visit_unit_and_depth(layout.depth, [&]<class U, int Depth>() {
    Policy policy(exec, 0, layout.heads * layout.items());
    policy.set_chunk_size(1);
    const ThreadSlot<Exec> thread;
    Kokkos::parallel_for(
        "katt::attention::flash_forward", policy, [forward, thread](std::int64_t item) {
          const int slot = thread.acquire();
          forward.template attend<U, Depth>(
              item,
              forward.scratch + static_cast<std::size_t>(slot) * forward.layout.scratch_bytes());
          thread.release(slot);
        });
  });
}

#else

template <class Exec>
std::size_t flash_bf16_workspace_bytes(const Exec&, const ForwardArgs&, Tile) {
  return 0;
}
template <class Exec>
void flash_bf16_forward(const Exec&, const ForwardArgs&, Tile, Workspace) {
  throw InputError("attention: this build has no unit for bf16 panels");
}

#endif

#define KATT_INSTANTIATE_FLASH_BF16(Exec)                                                       \
  template std::size_t flash_bf16_workspace_bytes<Exec>(const Exec&, const ForwardArgs&, Tile); \
  template void flash_bf16_forward<Exec>(const Exec&, const ForwardArgs&, Tile, Workspace);

KATT_FOR_EACH_EXEC(KATT_INSTANTIATE_FLASH_BF16)

}  // namespace katt::attention::impl
