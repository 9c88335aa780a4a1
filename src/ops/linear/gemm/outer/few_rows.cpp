#include "ops/linear/gemm/outer/few_rows.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <utility>

#include <Kokkos_Core.hpp>

#include "core/execution.hpp"
#include "ops/linear/gemm/finish.hpp"
#include "tile/extents.hpp"

namespace katt::linear::impl {

namespace {

/// How a product is cut: a function of n, k and the dtypes. An item is a slice of k over a chunk of
/// columns; it has sums of its own.
template <class Unit>
struct FewRowsPlan {
  /// Rows of A that the registers hold sums for.
  static constexpr int most_rows = Unit::lanes == 8 ? 4 : 8;
  /// Bytes of a row of B in a chunk: a run that the memory serves well.
  static constexpr std::int64_t chunk_bytes = 2048;
  /// Packed steps that a kernel adds to sums in registers: few where the memory is the limit, whose runs
  /// take turns; many where sums of many rows come from the second-level cache.
  static constexpr std::int64_t shortest_block = 16, longest_block = 64;
  static constexpr std::int64_t shortest_slice = 256;  ///< in packed steps
  static constexpr std::int64_t wanted_items = 32;     ///< for many threads, and not many sums
  static constexpr std::int64_t longest_chunk =
      chunk_bytes / static_cast<std::int64_t>(sizeof(typename Unit::Element));

  std::int64_t m, n, k;
  std::int64_t steps;            ///< packed ones of k
  std::int64_t chunks, columns;  ///< of a chunk: a multiple of two groups
  std::int64_t slices, depth;    ///< of a slice, in packed steps
  std::int64_t row_blocks;
  std::int64_t block;

  explicit FewRowsPlan(const GemmArgs& args)
      : m(args.m()),
        n(args.n()),
        k(args.k()),
        steps(divide_up(k, Unit::steps)),
        row_blocks(divide_up(m, most_rows)),
        block(m > 16 ? longest_block : shortest_block) {
    columns =
        divide_up(divide_up(n, divide_up(n, longest_chunk)), 2 * Unit::columns) * 2 * Unit::columns;
    chunks = divide_up(n, columns);
    const std::int64_t wanted = std::clamp<std::int64_t>(divide_up(wanted_items, chunks), 1,
                                                         divide_up(steps, shortest_slice));
    depth = divide_up(divide_up(steps, wanted), longest_block) * longest_block;
    slices = divide_up(steps, depth);
  }

  std::int64_t first_row(std::int64_t row_block) const { return m * row_block / row_blocks; }
  std::int64_t area() const { return m * columns; }  ///< sums of an item
  std::int64_t packed() const { return divide_up(m * steps, 16) * 16; }
};

/// A in the order of its use: (block of rows, step, row).
template <class Unit, class T>
struct PackRows {
  FewRowsPlan<Unit> plan;
  const T* a;
  std::int64_t stride;
  typename Unit::Packed* packed;
  static constexpr std::int64_t run = 256;

  std::int64_t items() const { return plan.row_blocks * divide_up(plan.steps, run); }
  void operator()(std::int64_t item) const {
    const std::int64_t begin = item / plan.row_blocks * run;
    const std::int64_t end = std::min(begin + run, plan.steps);
    const std::int64_t first = plan.first_row(item % plan.row_blocks);
    const std::int64_t rows = plan.first_row(item % plan.row_blocks + 1) - first;
    for (std::int64_t r = 0; r < rows; ++r) {
      const T* row = a + (first + r) * stride;
      auto* to = packed + first * plan.steps + r;
      for (std::int64_t s = begin; s < end; ++s) {
        to[s * rows] = Unit::pack(
            row + s * Unit::steps, 1,
            static_cast<int>(std::min<std::int64_t>(Unit::steps, plan.k - s * Unit::steps)));
      }
    }
  }
};

/// Some steps of a block of rows over one or two groups of columns.
template <class Unit>
struct FewRowsPass {
  const typename Unit::Packed* a;   ///< (steps, rows)
  const typename Unit::Element* b;  ///< the first row
  std::int64_t stride;              ///< of B
  std::int64_t steps;
  float* sums;  ///< (groups, rows, columns of a group)
  bool resume;  ///< add to the sums that are there
  /// The same columns a block later, and of which steps to ask for them: so many apart, from
  /// `ahead_first` on; null: none.
  const typename Unit::Element* ahead;
  std::int64_t ahead_first, ahead_every;
  int count;  ///< columns of the group, or less: its end is beyond those of B
  int last;   ///< steps of k in the last packed one
  /// One group of B as the products take it: (steps, 2 vectors), written or read where the kernel keeps it.
  typename Unit::Packed* kept;
};

/// Where a kernel finds B: where it lies, the first block of rows of A keeping it as the products take it for the
/// others or not, or as kept.
enum class RowsOfB : std::uint8_t { in_place, kept_for_others, kept };

template <class Unit, int Rows, int Groups, RowsOfB Source>
void few_rows_kernel(const FewRowsPass<Unit>& pass) {
  static_assert(Groups == 1 || Source == RowsOfB::in_place);
  using Operand = typename Unit::Operand;
  constexpr int vectors = 2 * Groups;
  typename Unit::Sum sums[Rows][vectors];
#pragma GCC unroll 32
  for (int i = 0; i < Rows * vectors; ++i) {
    const int row = i / vectors;
    const int v = i % vectors;
    const float* from = pass.sums + ((v / 2 * Rows + row) * 2 + v % 2) * Unit::lanes;
    sums[row][v] = pass.resume ? Unit::load_sum(from) : Unit::zero();
  }
  const auto* a = pass.a;
  const auto* b = pass.b;
  auto* kept = pass.kept;
  const auto load_kept = [&](Operand(&operand)[2]) __attribute__((always_inline)) {
    for (int half = 0; half < 2; ++half) {
      operand[half] = tile::in_register(Unit::load_operand(kept + half * Unit::lanes));
    }
  };
  const auto add = [&](const Operand(&operand)[Groups][2]) __attribute__((always_inline)) {
    if constexpr (Source == RowsOfB::kept_for_others) {
      for (int half = 0; half < 2; ++half) {
        Unit::store_operand(kept + half * Unit::lanes, operand[0][half]);
      }
    }
    kept += 2 * Unit::lanes;
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r) {
      const Operand row = Unit::broadcast(a + r);
#pragma GCC unroll 4
      for (int v = 0; v < vectors; ++v) {
        sums[r][v] = Unit::add(sums[r][v], row, operand[v / 2][v % 2]);
      }
    }
    a += Rows;
    b += Unit::steps * pass.stride;
  };
  const bool is_ragged = pass.count != Unit::columns;
  const std::int64_t whole = is_ragged ? 0 : pass.steps - (pass.last != Unit::steps ? 1 : 0);
  const auto* ahead = pass.ahead;
  std::int64_t asks = ahead == nullptr ? whole : pass.ahead_first;
  for (std::int64_t s = 0; s < whole; ++s) {
    if (s == asks) {
      constexpr int line = 64 / static_cast<int>(sizeof(typename Unit::Element));
#pragma GCC unroll 2
      for (int step = 0; step < Unit::steps; ++step) {
        const auto* row = ahead + (s * Unit::steps + step) * pass.stride;
#pragma GCC unroll 8
        for (int i = 0; i < Groups * Unit::columns; i += line) __builtin_prefetch(row + i, 0, 2);
      }
      asks += pass.ahead_every;
    }
    Operand operand[Groups][2];
    if constexpr (Source == RowsOfB::kept) {
      load_kept(operand[0]);
    } else {
#pragma GCC unroll 2
      for (int g = 0; g < Groups; ++g) Unit::load(operand[g], b + g * Unit::columns, pass.stride);
    }
    add(operand);
  }
  for (std::int64_t s = whole; s < pass.steps; ++s) {
    Operand operand[Groups][2];
    for (int g = 0; g < Groups; ++g) {
      if constexpr (Source == RowsOfB::kept) {
        load_kept(operand[g]);
      } else {
        Unit::load_part(operand[g], b + g * Unit::columns, pass.stride, pass.count,
                        s + 1 == pass.steps ? pass.last : Unit::steps);
      }
    }
    add(operand);
  }
#pragma GCC unroll 32
  for (int i = 0; i < Rows * vectors; ++i) {
    const int row = i / vectors;
    const int v = i % vectors;
    Unit::store_sum(pass.sums + ((v / 2 * Rows + row) * 2 + v % 2) * Unit::lanes, sums[row][v]);
  }
}

/// Most rows that are multiplied with two groups at a time, for chains enough.
constexpr int most_of_two_groups = 4;

/// The kernel for so many rows, with B where it is found.
template <class Unit, int Groups, RowsOfB Source>
auto few_rows_kernel_of(std::int64_t rows) {
  using Kernel = void (*)(const FewRowsPass<Unit>&);
  constexpr int most = Groups == 1 ? FewRowsPlan<Unit>::most_rows : most_of_two_groups;
  static constexpr auto kernels = []<int... R>(std::integer_sequence<int, R...>) {
    return std::array<Kernel, most>{few_rows_kernel<Unit, R + 1, Groups, Source>...};
  }
  (std::make_integer_sequence<int, most>{});
  return kernels[static_cast<std::size_t>(rows - 1)];
}

/// A slice of k over a chunk of columns.
template <class Unit>
struct FewRowsItem {
  using Element = typename Unit::Element;
  GemmArgs args;
  FewRowsPlan<Unit> plan;
  const typename Unit::Packed* a;
  float* sums;  ///< (items, sums of one)

  void operator()(std::int64_t item) const {
    const std::int64_t column = item / plan.slices * plan.columns;
    const std::int64_t begin = item % plan.slices * plan.depth;
    const std::int64_t end = std::min(begin + plan.depth, plan.steps);
    const std::int64_t columns = std::min(plan.columns, plan.n - column);
    float* area = sums + item * plan.area();
    const bool few = plan.first_row(1) <= most_of_two_groups && plan.row_blocks == 1;
    const bool keeps = keeps_rows();
    alignas(64) typename Unit::Packed kept[FewRowsPlan<Unit>::longest_block * 2 * Unit::lanes];
    FewRowsPass<Unit> pass{};
    pass.kept = kept;
    pass.stride = args.b.stride[0];
    pass.ahead_every = plan.row_blocks;
    for (std::int64_t s = begin; s < end; s += plan.block) {
      pass.steps = std::min(plan.block, end - s);
      pass.resume = s > begin;
      const bool is_last = s + pass.steps == plan.steps;
      pass.last = static_cast<int>(is_last ? plan.k - (plan.steps - 1) * Unit::steps
                                           : std::int64_t{Unit::steps});
      const Element* rows_of_b =
          static_cast<const Element*>(args.b.data) + s * Unit::steps * pass.stride + column;
      for (std::int64_t j = 0; j < columns;) {
        const bool two = few && columns - j >= 2 * Unit::columns;
        pass.count = static_cast<int>(std::min<std::int64_t>(Unit::columns, columns - j));
        pass.b = rows_of_b + j;
        // A block of whole length follows, or none is asked for.
        const bool asks = s + 2 * plan.block <= end && (s + 2 * plan.block) * Unit::steps <= plan.k;
        pass.ahead = asks ? pass.b + plan.block * Unit::steps * pass.stride : nullptr;
        for (std::int64_t block = 0; block < plan.row_blocks; ++block) {
          const std::int64_t first = plan.first_row(block);
          const std::int64_t rows = plan.first_row(block + 1) - first;
          pass.a = a + first * plan.steps + s * rows;
          pass.sums = area + first * plan.columns + j * rows;
          pass.ahead_first = block;
          const auto kernel = two      ? few_rows_kernel_of<Unit, 2, RowsOfB::in_place>(rows)
                              : !keeps ? few_rows_kernel_of<Unit, 1, RowsOfB::in_place>(rows)
                              : block == 0
                                  ? few_rows_kernel_of<Unit, 1, RowsOfB::kept_for_others>(rows)
                                  : few_rows_kernel_of<Unit, 1, RowsOfB::kept>(rows);
          kernel(pass);
        }
        j += two ? 2 * Unit::columns : Unit::columns;
      }
    }
  }

 private:
  /// Rows half a page apart, or whole pages, meet in two sets of a first-level cache, so that every block of rows
  /// of A would bring a group of B from the second level again. Else keeping it pays where f32 is loaded for many
  /// rows: a kept row is a line apart.
  bool keeps_rows() const {
    constexpr std::int64_t meeting = 2048;
    const auto row_bytes = args.b.stride[0] * static_cast<std::int64_t>(sizeof(Element));
    if (std::is_same_v<Element, float> && plan.m > 16) return true;
    return row_bytes % meeting == 0 && plan.m > (Unit::steps == 1 ? 16 : 8);
  }
};

/// Adds the slices of a row in a chunk, and writes it.
template <class Unit, class Vec>
struct FewRowsFinish {
  GemmArgs args;
  FewRowsPlan<Unit> plan;
  const float* sums;

  void operator()(std::int64_t item) const {
    const std::int64_t row = item % plan.m;
    const std::int64_t chunk = item / plan.m;
    const std::int64_t columns = std::min(plan.columns, plan.n - chunk * plan.columns);
    // The block of rows that holds this one: first_row(b) ≤ row.
    const std::int64_t b = (plan.row_blocks * (row + 1) - 1) / plan.m;
    const std::int64_t first = plan.first_row(b);
    const std::int64_t rows = plan.first_row(b + 1) - first;
    alignas(64) float line[FewRowsPlan<Unit>::longest_chunk + 2 * Unit::columns];
    const Vec alpha(args.alpha);
    for (std::int64_t j = 0; j < columns; j += Unit::columns) {
      const float* from = sums + chunk * plan.slices * plan.area() + first * plan.columns +
                          j * rows + (row - first) * Unit::columns;
      for (int v = 0; v < Unit::columns; v += Unit::lanes) {
        Vec total = tile::load<Vec>(from + v);
        for (std::int64_t s = 1; s < plan.slices; ++s) {
          total = total + tile::load<Vec>(from + s * plan.area() + v);
        }
        tile::store(line + j + v, alpha * total);
      }
    }
    finish_block<Vec>(args, line, columns, row, chunk * plan.columns, 1, columns, args.beta);
  }
};

}  // namespace

bool is_few_rows(const GemmArgs& args) {
  return !args.trans_a && !args.trans_b && args.m() <= most_few_rows && args.m() > 0 &&
         args.n() > 0 && args.k() > 0 && !args.has_scales();
}

template <class Exec>
std::size_t few_rows_workspace_bytes(const GemmArgs& args, SkinnyUnit unit) {
  return visit_steps<tile::VecOf<Exec>>(args.b.dtype, unit, [&]<class Unit>() {
    const FewRowsPlan<Unit> plan(args);
    return static_cast<std::size_t>(plan.packed() + plan.chunks * plan.slices * plan.area()) *
           sizeof(float);
  });
}

template <class Exec>
void few_rows(const Exec& exec, const GemmArgs& args, SkinnyUnit unit, Workspace workspace,
              const char* label) {
  using Vec = tile::VecOf<Exec>;
  using Indices = Kokkos::IndexType<std::int64_t>;
  visit_steps<Vec>(args.b.dtype, unit, [&]<class Unit>() {
    using Packed = typename Unit::Packed;
    static_assert(sizeof(Packed) == sizeof(float));
    const FewRowsPlan<Unit> plan(args);
    auto* packed = static_cast<Packed*>(workspace.data);
    auto* sums = static_cast<float*>(workspace.data) + plan.packed();
    visit_packable<Unit>(args.a.dtype, [&]<class T>() {
      const PackRows<Unit, T> pack{plan, static_cast<const T*>(args.a.data), args.a.stride[0],
                                   packed};
      Kokkos::parallel_for(label, Kokkos::RangePolicy<Exec, Indices>(exec, 0, pack.items()), pack);
    });
    Kokkos::RangePolicy<Exec, Kokkos::Schedule<Kokkos::Dynamic>, Indices> items(
        exec, 0, plan.chunks * plan.slices);
    items.set_chunk_size(1);
    Kokkos::parallel_for(label, items, FewRowsItem<Unit>{args, plan, packed, sums});
    Kokkos::parallel_for(label, Kokkos::RangePolicy<Exec, Indices>(exec, 0, plan.chunks * plan.m),
                         FewRowsFinish<Unit, Vec>{args, plan, sums});
  });
}

#define KATT_INSTANTIATE_FEW_ROWS(Exec)                                             \
  template std::size_t few_rows_workspace_bytes<Exec>(const GemmArgs&, SkinnyUnit); \
  template void few_rows<Exec>(const Exec&, const GemmArgs&, SkinnyUnit, Workspace, const char*);

KATT_INSTANTIATE_FEW_ROWS(Host)

}  // namespace katt::linear::impl
