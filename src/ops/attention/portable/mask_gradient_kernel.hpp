#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include <Kokkos_Core.hpp>

#include "ops/attention/portable/mask_gradient.hpp"
#include "ops/attention/portable/score_pass.hpp"
#include "tile/engines/teams.hpp"

/// A work item is a tile of the mask, so no two items share an element:
///
///   for every batch entry and K/V head that the tile is broadcast to, in order:
///     S = Q·Kᵀ, dP = dO·Vᵀ;  P = e^(S − lse)
///     dmask += P ∘ (dP − Δ + dlse)
///   write dmask
///
/// Δ of 16-bit tensors comes from a pass of its own (ExactDelta), as large as this one.
///
/// Where the mask has fewer tiles than least_items, several items share the entries and heads of a
/// tile; each has a copy, and copies are summed in order. Their number depends on the shapes alone: two
/// runs give the same bits, for any number of threads. Sums are f32, rounded once to the dtype.
namespace katt::attention::impl {

/// Extents of the pass, and the parts of its workspace.
struct MaskGradientPlan {
  BackwardPlan tiles;
  std::int64_t group;  ///< query heads per K/V head
  bool sums_batches, sums_heads;
  std::int64_t batches, kv_heads;  ///< of the mask: 1 where it is broadcast to all
  std::int64_t row_tiles;
  std::int64_t terms;  ///< pairs of a batch entry and a K/V head that a tile is broadcast to
  std::int64_t parts;  ///< that share them

  explicit MaskGradientPlan(const BackwardArgs& args)
      : tiles(BackwardPlan::of<Host>(args, tile_of(args))),
        group(args.heads() / args.kv_heads()),
        sums_batches(args.dmask.extent[0] == 1),
        sums_heads(args.dmask.extent[1] == 1),
        batches(sums_batches ? 1 : args.batch()),
        kv_heads(sums_heads ? 1 : args.kv_heads()),
        row_tiles((tiles.rows + tiles.tile.q - 1) / tiles.tile.q),
        terms((sums_batches ? args.batch() : 1) * (sums_heads ? args.kv_heads() : 1)),
        parts(key_sections(count(), terms)) {}

  /// Tiles of the mask.
  [[nodiscard]] std::int64_t count() const {
    return batches * kv_heads * row_tiles * tiles.key_tiles;
  }
  /// Rows of a tile of the mask: those of a query are one where heads share the mask.
  [[nodiscard]] int rows() const {
    return sums_heads ? tiles.tile.q / static_cast<int>(group) : tiles.tile.q;
  }
  [[nodiscard]] std::int64_t size() const { return std::int64_t{rows()} * tiles.columns; }
  [[nodiscard]] std::size_t copy_bytes() const {
    return parts == 1 ? 0 : bytes_of(count() * parts * size());
  }
  /// Bytes of a thread: a tile of the backward pass, and one of the mask.
  [[nodiscard]] std::size_t scratch_bytes() const {
    return tiles.scratch_bytes() + (parts == 1 ? bytes_of(size()) : 0);
  }

 private:
  /// All heads of a query are in one tile.
  static Tile tile_of(const BackwardArgs& args) {
    constexpr int rows = 64;
    const auto heads = static_cast<int>(args.heads() / args.kv_heads());
    return {heads * std::max(1, rows / heads), 64};
  }
  static std::size_t bytes_of(std::int64_t floats) {
    return (static_cast<std::size_t>(floats) * sizeof(float) + 127) / 128 * 128;
  }
};

template <class T, class Rule>
struct MaskGradient : ScorePass<T, Rule> {
  using Base = ScorePass<T, Rule>;
  using typename Base::Keys;
  using typename Base::Team;
  using typename Base::Vec;
  static constexpr int lanes = Base::lanes;

  MaskGradientPlan extents;
  HeadRows<T> dmask;
  float* copies;  ///< count × parts × size

  MaskGradient(const FlashBackward<Host, T, Rule>& base, const MaskGradientPlan& plan,
               const BackwardArgs& args, float* memory)
      : Base{base}, extents(plan), dmask(args.dmask), copies(memory) {}

  /// Item: a part of a tile.
  void run(const Team& team, std::int64_t index, float* memory) const {
    const std::int64_t parts = extents.parts;
    const std::int64_t part = index % parts;
    const BackwardPlan& plan = this->plan;
    const BackwardScratch at = plan.scratch(memory);
    float* const sum = parts == 1 ? memory + at.size : copies + index * extents.size();
    std::fill_n(sum, extents.size(), 0.0F);
    const Place place = place_of(index / parts);
    const std::int64_t end = extents.terms * (part + 1) / parts;
    for (std::int64_t n = extents.terms * part / parts; n < end; ++n) {
      const std::int64_t heads = extents.sums_heads ? this->kv_heads : 1;
      const std::int64_t batch = extents.sums_batches ? n / heads : place.batch;
      const std::int64_t head = extents.sums_heads ? n % heads : place.kv_head;
      const std::int64_t row = (batch * this->kv_heads + head) * extents.row_tiles + place.row_tile;
      add(team, at, this->query_tile(row, plan.tile.q), place.key, sum);
    }
    if (parts == 1) write(place, sum);
  }

  /// Sums the copies of a tile.
  void operator()(std::int64_t item) const {
    float* const sum = copies + item * extents.parts * extents.size();
    for (std::int64_t part = 1; part < extents.parts; ++part) {
      const float* const other = sum + part * extents.size();
      for (std::int64_t i = 0; i < extents.size(); ++i) sum[i] += other[i];
    }
    write(place_of(item), sum);
  }

 private:
  /// The place of a tile of the mask.
  struct Place {
    std::int64_t batch, kv_head, row_tile, key;
  };
  [[nodiscard]] Place place_of(std::int64_t item) const {
    const std::int64_t key_tile = item % this->plan.key_tiles;
    item /= this->plan.key_tiles;
    const std::int64_t head = item / extents.row_tiles;
    return {head / extents.kv_heads, head % extents.kv_heads, item % extents.row_tiles,
            key_tile * this->plan.tile.kv};
  }

  /// Adds the gradients of the scores of a tile of query rows and of the keys from `key` on.
  void add(const Team& team, const BackwardScratch& at, const QueryTile& tile, std::int64_t key,
           float* sum) const {
    const BackwardPlan& plan = this->plan;
    const PackedRows& packed = tile.packed;
    const auto scores = this->scores.of(tile.batch, packed.kv_head);
    const Keys keys(scores.mask, tile.first(), tile.last(), plan.tile.kv, key, key + plan.tile.kv);
    if (!keys.valid() || keys.key() != key) return;  // behind the key length, or dead
    this->stage_queries(team, at, tile.batch, packed, tile.rows);
    const std::int64_t first_row = this->first_row(tile);
    this->for_each_row(team, at, tile, scores, keys, nullptr,
                       [&](int r, const float* s, const float* dp, const auto& columns) {
                         float* const to =
                             sum + (extents.sums_heads ? r / extents.group : r) * plan.columns;
                         this->for_each_gradient(
                             s, dp, columns, scores, first_row + r, this->delta[first_row + r],
                             [&](int j, auto, const Vec& ds) {
                               tile::store(to + j, Vec(tile::load<Vec>(to + j) + ds));
                             },
                             [](int) {});
                       });
  }

  void write(const Place& place, const float* sum) const {
    const QueryTile tile =
        this->query_tile(place.kv_head * extents.row_tiles + place.row_tile, this->plan.tile.q);
    const std::int64_t group = extents.sums_heads ? extents.group : 1;
    const auto columns =
        static_cast<int>(std::min<std::int64_t>(this->plan.tile.kv, this->seq_kv - place.key));
    for (int r = 0; r < tile.rows; r += static_cast<int>(group)) {
      const std::int64_t head = extents.sums_heads ? 0 : tile.packed.head(r);
      T* const to = dmask.row(place.batch, head, tile.packed.query(r)) + place.key;
      const float* const from = sum + r / group * this->plan.columns;
      for (int j = 0; j < columns; j += lanes) {
        const Vec value = tile::load<Vec>(from + j);
        if (columns - j >= lanes) {
          tile::store(to + j, value);
        } else {
          tile::store(to + j, value, tile::PartialVector{columns - j});
        }
      }
    }
  }
};

template <class T, class Rule>
void run_mask_gradient(const Host& exec, const BackwardArgs& args, const Rule& rule,
                       Workspace workspace) {
  const MaskGradientPlan plan(args);
  const BackwardPlan& tiles = plan.tiles;
  auto* const base = static_cast<std::byte*>(workspace.data);
  std::byte* const copies = base + tiles.delta_bytes() + tiles.shift_bytes();
  std::byte* const scratch = copies + plan.copy_bytes();
  using Functor = FlashBackward<Host, T, Rule>;
  using Items = Kokkos::RangePolicy<Host, Kokkos::IndexType<std::int64_t>>;
  const Functor functor(args, rule, tiles, base);
  find_row_terms(exec, functor, plan.scratch_bytes(), scratch);
  const MaskGradient<T, Rule> pass(functor, plan, args, reinterpret_cast<float*>(copies));
  tile::launch_teams(exec, "katt::attention::mask_gradient", plan.count() * plan.parts,
                     plan.scratch_bytes(), scratch, pass);
  if (plan.parts == 1) return;
  Kokkos::parallel_for("katt::attention::mask_gradient_sum", Items(exec, 0, plan.count()), pass);
}

}  // namespace katt::attention::impl
