#pragma once

#include <cstdint>
#include <string>

#include <Kokkos_Core.hpp>

#include "core/views.hpp"
#include "ops/attention/portable/forward.hpp"
#include "ops/attention/scores.hpp"
#include "ops/attention/tiles.hpp"
#include "tile/simd.hpp"
#include "tile/teams.hpp"

/// Flash attention, forward (Dao 2023, FlashAttention-2, arXiv:2307.08691, Algorithm 1): one pass
/// over the keys with an online softmax; no buffer grows with seq_q · seq_kv.
///
///   for every (batch, kv head, tile of query rows), in parallel:
///     for every live tile of keys:
///       S = Q·Kᵀ, mask;  m, l, P from S;  O = O·α + P·V
///     out = O / l,  lse = (m + log2 l) · ln 2
///
/// The query heads that share a K/V head are packed: row r of a tile is query r / group of head
/// kv_head · group + r mod group, so that few queries and many heads (decoding) still fill a tile.
namespace katt::attention::impl {

template <class Exec, class T, class Engine>
struct FlashForward {
  using Memory = typename Exec::memory_space;

  StridedView<const T, 4, Memory> q, k, v;
  StridedView<T, 4, Memory> out;
  StridedView<float, 3, Memory> lse;
  Masks masks;
  Bias<T> bias;
  float scale;
  float softcap;
  std::int64_t group;      ///< query heads per K/V head
  std::int64_t rows;       ///< packed query rows per K/V head
  std::int64_t row_tiles;  ///< tiles of packed rows per K/V head

  explicit FlashForward(const ForwardArgs& args)
      : q(args.q.view<T, Memory>()),
        k(args.k.view<T, Memory>()),
        v(args.v.view<T, Memory>()),
        out(args.out.view<T, Memory>()),
        lse(args.lse.view<float, Memory>()),
        masks(args),
        bias(args.mask.bias),
        scale(args.scale),
        softcap(args.mask.softcap),
        group(args.heads() / args.kv_heads()),
        rows(args.seq_q() * group),
        row_tiles((rows + Engine::tile_q - 1) / Engine::tile_q) {}

  /// Work items: head-major, so that the threads share a head's keys in cache; within a head from
  /// the last row tile, which sees the most keys under a causal mask, to the first.
  std::int64_t work_items() const {
    return static_cast<std::int64_t>(q.extent(0) * k.extent(1)) * row_tiles;
  }

  KOKKOS_INLINE_FUNCTION void run(const typename Engine::Team& team, std::int64_t item,
                                  float* scratch) const {
    const std::int64_t row_begin = (row_tiles - 1 - item % row_tiles) * Engine::tile_q;
    const std::int64_t kv_heads = static_cast<std::int64_t>(k.extent(1));
    const std::int64_t kv_head = item / row_tiles % kv_heads;
    const std::int64_t b = item / row_tiles / kv_heads;
    const int row_count =
        static_cast<int>(Kokkos::min<std::int64_t>(Engine::tile_q, rows - row_begin));
    const PackedRows packed{kv_head, group, row_begin};
    const std::int64_t first = packed.query(0);
    const std::int64_t last = packed.query(row_count - 1);
    const ScoreRule<T> rule{masks.of(b), bias, softcap, scale};
    const Mask& mask = rule.mask;

    Engine engine(team, scratch, static_cast<int>(q.extent(3)));
    engine.load_queries(row_count,
                        [&](int r) { return &q(b, packed.head(r), packed.query(r), 0); });
    const float factor = rule.factor();

    const KeyRange live = mask.live(first, last);
    for (std::int64_t key = live.begin / Engine::tile_kv * Engine::tile_kv; key < live.end;
         key += Engine::tile_kv) {
      const std::int64_t key_end = Kokkos::min<std::int64_t>(key + Engine::tile_kv, live.end);
      const TileState state = mask.tile(first, last, key, key_end);
      if (state == TileState::dead) continue;
      const int columns = static_cast<int>(key_end - key);
      engine.scores({&k(b, kv_head, key, 0), static_cast<std::int64_t>(k.stride(2)), columns});
      rule.apply(engine, state, b, packed, key, columns);
      engine.softmax(factor);
      engine.accumulate({&v(b, kv_head, key, 0), static_cast<std::int64_t>(v.stride(2)), columns});
    }

    engine.for_each_output([&](int r, float sum, float max, const auto& write) {
      const std::int64_t i = packed.query(r);
      write(&out(b, packed.head(r), i, 0), sum == 0.0F ? 0.0F : 1.0F / sum);
      if (lse.data() != nullptr) {
        lse(b, packed.head(r), i) =
            sum == 0.0F ? -Kokkos::Experimental::infinity_v<float> : natural_lse(max, sum);
      }
    });
  }
};

template <class Exec, class T, class Shape>
using FlashEngine = tile::SimdEngine<Exec, T, Shape::q, Shape::kv>;

template <class Exec, class T, class Shape>
std::size_t flash_scratch_bytes(const ForwardArgs& args) {
  const std::size_t bytes =
      FlashEngine<Exec, T, Shape>::scratch_bytes(static_cast<int>(args.head_dim()));
  return (bytes + 127) / 128 * 128;
}

template <class Exec, class T>
Status flash_supports(const Exec& exec, const ForwardArgs& args, Tile tile) {
  Status status = Status::skipped("tile " + names({tile}) + " is not built for " +
                                  std::string(name_of(backend_of<Exec>())) +
                                  "; built: " + names(FlashTiles<Exec>::all()));
  FlashTiles<Exec>::visit(tile, [&]<class Shape>() {
    status = tile::teams_support(
        exec, flash_scratch_bytes<Exec, T, Shape>(args),
        "tile " + names({tile}) + " at head_dim " + std::to_string(args.head_dim()));
  });
  return status;
}

template <class Exec, class T>
std::size_t flash_workspace_bytes(const Exec& exec, const ForwardArgs& args, Tile tile) {
  std::size_t bytes = 0;
  FlashTiles<Exec>::visit(tile, [&]<class Shape>() {
    bytes = tile::team_workspace_bytes(exec, flash_scratch_bytes<Exec, T, Shape>(args));
  });
  return bytes;
}

template <class Exec, class T>
void flash_forward(const Exec& exec, const ForwardArgs& args, Tile tile, Workspace workspace) {
  FlashTiles<Exec>::visit(tile, [&]<class Shape>() {
    const FlashForward<Exec, T, FlashEngine<Exec, T, Shape>> functor(args);
    tile::launch_teams(exec, "katt::attention::flash_forward", functor.work_items(),
                       flash_scratch_bytes<Exec, T, Shape>(args),
                       static_cast<std::byte*>(workspace.data), functor);
  });
}

}  // namespace katt::attention::impl

/// Defines the flash variant of element type T for an execution space.
#define KATT_INSTANTIATE_FLASH(Exec, T)                                                           \
  template katt::Status katt::attention::impl::flash_supports<Exec, T>(const Exec&,               \
                                                                       const ForwardArgs&, Tile); \
  template std::size_t katt::attention::impl::flash_workspace_bytes<Exec, T>(                     \
      const Exec&, const ForwardArgs&, Tile);                                                     \
  template void katt::attention::impl::flash_forward<Exec, T>(const Exec&, const ForwardArgs&,    \
                                                              Tile, Workspace);
