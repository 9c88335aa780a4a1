#include "ops/linear/gemm/inner/products.hpp"

#include <algorithm>
#include <cstdint>

#include <Kokkos_Core.hpp>

#include "core/execution.hpp"
#include "ops/linear/gemm/finish.hpp"
#include "ops/linear/gemm/inner/kernel.hpp"
#include "ops/linear/gemm/scales.hpp"
#include "tile/bf16/transpose.hpp"
#include "tile/extents.hpp"
#include "tile/rows/elementwise.hpp"

namespace katt::linear::impl {

namespace {

/// Where part i of `count` nearly equal ones of an extent begins.
constexpr std::int64_t begin_of(std::int64_t extent, std::int64_t count, std::int64_t i) {
  return extent * i / count;
}

/// How inner products are cut. A group of rows of B is multiplied block by block along k: a block of
/// the group, and those of A, stay in the second-level cache. So do the sums of a group, those of one
/// kernel after those of the one before: a kernel that loads from where stores of the last one agree in
/// twelve bits of their addresses would wait for them. A panel is a run of groups, the work of a thread
/// at a time.
template <class Unit>
struct InnerPlan {
  /// Rows of B: a multiple of all that a kernel takes at a time.
  static constexpr std::int64_t group = 12;
  /// Columns of C that are written at a time: groups that fill lines.
  static constexpr std::int64_t wide = 4 * group;
  /// Packed bytes of a row of A in a block. Few rows take B in runs as long as rows usually are; up to two
  /// kernels' rows wait for the memory, and those of a kernel fit in the first-level cache beside B. More rows
  /// wait for the arithmetic: on Zen 4 that pays for sums that are loaded and stored more rarely, and so it does
  /// where B is in a cache; cores that multiply twice as much a cycle would wait for a long block of A from
  /// their second-level cache. With AVX2, half as many a cycle, whole rows of a few tokens pay on any processor.
  std::int64_t block_bytes(bool is_cached) const {
    if (is_avx2) return m <= 4 ? 8192 : first_level_bytes / 4;
    if (!tile::is_zen) return 2048;
    if (is_cached || m <= 4) return 8192;
    if (m > 16) return tile::is_zen5 ? 4096 : 8192;
    return first_level_bytes / divide_up(m, a_blocks);
  }
  static constexpr bool is_avx2 = Unit::lanes == 8;
  static constexpr std::int64_t first_level_bytes = 18432;  ///< of it, for A
  /// Bytes of B a thread that are still in a cache when a single row comes again, with AVX2 up to four. In a model
  /// the next row finds what other layers left; on Zen a stream costs little where B is in a cache after all. In
  /// f32 with AVX2 it costs much there, and rows side by side little elsewhere.
  static constexpr std::int64_t cached_bytes =
      std::int64_t{is_avx2 && sizeof(typename Unit::Element) == 4 ? 8192
                   : tile::is_zen                                 ? 256
                                                                  : 2048}
      << 10;
  /// Bytes of B a thread that stay in its second-level cache where each thread takes the same rows at every call.
  static constexpr std::int64_t kept_bytes = std::int64_t{2} << 20;
  /// With AVX2 in f32 Intel's cores read several rows as fast as one, whose chain of sums takes longer, and Zen 3 reads
  /// them faster, up to two rows of A. Asked at run time: code for AVX2 runs on any processor.
  static bool foresees_rows_side_by_side(std::int64_t m) {
#if defined(__x86_64__)
    return is_avx2 && sizeof(typename Unit::Element) == 4 &&
           (__builtin_cpu_is("intel") != 0 || (m <= 2 && __builtin_cpu_is("znver3") != 0));
#else
    (void)m;
    return false;
#endif
  }
  /// Most packed bytes of A beside which the processor itself foresees a stream of B, where that is best left to
  /// it, and beside which a stream that prefetches rows does better than several rows side by side:
  /// more in Zen 5's larger first-level cache.
  static constexpr std::int64_t foreseen_bytes = tile::is_zen5 ? 32768 : 12288;
  static constexpr std::int64_t asked_bytes = tile::is_zen5 ? 28672 : 20480;
  static constexpr std::int64_t line_bytes =
      Unit::vectors * Unit::elements * static_cast<std::int64_t>(sizeof(typename Unit::Packed));

  std::int64_t m, n, k;
  std::int64_t lines;       ///< of a row of B
  bool is_stream;           ///< B row after row, each whole: one stream for the memory
  bool asks;                ///< for B ahead of its use
  std::int64_t blocks;      ///< along k
  std::int64_t a_blocks;    ///< of rows of A
  std::int64_t panel_rows;  ///< of B
  bool is_kept;             ///< a panel a thread, the same at every call
  bool packs;

  InnerPlan(const GemmArgs& args, int threads)
      : m(args.m()),
        n(args.n()),
        k(args.k()),
        lines(divide_up(k, Unit::line)),
        a_blocks(divide_up(m, InnerShape<Unit>::most_a)) {
    const std::int64_t row_bytes = lines * line_bytes;
    const std::int64_t b_bytes = n * k * static_cast<std::int64_t>(sizeof(typename Unit::Element));
    const bool is_cached = m <= (is_avx2 ? 4 : 1) &&
                           (b_bytes <= cached_bytes * threads || foresees_rows_side_by_side(m));
    const bool is_foreseen = Unit::is_foreseen && m == 1 && row_bytes <= foreseen_bytes;
    const bool is_asked = tile::is_zen && m <= Unit::most_asked && m * row_bytes <= asked_bytes;
    is_stream = !is_cached && (is_foreseen || is_asked);
    asks = !is_cached && !is_foreseen;
    blocks =
        is_stream ? 1 : std::max<std::int64_t>(1, divide_up(row_bytes, block_bytes(is_cached)));
    is_kept = m <= 4 && b_bytes <= kept_bytes * threads;
    // Enough panels that a thread whose processor is taken keeps no other one waiting for long.
    const std::int64_t wanted = is_kept ? threads : threads > 1 ? 8 * std::int64_t{threads} : 1;
    panel_rows = divide_up(divide_up(n, group), wanted) * group;
    if (!is_kept && panel_rows > wide) panel_rows = divide_up(panel_rows, wide) * wide;
    // A single row is its own packed form where lines are whole.
    packs = m != 1 || args.a.dtype != dtype_of<typename Unit::Packed> || k % Unit::line != 0 ||
            args.a_scales.are_there();
  }

  std::int64_t panels() const { return panel_rows == 0 ? 0 : divide_up(n, panel_rows); }
  std::int64_t packed_bytes() const {
    return packs ? divide_up(m * lines * line_bytes, 64) * 64 : 0;
  }
  std::int64_t sum_elements() const { return group * m * Unit::lanes; }
};

/// A in the order in which the kernels read it: (block, block of rows, line, vector, row, elements).
/// One item is a row in a block.
template <class Unit, class Vec, class T>
struct PackA {
  using Packed = typename Unit::Packed;
  InnerPlan<Unit> plan;
  ConstTensorRef<2> a;
  ElementScales scales;
  Packed* packed;

  void operator()(std::int64_t item) const {
    constexpr std::int64_t line = Unit::vectors * Unit::elements;
    const std::int64_t row = item % plan.m;
    const std::int64_t block = item / plan.m;
    const std::int64_t begin = begin_of(plan.lines, plan.blocks, block);
    const std::int64_t count = begin_of(plan.lines, plan.blocks, block + 1) - begin;
    // The block of rows that holds this one: begin_of(m, a_blocks, b) ≤ row.
    const std::int64_t b = (plan.a_blocks * (row + 1) - 1) / plan.m;
    const std::int64_t first = begin_of(plan.m, plan.a_blocks, b);
    const std::int64_t rows = begin_of(plan.m, plan.a_blocks, b + 1) - first;
    Packed* to = packed + (begin * plan.m + first * count) * line + (row - first) * Unit::elements;
    for (std::int64_t v = 0; v < count * Unit::vectors; ++v, to += rows * Unit::elements) {
      const std::int64_t at = begin * line + v * Unit::elements;
      const T* from = static_cast<const T*>(a.data) + row * a.stride[0] + at;
      const auto left = std::clamp<std::int64_t>(plan.k - at, 0, Unit::elements);
      if (scales.are_there()) {
        T scaled[Unit::elements];
        scale_block<Vec>(a, scales, {row, at, 1, left}, scaled, Unit::elements);
        put(scaled, left, to);
      } else {
        put(from, left, to);
      }
    }
  }

 private:
  static void put(const T* from, std::int64_t left, Packed* to) {
    if constexpr (std::is_same_v<T, Packed>) {
      std::fill(std::copy_n(from, left, to), to + Unit::elements, Packed{});
    } else if (left == Unit::elements) {
      tile::store(to, tile::load<Vec>(from));
    } else {
      tile::store(to, tile::load<Vec>(from, tile::PartialVector{static_cast<int>(left)}));
    }
  }
};

/// A panel of rows of B.
template <class Unit, class Exec>
struct InnerPanel {
  using Vec = tile::VecOf<Exec>;
  using Element = typename Unit::Element;
  using Token =
      Kokkos::Experimental::UniqueToken<Exec, Kokkos::Experimental::UniqueTokenScope::Instance>;
  static constexpr std::int64_t group = InnerPlan<Unit>::group;
  static constexpr std::int64_t wide = InnerPlan<Unit>::wide;

  GemmArgs args;
  InnerPlan<Unit> plan;
  const typename Unit::Packed* a;
  Token slots;
  float* workspace;  ///< sums of every thread

  void operator()(std::int64_t item) const {
    const int slot = slots.acquire();
    float* sums = workspace + slot * plan.sum_elements();
    const std::int64_t end = std::min(plan.n, (item + 1) * plan.panel_rows);
    constexpr std::int64_t room = most_inner_rows * wide;
    float columns[room];  // (m, width)
    float gates[room];
    // Rows of the gate and of B alternate, in few turns, since each is a stream of its own.
    const std::int64_t width = args.is_gated() ? room / plan.m / group * group : wide;
    for (std::int64_t row = item * plan.panel_rows; row < end; row += width) {
      const std::int64_t count = std::min(width, end - row);
      const std::int64_t left = end - row - count;
      const Rows rows{row_of(args.b, row), count};
      if (args.is_gated()) {
        multiply_rows({row_of(args.gate, row), count}, rows, sums, gates, width);
        multiply_rows(rows, {row_of(args.gate, row + count), left}, sums, columns, width);
        finish_gated_block<Vec>(args, gates, columns, width, 0, row, plan.m, count);
      } else {
        multiply_rows(rows, {row_of(args.b, row + count), left}, sums, columns, width);
        finish_block<Vec>(args, columns, width, 0, row, plan.m, count, args.beta);
      }
    }
    slots.release(slot);
  }

 private:
  /// Rows of B, or of the gate.
  struct Rows {
    const Element* first;
    std::int64_t count;
  };
  static const Element* row_of(const ConstTensorRef<2>& matrix, std::int64_t row) {
    return static_cast<const Element*>(matrix.data) + row * matrix.stride[0];
  }

  /// columns(r, j), rows of which are `width` apart; `next` are those after these.
  void multiply_rows(const Rows& rows, const Rows& next, float* sums, float* columns,
                     std::int64_t width) const {
    for (std::int64_t j = 0; j < rows.count; j += group) {
      const auto from = [&](const Rows& all, std::int64_t begin) {
        return Rows{all.first + begin * args.b.stride[0], all.count - begin};
      };
      const bool is_last = j + group >= rows.count;
      const Rows these{from(rows, j).first, std::min(group, rows.count - j)};
      for (std::int64_t block = 0; block < plan.blocks; ++block) {
        multiply(these, is_last ? next : from(rows, j + group), block, sums);
      }
      add_lanes(these.count, sums, columns + j, width);
    }
  }

  /// All rows of A against a group of rows of B, in a block along k. `next` are the rows after it.
  void multiply(const Rows& these, const Rows& next, std::int64_t block, float* sums) const {
    const std::int64_t rows = these.count;
    const std::int64_t begin = begin_of(plan.lines, plan.blocks, block);
    const std::int64_t count = begin_of(plan.lines, plan.blocks, block + 1) - begin;
    const bool is_last = block + 1 == plan.blocks;
    InnerPass<Unit> pass{};
    pass.stride = args.b.stride[0];
    pass.lines = count;
    pass.last = static_cast<int>(is_last ? plan.k - (plan.lines - 1) * Unit::line : Unit::line);
    pass.resume = block > 0;
    for (std::int64_t b = 0; b < plan.a_blocks; ++b) {
      const std::int64_t first = begin_of(plan.m, plan.a_blocks, b);
      const auto rows_of_a = static_cast<int>(begin_of(plan.m, plan.a_blocks, b + 1) - first);
      pass.a = a + (begin * plan.m + first * count) * Unit::vectors * Unit::elements;
      pass.sum_stride = rows_of_a * Unit::lanes;
      // Every block of A asks for its share of what comes next, line by line, so that the memory is never
      // idle and is never asked for more than it gives.
      pass.ahead_first = b;
      pass.ahead_every = plan.a_blocks;
      const std::int64_t at_a_time = InnerShape<Unit>::rows_of_b(rows_of_a);
      for (std::int64_t j = 0; j < rows;) {
        const bool one = plan.is_stream || rows - j < at_a_time;
        pass.b = these.first + j * args.b.stride[0] + begin * Unit::line;
        pass.sums = sums + (first * group + j * rows_of_a) * Unit::lanes;
        pass.ahead = nullptr;
        if (plan.asks && !is_last) pass.ahead = pass.b + count * Unit::line;
        if (plan.asks && is_last && j < next.count) {
          pass.ahead = next.first + j * args.b.stride[0];
        }
        InnerKernels<Unit>::of(rows_of_a, one)(pass);
        j += one ? 1 : at_a_time;
      }
    }
  }

  /// columns(r, j) = alpha · the sum over the lanes of a sum of the group.
  void add_lanes(std::int64_t rows, const float* sums, float* columns, std::int64_t width) const {
    for (std::int64_t b = 0; b < plan.a_blocks; ++b) {
      const std::int64_t first = begin_of(plan.m, plan.a_blocks, b);
      const std::int64_t rows_of_a = begin_of(plan.m, plan.a_blocks, b + 1) - first;
      const float* of_block = sums + first * group * Unit::lanes;
      float* to = columns + first * width;
      if (rows_of_a < 4) {
        add_lanes_of<1>(rows, rows_of_a, of_block, to, width);
      } else {
        add_lanes_of<4>(rows, rows_of_a, of_block, to, width);
      }
    }
  }

  /// The same of a block of rows of A, sixteen sums at a time, of High rows.
  template <int High>
  void add_lanes_of(std::int64_t rows, std::int64_t rows_of_a, const float* sums, float* columns,
                    std::int64_t width) const {
    constexpr int square = 16;
    constexpr int along = square / High;
    for (std::int64_t r = 0; r < rows_of_a; r += High) {
      const std::int64_t high = std::min<std::int64_t>(High, rows_of_a - r);
      for (std::int64_t j = 0; j < rows; j += along) {
        const std::int64_t count = std::min<std::int64_t>(along, rows - j);
        Vec vectors[square];
#pragma GCC unroll 16
        for (int i = 0; i < square; ++i) {
          const bool is_there = i / along < high && i % along < count;
          const float* from = sums + ((j + i % along) * rows_of_a + r + i / along) * Unit::lanes;
          vectors[i] = is_there ? tile::load<Vec>(from) : Vec(0.0F);
        }
        float total[square];
        tile::lane_sums(vectors, total);
        for (float& value : total) value *= args.alpha;
        for (std::int64_t i = 0; i < high; ++i) {
          float* to = columns + (r + i) * width + j;
          if (count == along) {
            std::copy_n(total + i * along, along, to);
          } else {
            for (std::int64_t c = 0; c < count; ++c) to[c] = total[i * along + c];
          }
        }
      }
    }
  }
};

/// Calls f.operator()<Unit>() for the unit of a product.
template <class Exec, class F>
decltype(auto) visit_lines(const GemmArgs& args, [[maybe_unused]] SkinnyUnit unit, const F& f) {
#if defined(KATT_BF16_PANELS)
  if (unit == SkinnyUnit::dots) return f.template operator()<DotLines>();
#endif
  return visit_dtype(args.b.dtype, [&]<class T>() -> decltype(auto) {
    return f.template operator()<WidenedLines<tile::VecOf<Exec>, T>>();
  });
}

}  // namespace

bool is_inner(const GemmArgs& args) {
  return args.trans_b && !args.trans_a && args.m() <= most_inner_rows && !args.b_scales.are_there();
}

template <class Exec>
std::size_t inner_workspace_bytes(const Exec& exec, const GemmArgs& args, SkinnyUnit unit) {
  return visit_lines<Exec>(args, unit, [&]<class Unit>() {
    const InnerPlan<Unit> plan(args, exec.concurrency());
    const auto sums = static_cast<std::size_t>(plan.sum_elements()) * sizeof(float);
    return static_cast<std::size_t>(plan.packed_bytes()) +
           sums * static_cast<std::size_t>(exec.concurrency());
  });
}

template <class Exec>
void inner_products(const Exec& exec, const GemmArgs& args, SkinnyUnit unit, Workspace workspace,
                    const char* label) {
  using Vec = tile::VecOf<Exec>;
  using Indices = Kokkos::IndexType<std::int64_t>;
  visit_lines<Exec>(args, unit, [&]<class Unit>() {
    using Packed = typename Unit::Packed;
    const InnerPlan<Unit> plan(args, exec.concurrency());
    const auto* a = static_cast<const Packed*>(args.a.data);
    if (plan.packs) {
      auto* packed = static_cast<Packed*>(workspace.data);
      visit_dtype(args.a.dtype, [&]<class T>() {
        // Dot products take bf16 alone.
        if constexpr (std::is_same_v<Packed, float> || std::is_same_v<T, Packed>) {
          Kokkos::parallel_for(label,
                               Kokkos::RangePolicy<Exec, Indices>(exec, 0, plan.m * plan.blocks),
                               PackA<Unit, Vec, T>{plan, args.a, args.a_scales, packed});
        }
      });
      a = packed;
    }
    auto* sums =
        reinterpret_cast<float*>(static_cast<std::byte*>(workspace.data) + plan.packed_bytes());
    const auto run = [&]<class Schedule>(Schedule) {
      Kokkos::RangePolicy<Exec, Schedule, Indices> policy(exec, 0, plan.panels());
      policy.set_chunk_size(1);
      using Panel = InnerPanel<Unit, Exec>;
      Kokkos::parallel_for(label, policy, Panel{args, plan, a, typename Panel::Token(exec), sums});
    };
    plan.is_kept ? run(Kokkos::Schedule<Kokkos::Static>())
                 : run(Kokkos::Schedule<Kokkos::Dynamic>());
  });
}

#define KATT_INSTANTIATE_INNER(Exec)                                                          \
  template std::size_t inner_workspace_bytes<Exec>(const Exec&, const GemmArgs&, SkinnyUnit); \
  template void inner_products<Exec>(const Exec&, const GemmArgs&, SkinnyUnit, Workspace,     \
                                     const char*);

KATT_INSTANTIATE_INNER(Host)

}  // namespace katt::linear::impl
