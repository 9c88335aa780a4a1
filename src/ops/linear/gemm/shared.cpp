#include "ops/linear/gemm/shared.hpp"

#include <algorithm>
#include <cstdint>

#include <Kokkos_Core.hpp>

#include "core/parts.hpp"
#include "core/thread_slot.hpp"
#include "ops/linear/gemm/finish.hpp"
#include "ops/linear/gemm/micro.hpp"
#include "tile/extents.hpp"

namespace katt::linear::impl {

namespace {

using HostMicro = Micro<tile::VecOf<Host>>;

constexpr std::int64_t largest_chunk = std::int64_t{2} << 20;  ///< elements of the shared factor
/// Elements of A, about, where a gated product shares it: with fewer each of its weights is packed more often.
constexpr std::int64_t gated_chunk = 2 * largest_chunk;
/// Columns of a wider product that are computed at a time: then a chunk has a depth at least.
constexpr std::int64_t most_columns =
    largest_chunk / HostMicro::largest_depth / HostMicro::columns * HostMicro::columns;

/// Columns of a panel of B that each half of a gated product has, the gate's first.
constexpr std::int64_t half_columns = HostMicro::columns / 2;

/// Columns of sums: those of C, or panels of both halves of a gated product.
std::int64_t sum_columns(const GemmArgs& args) {
  return args.is_gated() ? 2 * round_up(args.n(), half_columns) : args.n();
}

/// Pieces of C that keep the threads busy to the end.
std::int64_t wanted_pieces(int threads) {
  return threads > 1 ? 4 * static_cast<std::int64_t>(threads) : 1;
}

/// Columns of the least piece of C where A is shared.
constexpr std::int64_t narrow = std::int64_t{2} * HostMicro::columns;

/// True when the threads share A, for `n` columns of sums; else they share B. A gated product takes all of k in a chunk:
/// of the factors that have no room as a whole it shares A, by rows.
bool shares_a(const GemmArgs& args, std::int64_t n, int threads) {
  if (n < wanted_pieces(threads) * narrow) return false;
  if (args.is_gated()) return args.m() <= n || n * args.k() > largest_chunk;
  return args.m() <= n &&
         round_up(args.m(), HostMicro::rows) * HostMicro::depth_of(args.k()) <= largest_chunk;
}

/// How a product is cut. A gated one has all of its sums in a thread's memory, and so all of k in a chunk.
template <class Vec>
struct SharedPlan {
  using M = Micro<Vec>;

  std::int64_t n;       ///< sum_columns()
  bool shares_a;        ///< else B
  std::int64_t width;   ///< rows, or columns, of a panel of the shared factor
  std::int64_t panels;  ///< side by side
  std::int64_t depth;   ///< steps of k in a panel
  std::int64_t chunk;   ///< steps of k that are packed at one time, in whole depths
  std::int64_t rows, columns, row_items, column_items;  ///< of a thread's piece of C
  bool gated;

  SharedPlan(const GemmArgs& args, int threads)
      : n(sum_columns(args)),
        shares_a(impl::shares_a(args, n, threads)),
        depth(M::depth_of(args.k())),
        gated(args.is_gated()) {
    const std::int64_t wanted = wanted_pieces(threads);
    const std::int64_t high = divide_up(args.m(), M::rows);
    if (shares_a) {
      width = M::rows;
      panels = high;
      columns = even_block(n, std::max(wanted, divide_up(n, 4 * narrow)), M::columns, 1, threads);
      rows = args.m();
    } else {
      width = M::columns;
      panels = divide_up(n, M::columns);
      // The columns of B that many panels of A meet stay in the second-level cache.
      const std::int64_t wide = divide_up(n, 512);
      columns = round_up(divide_up(n, std::max(wide, divide_up(threads, high))), M::columns);
      rows = std::clamp<std::int64_t>(high * divide_up(n, columns) / (4 * wanted), 1, 16) * M::rows;
    }
    column_items = divide_up(n, columns);
    row_items = divide_up(args.m(), rows);
    const std::int64_t depths = divide_up(args.k(), depth);
    chunk = gated ? depths : largest_chunk / (panels * width * depth);
    chunk = std::clamp<std::int64_t>(chunk, 1, depths) * depth;
  }

  /// Elements of a panel of the shared factor.
  [[nodiscard]] std::int64_t panel_size() const { return width * depth + M::slack; }
  [[nodiscard]] std::int64_t packed_size() const {
    return round_up(chunk / depth * panels * panel_size(), 16);
  }
  /// Elements that a thread packs, where its sums lie behind them.
  [[nodiscard]] std::int64_t own_size() const {
    return round_up((shares_a ? columns : M::rows) * depth + M::slack, 16);
  }
  [[nodiscard]] std::int64_t thread_size() const {
    const std::int64_t elements = own_size() + (gated ? rows * columns : 0);
    return static_cast<std::int64_t>(
        thread_slice_bytes(static_cast<std::size_t>(elements) * sizeof(float)) / sizeof(float));
  }
  /// Where the shared panel of these rows or columns and of the steps from k on lies.
  [[nodiscard]] std::int64_t place(std::int64_t k, std::int64_t panel) const {
    return (k / depth * panels + panel) * panel_size();
  }
};

/// Packs a panel of B, or of both halves of a gated product.
template <class Vec>
void pack_b(const GemmArgs& args, const PanelRange& range, float* out) {
  constexpr std::int64_t columns = Micro<Vec>::columns;
  if (!args.is_gated()) {
    return pack<Vec>(args.b, args.b_scales, args.trans_b, range, out, columns);
  }
  const std::int64_t first = range.first / 2;
  const PanelRange of_half{first, std::min(half_columns, args.n() - first), range.k, range.depth};
  pack<Vec>(args.gate, {}, true, of_half, out, columns);
  pack<Vec>(args.b, {}, true, of_half, out + half_columns, columns);
}

/// One panel of the shared factor.
template <class Vec>
struct PackShared {
  GemmArgs args;
  SharedPlan<Vec> plan;
  std::int64_t first;  ///< step of k of the chunk
  float* packed;

  void operator()(std::int64_t item) const {
    const std::int64_t k = item / plan.panels * plan.depth;
    const std::int64_t panel = item % plan.panels;
    const std::int64_t begin = panel * plan.width;
    const std::int64_t count = std::min(plan.width, (plan.shares_a ? args.m() : plan.n) - begin);
    const PanelRange range{begin, count, first + k, std::min(plan.depth, args.k() - first - k)};
    float* out = packed + plan.place(k, panel);
    if (plan.shares_a) {
      pack<Vec>(args.a, args.a_scales, !args.trans_a, range, out, count);
    } else {
      pack_b<Vec>(args, range, out);
    }
  }
};

/// Prefetches of the lines that pack() reads of a matrix, within so many calls.
LinesAhead lines_of(const ConstTensorRef<2>& matrix, bool across, const PanelRange& range,
                    std::int64_t calls) {
  if (range.depth <= 0) return {};
  const auto size = static_cast<std::int64_t>(size_of(matrix.dtype));
  const std::int64_t rows = across ? range.count : range.depth;
  const std::int64_t elements = across ? range.depth : range.count;
  const std::int64_t row = across ? range.first : range.k;
  const std::int64_t column = across ? range.k : range.first;
  const auto* first = static_cast<const std::byte*>(matrix.data);
  return {first + (row * matrix.stride[0] + column) * size, rows, elements * size,
          matrix.stride[0] * size, calls};
}

/// One piece of C += the product over a chunk.
template <class Exec>
struct SharedProduct {
  using Vec = tile::VecOf<Exec>;
  using M = Micro<Vec>;
  using Token =
      Kokkos::Experimental::UniqueToken<Exec, Kokkos::Experimental::UniqueTokenScope::Instance>;

  GemmArgs args;
  SharedPlan<Vec> plan;
  std::int64_t first;
  const float* packed;
  Token token;
  float* workspace;

  void operator()(std::int64_t item) const {
    const int slot = token.acquire();
    float* mine = workspace + slot * plan.thread_size();
    const std::int64_t row = item % plan.row_items * plan.rows;
    const std::int64_t column = item / plan.row_items * plan.columns;
    const std::int64_t rows = std::min(plan.rows, args.m() - row);
    const std::int64_t columns = std::min(plan.columns, plan.n - column);
    const std::int64_t stride = plan.gated ? plan.columns : args.c.stride[0];
    float* c = plan.gated ? mine + plan.own_size()
                          : static_cast<float*>(args.c.data) + row * stride + column;
    const std::int64_t steps = std::min(plan.chunk, args.k() - first);
    Upcoming ahead;
    for (std::int64_t k = 0; k < steps; k += plan.depth) {
      const std::int64_t depth = std::min(plan.depth, steps - k);
      const bool is_last = first + k + depth == args.k();
      // Calls of ahead() for a panel of A, and for all of them.
      const std::int64_t calls = divide_up(columns, M::columns) * (depth / Upcoming::steps);
      const std::int64_t all_calls = divide_up(rows, M::rows) * calls;
      for (std::int64_t j = 0; plan.shares_a && j < columns; j += M::columns) {
        const std::int64_t count = std::min<std::int64_t>(M::columns, columns - j);
        pack_b<Vec>(args, {column + j, count, first + k, depth}, mine + j * depth);
      }
      if (plan.shares_a) {
        const std::int64_t next = k + depth;
        const std::int64_t parts = plan.gated ? 2 : 1;  // of which one is prefetched
        ahead.source = lines_of(
            args.b, args.trans_b,
            {column / parts, columns / parts, first + next, std::min(plan.depth, steps - next)},
            all_calls);
      }
      for (std::int64_t i = 0; i < rows; i += M::rows) {
        const std::int64_t count = std::min<std::int64_t>(M::rows, rows - i);
        const float* a = mine;
        if (plan.shares_a) {
          a = packed + plan.place(k, (row + i) / M::rows);
          const std::int64_t panel_bytes = plan.panel_size() * std::int64_t{sizeof(float)};
          ahead.panel = LinesAhead(reinterpret_cast<const std::byte*>(a) + panel_bytes, 1,
                                   panel_bytes, 0, calls);
        } else {
          pack<Vec>(args.a, args.a_scales, !args.trans_a, {row + i, count, first + k, depth}, mine,
                    count);
          const bool last = i + count == rows;
          const std::int64_t begin = last ? 0 : i + count;
          const std::int64_t k_next = last ? k + depth : k;
          ahead.source = lines_of(args.a, !args.trans_a,
                                  {row + begin, std::min<std::int64_t>(M::rows, rows - begin),
                                   first + k_next, std::min(plan.depth, steps - k_next)},
                                  calls);
        }
        const auto kernel = micro_kernel_for<Vec>(count);
        for (std::int64_t j = 0; j < columns; j += M::columns) {
          const float* b =
              plan.shares_a ? mine + j * depth : packed + plan.place(k, (column + j) / M::columns);
          float* sums = c + i * stride + j;
          const auto width = static_cast<int>(std::min<std::int64_t>(M::columns, columns - j));
          kernel(a, b, depth,
                 {.c = sums,
                  .stride = stride,
                  .columns = width,
                  .alpha = args.alpha,
                  .beta = first + k == 0 ? args.beta : 1.0F},
                 ahead);
          if (args.bias && is_last) {  // while the sums are in the first-level cache
            finish_block<Vec>(args, sums, stride, row + i, column + j, count, width, 0.0F);
          }
        }
      }
    }
    for (std::int64_t j = 0; plan.gated && j < columns; j += M::columns) {
      const std::int64_t to = (column + j) / 2;
      finish_gated_block<Vec>(args, c + j, c + j + half_columns, stride, row, to, rows,
                              std::min(half_columns, args.n() - to));
    }
    token.release(slot);
  }
};

/// Leaves `count` rows, or else columns, of a matrix and of its scales.
void take(ConstTensorRef<2>& matrix, ElementScales& scales, bool of_rows, std::int64_t first,
          std::int64_t count) {
  matrix = of_rows ? rows_of(matrix, first, count) : columns_of(matrix, first, count);
  if (!scales.are_there()) return;
  if (of_rows) {
    scales.rows = rows_of(scales.rows, first, count);
  } else {
    scales.columns = elements_of(scales.columns, first, count);
  }
}

/// The product for some rows and columns of C.
GemmArgs part_of(const GemmArgs& args, std::int64_t row, std::int64_t rows, std::int64_t column,
                 std::int64_t columns) {
  GemmArgs part = args;
  take(part.a, part.a_scales, !args.trans_a, row, rows);
  take(part.b, part.b_scales, args.trans_b, column, columns);
  if (args.is_gated()) part.gate = rows_of(args.gate, column, columns);
  part.c = columns_of(rows_of(args.c, row, rows), column, columns);
  if (args.bias) part.bias = elements_of(args.bias, column, columns);
  return part;
}

/// How much of C is computed at a time.
struct Part {
  std::int64_t rows, columns;

  Part(const GemmArgs& args, int threads) : rows(args.m()), columns(most_columns) {
    if (!args.is_gated()) return;
    if (shares_a(args, sum_columns(args), threads)) {
      const std::int64_t parts = (args.m() * args.k() + gated_chunk / 2) / gated_chunk;
      rows = round_up(divide_up(args.m(), std::max<std::int64_t>(1, parts)), HostMicro::rows);
      columns = args.n();
    } else {
      columns = std::max<std::int64_t>(
          8 * half_columns,
          largest_chunk / std::max<std::int64_t>(1, args.k()) / 2 / half_columns * half_columns);
    }
  }
};

/// Calls f with every part of the product.
template <class F>
void for_each_part(const GemmArgs& args, int threads, const F& f) {
  const Part part(args, threads);
  for (std::int64_t row = 0; row < args.m(); row += part.rows) {
    for (std::int64_t column = 0; column < args.n(); column += part.columns) {
      f(part_of(args, row, std::min(part.rows, args.m() - row), column,
                std::min(part.columns, args.n() - column)));
    }
  }
}

}  // namespace

bool is_shared(const GemmArgs& args) {
  if (args.is_gated()) return true;
  return args.c.dtype == Dtype::f32 && args.k() > 0 && args.n() > 0 &&
         args.m() >= 8 * HostMicro::rows;
}

template <class Exec>
std::size_t shared_workspace_bytes(const Exec& exec, const GemmArgs& args) {
  std::int64_t size = 0;
  for_each_part(args, exec.concurrency(), [&](const GemmArgs& part) {
    const SharedPlan<tile::VecOf<Exec>> plan(part, exec.concurrency());
    size = std::max(size, plan.packed_size() + exec.concurrency() * plan.thread_size());
  });
  return static_cast<std::size_t>(size) * sizeof(float);
}

template <class Exec>
void shared_part(const Exec& exec, const GemmArgs& args, Workspace workspace, const char* label) {
  using Vec = tile::VecOf<Exec>;
  using Index = Kokkos::IndexType<std::int64_t>;
  auto* packed = static_cast<float*>(workspace.data);
  const SharedPlan<Vec> plan(args, exec.concurrency());
  for (std::int64_t first = 0; first < args.k(); first += plan.chunk) {
    const std::int64_t layers = divide_up(std::min(plan.chunk, args.k() - first), plan.depth);
    Kokkos::parallel_for(label, Kokkos::RangePolicy<Exec, Index>(exec, 0, layers * plan.panels),
                         PackShared<Vec>{args, plan, first, packed});
    Kokkos::RangePolicy<Exec, Kokkos::Schedule<Kokkos::Dynamic>, Index> pieces(
        exec, 0, plan.row_items * plan.column_items);
    pieces.set_chunk_size(1);
    Kokkos::parallel_for(
        label, pieces,
        SharedProduct<Exec>{args, plan, first, packed, typename SharedProduct<Exec>::Token(exec),
                            packed + plan.packed_size()});
  }
}

template <class Exec>
void shared_product(const Exec& exec, const GemmArgs& args, Workspace workspace,
                    const char* label) {
  for_each_part(args, exec.concurrency(),
                [&](const GemmArgs& part) { shared_part(exec, part, workspace, label); });
}

#define KATT_INSTANTIATE_SHARED(Exec)                                              \
  template std::size_t shared_workspace_bytes<Exec>(const Exec&, const GemmArgs&); \
  template void shared_product<Exec>(const Exec&, const GemmArgs&, Workspace, const char*);

KATT_INSTANTIATE_SHARED(Host)

}  // namespace katt::linear::impl
