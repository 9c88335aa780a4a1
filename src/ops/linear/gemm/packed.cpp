#include "ops/linear/gemm/packed.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include <Kokkos_Core.hpp>

#include "core/execution.hpp"
#include "ops/linear/gemm/finish.hpp"
#include "ops/linear/gemm/micro.hpp"
#include "tile/extents.hpp"
#include "tile/rows/elementwise.hpp"

namespace katt::linear::impl {

namespace {

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
    std::int64_t row_blocks = divide_up(m, 48 * row_unit);
    std::int64_t column_blocks = divide_up(n, 512);
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
    b.row_blocks = divide_up(m, b.rows);
    b.column_blocks = divide_up(n, b.columns);
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
    Upcoming ahead;  // nothing
    std::int64_t k = 0;
    do {  // once for an empty sum too, which leaves beta · C
      const std::int64_t depth = std::min(step, args.k() - k);
      const bool is_last = k + depth == args.k();
      for (std::int64_t j = 0; j < columns; j += M::columns) {
        const std::int64_t count = std::min<std::int64_t>(M::columns, columns - j);
        pack<Vec>(args.b, args.b_scales, args.trans_b, {column + j, count, k, depth},
                  mine + space.b + j * depth, M::columns);
      }
      for (std::int64_t i = 0; i < rows; i += M::rows) {
        const std::int64_t panel_rows = std::min<std::int64_t>(M::rows, rows - i);
        pack<Vec>(args.a, args.a_scales, !args.trans_a, {row + i, panel_rows, k, depth},
                  mine + space.a, panel_rows);
        const auto kernel = micro_kernel_for<Vec>(panel_rows);
        for (std::int64_t j = 0; j < columns; j += M::columns) {
          float* corner = sums + i * stride + j;
          const auto width = static_cast<int>(std::min<std::int64_t>(M::columns, columns - j));
          kernel(mine + space.a, mine + space.b + j * depth, depth,
                 {.c = corner,
                  .stride = stride,
                  .columns = width,
                  .alpha = args.alpha,
                  .beta = k == 0 ? first_beta : 1.0F},
                 ahead);
          if (is_last && (args.bias || !direct)) {  // while the sums are in the first-level cache
            finish_block<Vec>(args, corner, stride, row + i, column + j, panel_rows, width,
                              direct ? 0.0F : args.beta);
          }
        }
      }
      k += step;
    } while (k < args.k());
    token.release(slot);
  }
};

}  // namespace

template <class Exec>
std::size_t packed_workspace_bytes(const Exec& exec, const GemmArgs& args) {
  using Vec = tile::VecOf<Exec>;
  const auto blocking = Blocking::of<Vec>(args.m(), args.n(), exec.concurrency());
  return static_cast<std::size_t>(ThreadSpace<Vec>(args, blocking).total) * sizeof(float) *
         static_cast<std::size_t>(exec.concurrency());
}

template <class Exec>
void packed_product(const Exec& exec, const GemmArgs& args, Workspace workspace,
                    const char* label) {
  using Vec = tile::VecOf<Exec>;
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

#define KATT_INSTANTIATE_PACKED(Exec)                                              \
  template std::size_t packed_workspace_bytes<Exec>(const Exec&, const GemmArgs&); \
  template void packed_product<Exec>(const Exec&, const GemmArgs&, Workspace, const char*);

KATT_INSTANTIATE_PACKED(Host)

}  // namespace katt::linear::impl
