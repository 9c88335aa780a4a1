#include "ops/linear/gemm/host.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include <Kokkos_Core.hpp>

#include "core/execution.hpp"
#include "ops/linear/gemm/finish.hpp"
#include "ops/linear/gemm/inner/products.hpp"
#include "ops/linear/gemm/micro.hpp"
#include "ops/linear/gemm/outer/few_rows.hpp"
#include "ops/linear/gemm/outer/low_rank.hpp"
#include "tile/elementwise.hpp"

namespace katt::linear::impl {

namespace {

constexpr std::int64_t round_up(std::int64_t value, std::int64_t unit) {
  return (value + unit - 1) / unit * unit;
}

constexpr std::int64_t blocks_of(std::int64_t extent, std::int64_t block) {
  return block == 0 ? 0 : (extent + block - 1) / block;
}

/// How C is cut: into blocks small enough for the caches, and enough of them for the threads. The
/// result does not depend on it.
struct Blocking {
  std::int64_t rows, columns;  ///< of a block
  std::int64_t row_blocks, column_blocks;

  template <class Vec>
  static Blocking of(std::int64_t m, std::int64_t n, int threads) {
    constexpr std::int64_t row_unit = Micro<Vec>::rows;
    constexpr std::int64_t column_unit = Micro<Vec>::columns;
    // A block of B is rows · depth and one of sums rows · columns elements: both fit a cache of 1
    // MiB.
    std::int64_t row_blocks = blocks_of(m, 48 * row_unit);
    std::int64_t column_blocks = blocks_of(n, 512);
    const auto cut = [](std::int64_t extent, std::int64_t count, std::int64_t unit) {
      return std::max(unit,
                      round_up((extent + count - 1) / std::max<std::int64_t>(1, count), unit));
    };
    const std::int64_t wanted = threads > 1 ? 4 * static_cast<std::int64_t>(threads) : 1;
    while (row_blocks * column_blocks < wanted) {
      const std::int64_t rows = cut(m, row_blocks, row_unit);
      const std::int64_t columns = cut(n, column_blocks, column_unit);
      if (rows > columns && rows >= 8 * row_unit) {
        ++row_blocks;
      } else if (columns >= 4 * column_unit) {
        ++column_blocks;
      } else if (rows >= 8 * row_unit) {
        ++row_blocks;
      } else {
        break;
      }
    }
    Blocking b{};
    b.rows = cut(m, row_blocks, row_unit);
    b.columns = cut(n, column_blocks, column_unit);
    b.row_blocks = blocks_of(m, b.rows);
    b.column_blocks = blocks_of(n, b.columns);
    return b;
  }
};

/// The workspace of one thread.
template <class Vec>
struct ThreadSpace {
  std::int64_t a, b, sums, total;  ///< offsets in elements

  ThreadSpace(const GemmArgs& args, const Blocking& blocking) {
    using M = Micro<Vec>;
    const std::int64_t depth = M::depth_of(args.k());
    a = 0;
    b = a + round_up(M::rows * depth + M::slack, 16);
    sums = b + round_up(blocking.columns * depth + M::slack, 16);
    const bool direct = args.c.dtype == Dtype::f32;
    total = sums + (direct ? 0 : round_up(blocking.rows * blocking.columns, 16));
  }
};

/// One block of C.
template <class Exec>
struct ProductBlock {
  using Vec = tile::VecOf<Exec>;
  using M = Micro<Vec>;
  using Token =
      Kokkos::Experimental::UniqueToken<Exec, Kokkos::Experimental::UniqueTokenScope::Instance>;

  GemmArgs args;
  Blocking blocking;
  ThreadSpace<Vec> space;
  Token token;
  float* workspace;

  void operator()(std::int64_t item) const {
    const int slot = token.acquire();
    float* mine = workspace + slot * space.total;
    const std::int64_t row = item % blocking.row_blocks * blocking.rows;
    const std::int64_t column = item / blocking.row_blocks * blocking.columns;
    const std::int64_t rows = std::min(blocking.rows, args.m() - row);
    const std::int64_t columns = std::min(blocking.columns, args.n() - column);
    const bool direct = args.c.dtype == Dtype::f32;
    float* sums = mine + space.sums;
    std::int64_t stride = blocking.columns;
    if (direct) {
      sums = static_cast<float*>(args.c.data) + row * args.c.stride[0] + column;
      stride = args.c.stride[0];
    }
    const float first_beta = direct ? args.beta : 0.0F;
    const std::int64_t step = M::depth_of(args.k());
    std::int64_t k = 0;
    do {  // once for an empty sum too, which leaves beta · C
      const std::int64_t depth = std::min(step, args.k() - k);
      for (std::int64_t j = 0; j < columns; j += M::columns) {
        const std::int64_t count = std::min<std::int64_t>(M::columns, columns - j);
        pack<Vec>(args.b, args.trans_b, {column + j, count, k, depth}, mine + space.b + j * depth,
                  M::columns);
      }
      for (std::int64_t i = 0; i < rows; i += M::rows) {
        const std::int64_t panel_rows = std::min<std::int64_t>(M::rows, rows - i);
        pack<Vec>(args.a, !args.trans_a, {row + i, panel_rows, k, depth}, mine + space.a,
                  panel_rows);
        const auto kernel = micro_kernel_for<Vec>(panel_rows);
        for (std::int64_t j = 0; j < columns; j += M::columns) {
          kernel(mine + space.a, mine + space.b + j * depth, depth,
                 {.c = sums + i * stride + j,
                  .stride = stride,
                  .columns = static_cast<int>(std::min<std::int64_t>(M::columns, columns - j)),
                  .alpha = args.alpha,
                  .beta = k == 0 ? first_beta : 1.0F});
        }
      }
      k += step;
    } while (k < args.k());
    if (!direct) {
      finish_block<Vec>(args, sums, stride, row, column, rows, columns, args.beta);
    } else if (args.bias) {
      finish_block<Vec>(args, sums, stride, row, column, rows, columns, 0.0F);
    }
    token.release(slot);
  }
};

/// How a product of many rows into f32 is cut: B is packed once for all threads, a chunk of its k at a
/// time, and A panel by panel for many columns, where ProductBlock packs both for each block. The
/// chains are those of ProductBlock.
template <class Vec>
struct SharedPlan {
  using M = Micro<Vec>;
  static constexpr std::int64_t largest_chunk = std::int64_t{2} << 20;  ///< elements of packed B
  /// Of a wider product so many columns are computed at a time: then a chunk has a depth at least.
  static constexpr std::int64_t most_columns =
      largest_chunk / M::largest_depth / M::columns * M::columns;

  std::int64_t depth;   ///< steps of k in a panel
  std::int64_t panels;  ///< of B, side by side
  std::int64_t chunk;   ///< steps of k that are packed at one time, in whole depths
  std::int64_t rows, columns, row_items, column_items;  ///< of a thread's piece of C

  static bool takes(const GemmArgs& args) {
    return args.c.dtype == Dtype::f32 && args.k() > 0 && args.n() > 0 && args.m() >= 8 * M::rows;
  }

  SharedPlan(const GemmArgs& args, int threads)
      : depth(M::depth_of(args.k())), panels(blocks_of(args.n(), M::columns)) {
    const std::int64_t layer = panels * M::columns * depth;
    chunk = std::min(std::max<std::int64_t>(1, largest_chunk / layer), blocks_of(args.k(), depth)) *
            depth;
    // The columns of B that many panels of A meet stay in the second-level cache.
    const std::int64_t wanted = threads > 1 ? 16 * static_cast<std::int64_t>(threads) : 1;
    const std::int64_t wide = blocks_of(args.n(), 512);
    const std::int64_t high = blocks_of(args.m(), M::rows);
    columns = round_up(blocks_of(args.n(), std::max(wide, blocks_of(threads, high))), M::columns);
    column_items = blocks_of(args.n(), columns);
    rows = std::clamp<std::int64_t>(high * column_items / wanted, 1, 4) * M::rows;
    row_items = blocks_of(args.m(), rows);
  }

  [[nodiscard]] std::int64_t packed_size() const {
    return round_up(panels * M::columns * chunk + M::slack, 16);
  }
  [[nodiscard]] std::int64_t thread_size() const {
    return round_up(M::rows * depth + M::slack, 16);
  }
  /// Where the panel of these columns and of the steps from k on lies.
  [[nodiscard]] std::int64_t place(std::int64_t k, std::int64_t panel) const {
    return (k / depth * panels + panel) * depth * M::columns;
  }
};

/// One panel of B.
template <class Vec>
struct PackShared {
  using M = Micro<Vec>;
  GemmArgs args;
  SharedPlan<Vec> plan;
  std::int64_t first;  ///< step of k of the chunk
  float* packed;

  void operator()(std::int64_t item) const {
    const std::int64_t k = item / plan.panels * plan.depth;
    const std::int64_t panel = item % plan.panels;
    const std::int64_t column = panel * M::columns;
    pack<Vec>(args.b, args.trans_b,
              {column, std::min<std::int64_t>(M::columns, args.n() - column), first + k,
               std::min(plan.depth, args.k() - first - k)},
              packed + plan.place(k, panel), M::columns);
  }
};

/// One piece of C += the product over a chunk.
template <class Exec>
struct SharedProduct {
  using Vec = tile::VecOf<Exec>;
  using M = Micro<Vec>;
  using Token = typename ProductBlock<Exec>::Token;

  GemmArgs args;
  SharedPlan<Vec> plan;
  std::int64_t first;
  const float* packed;
  Token token;
  float* workspace;

  void operator()(std::int64_t item) const {
    const int slot = token.acquire();
    float* panel = workspace + slot * plan.thread_size();
    const std::int64_t row = item % plan.row_items * plan.rows;
    const std::int64_t column = item / plan.row_items * plan.columns;
    const std::int64_t rows = std::min(plan.rows, args.m() - row);
    const std::int64_t columns = std::min(plan.columns, args.n() - column);
    const std::int64_t stride = args.c.stride[0];
    float* c = static_cast<float*>(args.c.data) + row * stride + column;
    const std::int64_t steps = std::min(plan.chunk, args.k() - first);
    for (std::int64_t k = 0; k < steps; k += plan.depth) {
      const std::int64_t depth = std::min(plan.depth, steps - k);
      for (std::int64_t i = 0; i < rows; i += M::rows) {
        const std::int64_t count = std::min<std::int64_t>(M::rows, rows - i);
        pack<Vec>(args.a, !args.trans_a, {row + i, count, first + k, depth}, panel, count);
        const auto kernel = micro_kernel_for<Vec>(count);
        for (std::int64_t j = 0; j < columns; j += M::columns) {
          kernel(panel, packed + plan.place(k, (column + j) / M::columns), depth,
                 {.c = c + i * stride + j,
                  .stride = stride,
                  .columns = static_cast<int>(std::min<std::int64_t>(M::columns, columns - j)),
                  .alpha = args.alpha,
                  .beta = first + k == 0 ? args.beta : 1.0F});
        }
      }
    }
    if (args.bias && first + steps == args.k()) {
      finish_block<Vec>(args, c, stride, row, column, rows, columns, 0.0F);
    }
    token.release(slot);
  }
};

/// The product for `count` columns from `first` on.
GemmArgs columns_of(const GemmArgs& args, std::int64_t first, std::int64_t count) {
  const auto skip = [](auto& tensor, std::int64_t elements) {
    using Data = decltype(tensor.data);
    using Byte = std::conditional_t<std::is_same_v<Data, void*>, std::byte, const std::byte>;
    tensor.data = static_cast<Byte*>(tensor.data) +
                  elements * static_cast<std::int64_t>(size_of(tensor.dtype));
  };
  GemmArgs part = args;
  skip(part.b, args.trans_b ? first * args.b.stride[0] : first);
  skip(part.c, first);
  part.b.extent[args.trans_b ? 0 : 1] = count;
  part.c.extent[1] = count;
  if (args.bias) {
    skip(part.bias, first);
    part.bias.extent[0] = count;
  }
  return part;
}

template <class Exec>
std::size_t shared_workspace_bytes(const Exec& exec, const GemmArgs& args) {
  using Plan = SharedPlan<tile::VecOf<Exec>>;
  std::int64_t size = 0;
  for (const std::int64_t columns :
       {std::min(args.n(), Plan::most_columns), args.n() % Plan::most_columns}) {
    if (columns == 0) continue;
    const Plan plan(columns_of(args, 0, columns), exec.concurrency());
    size = std::max(size, plan.packed_size() + exec.concurrency() * plan.thread_size());
  }
  return static_cast<std::size_t>(size) * sizeof(float);
}

template <class Exec>
void shared_product(const Exec& exec, const GemmArgs& args, float* workspace, const char* label) {
  constexpr std::int64_t most = SharedPlan<tile::VecOf<Exec>>::most_columns;
  if (args.n() > most) {
    for (std::int64_t column = 0; column < args.n(); column += most) {
      shared_product(exec, columns_of(args, column, std::min(most, args.n() - column)), workspace,
                     label);
    }
    return;
  }
  using Vec = tile::VecOf<Exec>;
  using Index = Kokkos::IndexType<std::int64_t>;
  const SharedPlan<Vec> plan(args, exec.concurrency());
  for (std::int64_t first = 0; first < args.k(); first += plan.chunk) {
    const std::int64_t layers = blocks_of(std::min(plan.chunk, args.k() - first), plan.depth);
    Kokkos::parallel_for(label, Kokkos::RangePolicy<Exec, Index>(exec, 0, layers * plan.panels),
                         PackShared<Vec>{args, plan, first, workspace});
    Kokkos::RangePolicy<Exec, Kokkos::Schedule<Kokkos::Dynamic>, Index> pieces(
        exec, 0, plan.row_items * plan.column_items);
    pieces.set_chunk_size(1);
    Kokkos::parallel_for(
        label, pieces,
        SharedProduct<Exec>{args, plan, first, workspace, typename SharedProduct<Exec>::Token(exec),
                            workspace + plan.packed_size()});
  }
}

}  // namespace

template <class Exec>
std::size_t host_gemm_workspace_bytes(const Exec& exec, const GemmArgs& args) {
  using Vec = tile::VecOf<Exec>;
  if (is_inner(args)) return inner_workspace_bytes(exec, args, InnerUnit::widened);
  if (is_few_rows(args)) return few_rows_workspace_bytes<Exec>(args, OuterUnit::widened);
  if (is_low_rank(args)) return low_rank_workspace_bytes<Exec>(args, OuterUnit::widened);
  if (SharedPlan<Vec>::takes(args)) {
    return shared_workspace_bytes(exec, args);
  }
  const auto blocking = Blocking::of<Vec>(args.m(), args.n(), exec.concurrency());
  return static_cast<std::size_t>(ThreadSpace<Vec>(args, blocking).total) * sizeof(float) *
         static_cast<std::size_t>(exec.concurrency());
}

template <class Exec>
void host_gemm(const Exec& exec, const GemmArgs& args, Workspace workspace, const char* label) {
  using Vec = tile::VecOf<Exec>;
  if (is_inner(args)) return inner_products(exec, args, InnerUnit::widened, workspace, label);
  if (is_few_rows(args)) return few_rows(exec, args, OuterUnit::widened, workspace, label);
  if (is_low_rank(args)) return low_rank(exec, args, OuterUnit::widened, workspace, label);
  if (SharedPlan<Vec>::takes(args)) {
    return shared_product(exec, args, static_cast<float*>(workspace.data), label);
  }
  const auto blocking = Blocking::of<Vec>(args.m(), args.n(), exec.concurrency());
  using Policy =
      Kokkos::RangePolicy<Exec, Kokkos::Schedule<Kokkos::Dynamic>, Kokkos::IndexType<std::int64_t>>;
  Policy policy(exec, 0, blocking.row_blocks * blocking.column_blocks);
  policy.set_chunk_size(1);
  Kokkos::parallel_for(label, policy,
                       ProductBlock<Exec>{args, blocking, ThreadSpace<Vec>(args, blocking),
                                          typename ProductBlock<Exec>::Token(exec),
                                          static_cast<float*>(workspace.data)});
}

#define KATT_INSTANTIATE_HOST_GEMM(Exec)                                              \
  template std::size_t host_gemm_workspace_bytes<Exec>(const Exec&, const GemmArgs&); \
  template void host_gemm<Exec>(const Exec&, const GemmArgs&, Workspace, const char*);

KATT_INSTANTIATE_HOST_GEMM(Host)

}  // namespace katt::linear::impl
