#pragma once

#include <cstdint>
#include <string>

#include <Kokkos_Core.hpp>

#include "ops/attention/portable/portable.hpp"
#include "ops/attention/portable/tiles.hpp"
#include "ops/attention/problem.hpp"
#include "tile/engines/simd.hpp"
#include "tile/engines/teams.hpp"

/// Flash attention, forward (Dao 2023, FlashAttention-2, arXiv:2307.08691, Algorithm 1): one pass
/// over the keys with an online softmax; no buffer grows with seq_q · seq_kv.
///
///   for every (batch, kv head, tile of query rows), in parallel:
///     for every live tile of keys:
///       S = Q·Kᵀ, mask;  m, l, P from S;  O = O·α + P·V
///     out = O / l,  lse = m + log l
///
/// The query heads that share a K/V head are packed (PackedRows).
namespace katt::attention::impl {

template <class Exec, class T, class Engine, class Rule>
struct FlashForward : ForwardProblem<T, Rule> {
  using ForwardProblem<T, Rule>::ForwardProblem;

  std::int64_t work_items() const { return this->heads() * this->row_tiles(Engine::tile_q); }

  KOKKOS_INLINE_FUNCTION void run(const typename Engine::Team& team, std::int64_t item,
                                  float* scratch) const {
    const QueryTile queries = this->query_tile(item, Engine::tile_q);
    const PackedRows& packed = queries.packed;
    const std::int64_t b = queries.batch;
    const EntryScores<T, Rule> scores = this->scores.of(b, packed.kv_head);
    const ScoreUnit unit = scores.unit();

    Engine engine(team, scratch, this->head_dim);
    engine.load_queries(queries.rows,
                        [&](int r) { return this->q.row(b, packed.head(r), packed.query(r)); });
    const auto rows_of = [&](const HeadRows<const T>& tensor, std::int64_t key, int count) {
      return tile::Rows<T>{tensor.row(b, packed.kv_head, key), tensor.stride_seq, count};
    };
    LiveKeys<std::int64_t> tiles(scores.mask, queries.first(), queries.last(), Engine::tile_kv);
    for (; tiles.valid(); tiles.next()) {
      engine.scores(rows_of(this->k, tiles.key(), tiles.columns()));
      scores.apply(engine, tiles.state(), packed, tiles.key(), tiles.columns());
      engine.softmax(unit.factor);
      engine.accumulate(rows_of(this->v, tiles.key(), tiles.columns()));
    }

    engine.for_each_output([&](int r, float sum, float max, const auto& write) {
      const std::int64_t i = packed.query(r);
      const std::int64_t head = packed.head(r);
      write(this->out.row(b, head, i), sum == 0.0F ? 0.0F : 1.0F / sum);
      if (this->lse) this->lse(b, head, i) = unit.lse(max, sum);
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
  Status status = Status::ok();
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

template <class Exec, class T, class Rule>
void run_flash(const Exec& exec, const ForwardArgs& args, const Rule& rule, Tile tile,
               Workspace workspace) {
  FlashTiles<Exec>::visit(tile, [&]<class Shape>() {
    const FlashForward<Exec, T, FlashEngine<Exec, T, Shape>, Rule> functor(args, rule);
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
  template void katt::attention::impl::run_flash<Exec, T>(                                        \
      const Exec&, const ForwardArgs&, const katt::attention::NoRule&, Tile, Workspace);
