#include "ops/attention/portable/backward.hpp"

#include <string>

#include "core/views.hpp"
#include "ops/attention/portable/backward_kernel.hpp"
#include "ops/attention/portable/device_tiles.hpp"
#include "ops/attention/tiles.hpp"

namespace katt::attention::impl {

namespace {

/// Where the parts of the workspace begin, in bytes.
struct Layout {
  std::size_t delta, dq, scratch, total;
  template <class Exec>
  static Layout of(const Exec& exec, const BackwardPlan& plan) {
    Layout l{};
    l.delta = 0;
    l.dq = plan.delta_bytes();
    l.scratch = l.dq + plan.dq_bytes();
    l.total = l.scratch + tile::team_workspace_bytes(exec, plan.scratch_bytes());
    return l;
  }
};

/// Δ(row) = Σ_d dout · out, in the packed order of the rows.
template <class Exec, class T>
struct Delta {
  using Memory = typename Exec::memory_space;
  StridedView<const T, 4, Memory> out, dout;
  float* delta;
  std::int64_t kv_heads, group, rows;

  KOKKOS_INLINE_FUNCTION void operator()(std::int64_t index) const {
    const std::int64_t row = index % rows;
    const std::int64_t h = index / rows % kv_heads;
    const std::int64_t b = index / rows / kv_heads;
    const std::int64_t head = h * group + row % group;
    const T* o = &out(b, head, row / group, 0);
    const T* g = &dout(b, head, row / group, 0);
    delta[index] = row_delta<tile::VecOf<Exec>>(o, g, static_cast<int>(out.extent(3)));
  }
};

/// dq = scale · Σ over chunks of the partial dQ, in order.
template <class Exec, class T>
struct SumQueries {
  using Memory = typename Exec::memory_space;
  BackwardPlan plan;
  const float* parts;
  StridedView<T, 4, Memory> dq;
  std::int64_t kv_heads;
  float scale;

  KOKKOS_INLINE_FUNCTION void operator()(std::int64_t index) const {
    const std::int64_t row = index % plan.rows;
    const std::int64_t head = index / plan.rows;
    const float* first = parts + (head * plan.chunks * plan.rows + row) * plan.row;
    T* target =
        &dq(head / kv_heads, head % kv_heads * plan.group + row % plan.group, row / plan.group, 0);
    for (int d = 0; d < plan.head_dim; ++d) {
      float sum = 0.0F;
      for (std::int64_t c = 0; c < plan.chunks; ++c) sum += first[c * plan.rows * plan.row + d];
      target[d] = static_cast<T>(sum * scale);
    }
  }
};

}  // namespace

template <class Exec>
std::vector<Tile> flash_backward_tiles() {
  if constexpr (is_host_v<Exec>) {
    return FlashTiles<Exec>::all();
  } else {
    return portable_backward_tiles();
  }
}

template <class Exec, class T>
Status flash_backward_supports(const Exec& exec, const BackwardArgs& args, Tile tile) {
  bool known = false;
  for (const Tile built : flash_backward_tiles<Exec>()) known = known || built == tile;
  if (!known) {
    return Status::skipped("tile " + names({tile}) + " is not in the list for " +
                           std::string(name_of(backend_of<Exec>())) +
                           "; listed: " + names(flash_backward_tiles<Exec>()));
  }
  return tile::teams_support(
      exec, BackwardPlan(args, tile, tile::lanes_v<Exec>).scratch_bytes(),
      "tile " + names({tile}) + " at head_dim " + std::to_string(args.head_dim()));
}

template <class Exec, class T>
std::size_t flash_backward_workspace_bytes(const Exec& exec, const BackwardArgs& args, Tile tile) {
  return Layout::of(exec, BackwardPlan(args, tile, tile::lanes_v<Exec>)).total;
}

template <class Exec, class T>
void flash_backward(const Exec& exec, const BackwardArgs& args, Tile tile, Workspace workspace) {
  using Functor = FlashBackward<Exec, T>;
  using Memory = typename Exec::memory_space;
  const BackwardPlan plan(args, tile, tile::lanes_v<Exec>);
  const Layout layout = Layout::of(exec, plan);
  auto* base = static_cast<std::byte*>(workspace.data);
  auto* delta = reinterpret_cast<float*>(base + layout.delta);
  auto* parts = reinterpret_cast<float*>(base + layout.dq);
  const std::int64_t rows = plan.heads * plan.rows;
  const Kokkos::RangePolicy<Exec, Kokkos::IndexType<std::int64_t>> all_rows(exec, 0, rows);

  Kokkos::parallel_for("katt::attention::backward_delta", all_rows,
                       Delta<Exec, T>{args.out.view<T, Memory>(), args.dout.view<T, Memory>(),
                                      delta, args.kv_heads(), plan.group, plan.rows});

  const Functor functor{plan,
                        args.q.view<T, Memory>(),
                        args.k.view<T, Memory>(),
                        args.v.view<T, Memory>(),
                        args.dout.view<T, Memory>(),
                        args.lse.view<float, Memory>(),
                        args.dk.view<T, Memory>(),
                        args.dv.view<T, Memory>(),
                        Masks(args),
                        Bias<T>(args.mask.bias),
                        args.scale,
                        args.mask.softcap,
                        delta,
                        parts};
  tile::launch_teams(exec, "katt::attention::flash_backward", plan.heads * plan.chunks,
                     plan.scratch_bytes(), base + layout.scratch, functor);

  Kokkos::parallel_for(
      "katt::attention::backward_sum_dq", all_rows,
      SumQueries<Exec, T>{plan, parts, args.dq.view<T, Memory>(), args.kv_heads(), args.scale});
}

#define KATT_INSTANTIATE_FLASH_BACKWARD(Exec, T)                                                 \
  template Status flash_backward_supports<Exec, T>(const Exec&, const BackwardArgs&, Tile);      \
  template std::size_t flash_backward_workspace_bytes<Exec, T>(const Exec&, const BackwardArgs&, \
                                                               Tile);                            \
  template void flash_backward<Exec, T>(const Exec&, const BackwardArgs&, Tile, Workspace);
#define KATT_INSTANTIATE_TILES(Exec) template std::vector<Tile> flash_backward_tiles<Exec>();

KATT_FOR_EACH_EXEC(KATT_INSTANTIATE_TILES)
KATT_FOR_EACH_EXEC(KATT_INSTANTIATE_FLASH_BACKWARD, float)
KATT_FOR_EACH_EXEC(KATT_INSTANTIATE_FLASH_BACKWARD, f16)
KATT_FOR_EACH_EXEC(KATT_INSTANTIATE_FLASH_BACKWARD, bf16)

}  // namespace katt::attention::impl
