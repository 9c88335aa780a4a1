#include "ops/attention/captured_gradients.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include <Kokkos_Core.hpp>

#include "core/dtype.hpp"
#include "ops/attention/portable/score_pass.hpp"
#include "tile/engines/teams.hpp"

namespace katt::attention::impl {

namespace {

constexpr Tile captured_tile{64, 64};
/// Parts with copies, as many as the backward pass has, and the bytes that all copies may take.
constexpr std::int64_t most_copies = least_items;
constexpr std::size_t copied_bytes = std::size_t{64} << 20;
/// Gradients up to here have copies even where parts could share a tensor: there are then as many
/// parts for any number of heads.
constexpr std::size_t small_bytes = std::size_t{4} << 20;

constexpr Register batch_input{Level::block, 0};
constexpr Register head_input{Level::row, 0};
constexpr Register query_input{Level::row, 1};

constexpr std::size_t aligned(std::size_t bytes) { return (bytes + 127) / 128 * 128; }

/// How the tiles of query rows are shared out.
struct Parts {
  std::int64_t batches, kv_heads, tiles;  ///< of query rows, of a K/V head
  bool by_batch = false;                  ///< parts without copies: their tiles differ in these
  bool by_head = false;
  bool by_tile = false;
  std::int64_t count = 1;
  bool copied = false;
  std::vector<std::int64_t> sizes{};  ///< elements of the gradient of every tensor; 0: none
  std::int64_t elements = 0;          ///< of all

  Parts(const BackwardArgs& args, const CapturedGradients& captured)
      : batches(args.batch()), kv_heads(args.kv_heads()) {
    const Program& program = *captured.program;
    const std::int64_t group = args.heads() / args.kv_heads();
    tiles = (args.seq_q() * group + captured_tile.q - 1) / captured_tile.q;
    for (std::size_t n = 0; n < captured.tensors.size(); ++n) {
      std::int64_t size = captured.tensors[n] == nullptr ? 0 : 1;
      for (const std::int64_t extent : program.tensors()[n].extent) size *= extent;
      sizes.push_back(size);
      elements += size;
    }
    const std::size_t bytes = static_cast<std::size_t>(elements) * sizeof(float);
    by_batch = program.is_split_by(batch_input);
    by_head = program.is_split_by(head_input);
    // A tile may end between the heads of a query, which is then in two tiles.
    by_tile = program.is_split_by(query_input) && captured_tile.q % group == 0;
    if (bytes <= small_bytes || !(by_batch || by_head || by_tile)) {
      by_batch = by_head = by_tile = false;
      const auto affordable =
          static_cast<std::int64_t>(copied_bytes / std::max<std::size_t>(bytes, 1));
      count = std::clamp<std::int64_t>(std::min(affordable, total_tiles()), 1, most_copies);
      copied = count > 1;
    } else {
      count = (by_batch ? batches : 1) * (by_head ? kv_heads : 1) * (by_tile ? tiles : 1);
    }
  }

  [[nodiscard]] std::int64_t total_tiles() const { return batches * kv_heads * tiles; }
  [[nodiscard]] std::size_t copy_bytes() const {
    return copied ? aligned(static_cast<std::size_t>(count * elements) * sizeof(float)) : 0;
  }

  /// Calls f(batch · kv_heads + kv_head, tile) for the tiles of a part, in order.
  template <class F>
  void for_each_tile(std::int64_t part, const F& f) const {
    if (!by_batch && !by_head && !by_tile) {
      const std::int64_t end = total_tiles() * (part + 1) / count;
      for (std::int64_t n = total_tiles() * part / count; n < end; ++n) f(n / tiles, n % tiles);
      return;
    }
    // The part's place among those of each kind; all of a kind that does not divide them.
    std::array<std::int64_t, 3> begin{};
    std::array<std::int64_t, 3> end{batches, kv_heads, tiles};
    const std::array<bool, 3> divided{by_batch, by_head, by_tile};
    for (std::size_t kind = 3; kind-- > 0;) {
      if (!divided[kind]) continue;
      begin[kind] = part % end[kind];
      part /= end[kind];
      end[kind] = begin[kind] + 1;
    }
    for (std::int64_t b = begin[0]; b < end[0]; ++b) {
      for (std::int64_t h = begin[1]; h < end[1]; ++h) {
        for (std::int64_t t = begin[2]; t < end[2]; ++t) f(b * kv_heads + h, t);
      }
    }
  }
};

template <class T>
struct CapturedPass : ScorePass<T, ProgramRule> {
  using Base = ScorePass<T, ProgramRule>;
  using typename Base::Keys;
  using typename Base::Team;
  using typename Base::Vec;

  const Program* program;
  const Parts* parts;
  float* const* targets;  ///< of every part, a row of tensors

  void run(const Team& team, std::int64_t part, float* memory) const {
    const auto tensors = static_cast<std::int64_t>(parts->sizes.size());
    parts->for_each_tile(part, [&](std::int64_t head, std::int64_t tile) {
      add_tile(team, this->query_tile(head * parts->tiles + tile, captured_tile.q), memory,
               targets + part * tensors);
    });
  }

 private:
  void add_tile(const Team& team, const QueryTile& tile, float* memory, float* const* into) const {
    const BackwardPlan& plan = this->plan;
    const BackwardScratch at = plan.scratch(memory);
    float* const before = memory + at.size;  // the scores before the rule
    const PackedRows& packed = tile.packed;
    const auto scores = this->scores.of(tile.batch, packed.kv_head);
    std::int32_t head[captured_tile.q];
    std::int32_t query[captured_tile.q];
    for (int r = 0; r < tile.rows; ++r) {
      head[r] = static_cast<std::int32_t>(packed.head(r));
      query[r] = static_cast<std::int32_t>(packed.query(r));
    }
    const std::int64_t first_row = this->first_row(tile);
    this->stage_queries(team, at, tile.batch, packed, tile.rows);
    for (Keys keys(scores.mask, tile.first(), tile.last(), plan.tile.kv); keys.valid();
         keys.next()) {
      this->for_each_row(team, at, tile, scores, keys, before,
                         [&](int r, const float* s, float* dp, const auto& columns) {
                           this->apply_steps(before + std::ptrdiff_t{r} * plan.score_stride,
                                             nullptr, 0.0F, scores, head[r], query[r], keys.key());
                           this->for_each_gradient(
                               s, dp, columns, scores, first_row + r, this->delta[first_row + r],
                               [&](int j, auto, const Vec& ds) { tile::store(dp + j, ds); },
                               [&](int j) { tile::store(dp + j, Vec(0.0F)); });
                         });
      const ScoreBlock block{.batch = tile.batch,
                             .rows = tile.rows,
                             .keys = plan.columns,
                             .head = head,
                             .query = query,
                             .key = keys.key(),
                             .last_key = scores.mask.interval.keys - 1,
                             .keys_inner = true,
                             .stride = plan.score_stride,
                             .score = before};
      program->run(block, nullptr, at.dp, into);
    }
  }
};

BackwardPlan plan_of(const BackwardArgs& args) {
  return BackwardPlan::of<Host>(args, captured_tile);
}
std::size_t scratch_bytes(const BackwardPlan& plan) {
  return plan.scratch_bytes() +
         aligned(sizeof(float) * static_cast<std::size_t>(plan.tile.q * plan.score_stride));
}

}  // namespace

std::size_t captured_workspace_bytes(const Host& exec, const BackwardArgs& args,
                                     const CapturedGradients& captured) {
  const BackwardPlan plan = plan_of(args);
  return plan.delta_bytes() + plan.shift_bytes() + Parts(args, captured).copy_bytes() +
         tile::team_workspace_bytes(exec, scratch_bytes(plan));
}

void run_captured_gradients(const Host& exec, const BackwardArgs& args, const ProgramRule& rule,
                            const CapturedGradients& captured, Workspace workspace) {
  const BackwardPlan plan = plan_of(args);
  const Parts parts(args, captured);
  auto* const base = static_cast<std::byte*>(workspace.data);
  auto* const copies = reinterpret_cast<float*>(base + plan.delta_bytes() + plan.shift_bytes());
  std::byte* const scratch = reinterpret_cast<std::byte*>(copies) + parts.copy_bytes();
  using Items = Kokkos::RangePolicy<Host, Kokkos::IndexType<std::int64_t>>;

  const std::size_t tensors = captured.tensors.size();
  std::vector<float*> targets;
  for (std::int64_t part = 0; part < parts.count; ++part) {
    float* next = copies + part * parts.elements;
    for (std::size_t n = 0; n < tensors; ++n) {
      targets.push_back(parts.copied ? next : captured.tensors[n]);
      next += parts.sizes[n];
    }
  }
  for (std::size_t n = 0; n < tensors; ++n) {
    float* const tensor = captured.tensors[n];
    Kokkos::parallel_for("katt::attention::captured_clear", Items(exec, 0, parts.sizes[n]),
                         [=](std::int64_t i) { tensor[i] = 0.0F; });
  }
  if (parts.copied) {
    Kokkos::parallel_for("katt::attention::captured_clear_copies",
                         Items(exec, 0, parts.count * parts.elements),
                         [=](std::int64_t i) { copies[i] = 0.0F; });
  }
  visit_dtype(args.q.dtype, [&]<class T>() {
    using Functor = FlashBackward<Host, T, ProgramRule>;
    const Functor functor(args, rule, plan, base);
    find_row_terms(exec, functor, scratch_bytes(plan), scratch);
    tile::launch_teams(exec, "katt::attention::captured_gradients", parts.count,
                       scratch_bytes(plan), scratch,
                       CapturedPass<T>{{functor}, captured.program, &parts, targets.data()});
  });
  // The parts live until their launches have ended.
  exec.fence("katt::attention::captured_gradients");
  if (!parts.copied) return;
  std::int64_t first = 0;
  for (std::size_t n = 0; n < tensors; ++n) {
    float* const tensor = captured.tensors[n];
    const float* const of_tensor = copies + first;
    Kokkos::parallel_for(
        "katt::attention::captured_sum", Items(exec, 0, parts.sizes[n]),
        [tensor, of_tensor, count = parts.count, elements = parts.elements](std::int64_t i) {
          for (std::int64_t part = 0; part < count; ++part) {
            tensor[i] += of_tensor[part * elements + i];
          }
        });
    first += parts.sizes[n];
  }
}

}  // namespace katt::attention::impl
