#include "ops/linear/gemm/host.hpp"

#include <algorithm>
#include <cstdint>

#include <Kokkos_Core.hpp>

#include "core/execution.hpp"
#include "ops/linear/gemm/bf16.hpp"
#include "ops/linear/gemm/micro.hpp"
#include "ops/linear/linear_kernels.hpp"
#include "tile/bf16_units.hpp"
#include "tile/elementwise.hpp"

namespace katt::linear::impl {

namespace {

constexpr std::int64_t round_up(std::int64_t value, std::int64_t unit) {
  return (value + unit - 1) / unit * unit;
}

constexpr std::int64_t blocks_of(std::int64_t extent, std::int64_t block) {
  return block == 0 ? 0 : (extent + block - 1) / block;
}

/// C(row + r, column + ·) = sums(r, ·) + beta · C + bias, rounded, for a block of C.
template <class Vec>
void finish_block(const GemmArgs& args, const float* sums, std::int64_t stride, std::int64_t row,
                  std::int64_t column, std::int64_t rows, std::int64_t columns, float beta) {
  constexpr int lanes = Micro<Vec>::lanes;
  visit_dtype(args.c.dtype, [&]<class T>() {
    visit_dtype(args.bias.dtype, [&]<class B>() {
      const B* bias = args.bias ? static_cast<const B*>(args.bias.data) + column : nullptr;
      for (std::int64_t r = 0; r < rows; ++r) {
        T* c = static_cast<T*>(args.c.data) + (row + r) * args.c.stride[0] + column;
        const auto put = [&](std::int64_t i, auto part) {
          Vec value = tile::load<Vec>(sums + r * stride + i, part);
          if (beta != 0.0F) value = tile::fma(Vec(beta), tile::load<Vec>(c + i, part), value);
          if (bias != nullptr) value = value + tile::load<Vec>(bias + i, part);
          tile::store(c + i, value, part);
        };
        std::int64_t i = 0;
        for (; i + lanes <= columns; i += lanes) put(i, tile::WholeVector{});
        if (i < columns) put(i, tile::PartialVector{static_cast<int>(columns - i)});
      }
    });
  });
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
    const std::int64_t depth = std::min(M::depth, args.k());
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
    std::int64_t k = 0;
    do {  // once for an empty sum too, which leaves beta · C
      const std::int64_t depth = std::min(M::depth, args.k() - k);
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
      k += M::depth;
    } while (k < args.k());
    if (!direct) {
      finish_block<Vec>(args, sums, stride, row, column, rows, columns, args.beta);
    } else if (args.bias) {
      finish_block<Vec>(args, sums, stride, row, column, rows, columns, 0.0F);
    }
    token.release(slot);
  }
};

/// Most rows of A that are multiplied as inner products.
constexpr std::int64_t most_inner_rows = 4;

bool is_inner(const GemmArgs& args) {
  return args.trans_b && !args.trans_a && args.m() <= most_inner_rows;
}

/// C(·, j) for a few rows of A, in f32, against the rows j of B: sums over k by vectors.
template <class Exec>
struct InnerProducts {
  using Vec = tile::VecOf<Exec>;
  static constexpr int lanes = tile::lanes_v<Exec>;
  static constexpr int unroll = 4;           ///< rows of B at one time
  static constexpr std::int64_t block = 16;  ///< rows of B of one item

  GemmArgs args;
  const float* a;  ///< (m, k), rows a_stride apart
  std::int64_t a_stride;

  void operator()(std::int64_t item) const {
    const std::int64_t begin = item * block;
    const std::int64_t count = std::min(block, args.n() - begin);
    float sums[most_inner_rows * block];
    visit_dtype(args.b.dtype, [&]<class T>() {
      const T* b = static_cast<const T*>(args.b.data) + begin * args.b.stride[0];
      switch (args.m()) {
        case 1: return rows<1>(b, count, sums);
        case 2: return rows<2>(b, count, sums);
        case 3: return rows<3>(b, count, sums);
        default: return rows<4>(b, count, sums);
      }
    });
    finish_block<Vec>(args, sums, block, 0, begin, args.m(), count, args.beta);
  }

  template <int Rows, class T>
  void rows(const T* b, std::int64_t count, float* sums) const {
    std::int64_t j = 0;
    for (; j + unroll <= count; j += unroll) {
      inner<Rows, unroll>(b + j * args.b.stride[0], sums + j);
    }
    for (; j < count; ++j) inner<Rows, 1>(b + j * args.b.stride[0], sums + j);
  }

  template <int Rows, int Columns, class T>
  void inner(const T* b, float* sums) const {
    Vec acc[Rows][Columns];
    for (int r = 0; r < Rows; ++r) {
      for (int j = 0; j < Columns; ++j) acc[r][j] = Vec(0.0F);
    }
    const auto add = [&](std::int64_t k, auto part) {
      Vec column[Columns];
      for (int j = 0; j < Columns; ++j) {
        column[j] = tile::load<Vec>(b + j * args.b.stride[0] + k, part);
      }
      for (int r = 0; r < Rows; ++r) {
        const Vec row = tile::load<Vec>(a + r * a_stride + k, part);
        for (int j = 0; j < Columns; ++j) acc[r][j] = tile::fma(row, column[j], acc[r][j]);
      }
    };
    std::int64_t k = 0;
    for (; k + lanes <= args.k(); k += lanes) add(k, tile::WholeVector{});
    if (k < args.k()) add(k, tile::PartialVector{static_cast<int>(args.k() - k)});
    for (int r = 0; r < Rows; ++r) {
      for (int j = 0; j < Columns; ++j) {
        sums[r * block + j] = args.alpha * tile::reduce_sum(acc[r][j]);
      }
    }
  }
};

template <class Exec>
void inner_products(const Exec& exec, const GemmArgs& args, Workspace workspace,
                    const char* label) {
  const float* a = static_cast<const float*>(args.a.data);
  std::int64_t a_stride = args.a.stride[0];
  if (args.a.dtype != Dtype::f32) {
    auto* wide = static_cast<float*>(workspace.data);
    visit_dtype(args.a.dtype, [&]<class T>() {
      tile::for_each_vector(
          exec, label, args.m(), args.k(),
          Convert<T, float>{static_cast<const T*>(args.a.data), args.a.stride[0], wide, args.k()});
    });
    a = wide;
    a_stride = args.k();
  }
  using Policy = Kokkos::RangePolicy<Exec, Kokkos::IndexType<std::int64_t>>;
  Kokkos::parallel_for(label, Policy(exec, 0, blocks_of(args.n(), InnerProducts<Exec>::block)),
                       InnerProducts<Exec>{args, a, a_stride});
}

}  // namespace

template <class Exec>
std::size_t host_gemm_workspace_bytes(const Exec& exec, const GemmArgs& args) {
  using Vec = tile::VecOf<Exec>;
  if (is_inner(args)) {
    return args.a.dtype == Dtype::f32
               ? 0
               : static_cast<std::size_t>(args.m() * args.k()) * sizeof(float);
  }
  if (bf16_takes(args)) return bf16_gemm_workspace_bytes(exec, args);
  const auto blocking = Blocking::of<Vec>(args.m(), args.n(), exec.concurrency());
  return static_cast<std::size_t>(ThreadSpace<Vec>(args, blocking).total) * sizeof(float) *
         static_cast<std::size_t>(exec.concurrency());
}

std::string host_gemm_engine(const GemmArgs& args) {
  if (!is_inner(args) && bf16_takes(args)) return tile::bf16_panels::unit_name();
  return tile::vector_name;
}

template <class Exec>
void host_gemm(const Exec& exec, const GemmArgs& args, Workspace workspace, const char* label) {
  using Vec = tile::VecOf<Exec>;
  if (args.m() == 0 || args.n() == 0) return;
  if (is_inner(args)) return inner_products(exec, args, workspace, label);
  if (bf16_takes(args)) return bf16_gemm(exec, args, workspace, label);
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
