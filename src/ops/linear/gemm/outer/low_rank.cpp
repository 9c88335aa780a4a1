#include "ops/linear/gemm/outer/low_rank.hpp"

#include <algorithm>
#include <cstdint>

#include <Kokkos_Core.hpp>

#include "core/execution.hpp"
#include "ops/linear/gemm/scales.hpp"
#include "tile/extents.hpp"
#include "tile/rows/stream.hpp"

namespace katt::linear::impl {

namespace {

/// Rows of C that the registers hold sums for, over a group of columns.
template <class Unit>
constexpr int rows_at_once = Unit::lanes == 8 ? 4 : 8;

/// B in the order of its use: (group of columns, step, column), zeros beyond its columns. One item is
/// a group.
template <class Unit, class Vec>
struct PackGroups {
  GemmArgs args;
  typename Unit::Packed* packed;
  using Element = typename Unit::Element;

  void operator()(std::int64_t group) const {
    const std::int64_t k = args.k();
    const std::int64_t steps = divide_up(k, Unit::steps);
    const std::int64_t column = group * Unit::columns;
    const auto count = static_cast<int>(std::min<std::int64_t>(Unit::columns, args.n() - column));
    const auto* b = static_cast<const Element*>(args.b.data) + column;
    auto* to = packed + column * steps;
    for (std::int64_t s = 0; s < steps; ++s, to += Unit::columns) {
      const auto there = static_cast<int>(std::min<std::int64_t>(Unit::steps, k - s * Unit::steps));
      typename Unit::Operand operand[2];
      if (args.b_scales.are_there()) {
        Element scaled[Unit::steps * Unit::columns];
        scale_block<Vec>(args.b, args.b_scales, {s * Unit::steps, column, there, count}, scaled,
                         Unit::columns);
        Unit::load_part(operand, scaled, Unit::columns, count, there);
      } else {
        Unit::load_part(operand, b + s * Unit::steps * args.b.stride[0], args.b.stride[0], count,
                        there);
      }
      Unit::store_operand(to, operand[0]);
      Unit::store_operand(to + Unit::lanes, operand[1]);
    }
  }
};

/// Some rows of C, one run after the other.
template <class Unit, class Vec, class A, class C, bool Stream>
struct LowRankRows {
  static constexpr std::int64_t rows = 32;  ///< of an item
  GemmArgs args;
  const typename Unit::Packed* b;

  void operator()(std::int64_t item) const {
    const std::int64_t end = std::min((item + 1) * rows, args.m());
    std::int64_t row = item * rows;
    for (; row + rows_at_once<Unit> <= end; row += rows_at_once<Unit>) {
      multiply<rows_at_once<Unit>>(row);
    }
    for (; row < end; ++row) multiply<1>(row);
    if constexpr (Stream) tile::stream_fence();
  }

 private:
  template <int Rows>
  void multiply(std::int64_t row) const {
    const std::int64_t k = args.k();
    const std::int64_t steps = divide_up(k, Unit::steps);
    const std::int64_t stride = args.a.stride[0];
    typename Unit::Packed a[Rows * most_low_rank];
    for (std::int64_t s = 0; s < steps; ++s) {
      const auto there = static_cast<int>(std::min<std::int64_t>(Unit::steps, k - s * Unit::steps));
      const A* from = static_cast<const A*>(args.a.data) + s * Unit::steps * stride + row;
      for (int r = 0; r < Rows; ++r) a[s * Rows + r] = Unit::pack(from + r, stride, there);
    }
    C* c = static_cast<C*>(args.c.data) + row * args.c.stride[0];
    const auto* groups = b;
    for (std::int64_t column = 0; column < args.n(); column += Unit::columns, c += Unit::columns) {
      typename Unit::Sum sums[Rows][2];
#pragma GCC unroll 8
      for (int r = 0; r < Rows; ++r) sums[r][0] = sums[r][1] = Unit::zero();
      if (args.beta != 0.0F) ask(c, Rows);
      const auto* step = a;
      for (std::int64_t s = 0; s < steps; ++s, step += Rows, groups += Unit::columns) {
        const auto first = Unit::load_operand(groups);
        const auto second = Unit::load_operand(groups + Unit::lanes);
#pragma GCC unroll 8
        for (int r = 0; r < Rows; ++r) {
          const auto value = Unit::broadcast(step + r);
          sums[r][0] = Unit::add(sums[r][0], value, first);
          sums[r][1] = Unit::add(sums[r][1], value, second);
        }
      }
      const std::int64_t left = args.n() - column;
#pragma GCC unroll 8  // else the sums are an array in memory
      for (int r = 0; r < Rows; ++r) {
        C* to = c + r * args.c.stride[0];
        const Vec first = Unit::value(sums[r][0]);
        const Vec second = Unit::value(sums[r][1]);
        if (left >= Unit::columns) {
          tile::store_two_to<Stream>(to, updated(first, to, tile::WholeVector{}),
                                     updated(second, to + Unit::lanes, tile::WholeVector{}));
        } else {
          const tile::PartialVector low{
              static_cast<int>(std::min<std::int64_t>(Unit::lanes, left))};
          const tile::PartialVector high{static_cast<int>(left) - low.count};
          tile::store(to, updated(first, to, low), low);
          tile::store(to + low.count, updated(second, to + low.count, high), high);
        }
      }
    }
  }

  /// alpha · sum + beta · C.
  template <class Part>
  Vec updated(const Vec& sum, const C* c, Part part) const {
    const Vec value = Vec(args.alpha) * sum;
    return args.beta == 0.0F ? value : tile::fma(Vec(args.beta), tile::load<Vec>(c, part), value);
  }

  /// Asks for what the rows hold a while later; beyond their ends that is of no use and no harm.
  void ask(const C* c, int count) const {
    constexpr std::int64_t bytes_ahead = 1024;
    constexpr std::int64_t line = 64;
    for (int r = 0; r < count; ++r) {
      const auto at =
          reinterpret_cast<std::uintptr_t>(c + r * args.c.stride[0]) + std::uintptr_t{bytes_ahead};
      for (std::int64_t i = 0; i < static_cast<std::int64_t>(Unit::columns * sizeof(C));
           i += line) {
        __builtin_prefetch(reinterpret_cast<const void*>(at + static_cast<std::uintptr_t>(i)), 1,
                           2);
      }
    }
  }
};

}  // namespace

bool is_low_rank(const GemmArgs& args) {
  return args.trans_a && !args.trans_b && args.k() <= most_low_rank && args.k() > 0 &&
         args.bias.size() == 0 && !args.a_scales.are_there();
}

template <class Exec>
std::size_t low_rank_workspace_bytes(const GemmArgs& args, SkinnyUnit unit) {
  return visit_steps<tile::VecOf<Exec>>(args.b.dtype, unit, [&]<class Unit>() {
    return static_cast<std::size_t>(divide_up(args.n(), Unit::columns) * Unit::columns *
                                    divide_up(args.k(), Unit::steps)) *
           sizeof(typename Unit::Packed);
  });
}

template <class Exec>
void low_rank(const Exec& exec, const GemmArgs& args, SkinnyUnit unit, Workspace workspace,
              const char* label) {
  using Vec = tile::VecOf<Exec>;
  using Indices = Kokkos::IndexType<std::int64_t>;
  visit_steps<Vec>(args.b.dtype, unit, [&]<class Unit>() {
    auto* packed = static_cast<typename Unit::Packed*>(workspace.data);
    Kokkos::parallel_for(
        label, Kokkos::RangePolicy<Exec, Indices>(exec, 0, divide_up(args.n(), Unit::columns)),
        PackGroups<Unit, Vec>{args, packed});
    visit_packable<Unit>(args.a.dtype, [&]<class A>() {
      visit_dtype(args.c.dtype, [&]<class C>() {
        const auto launch = [&]<bool Stream>() {
          using Rows = LowRankRows<Unit, Vec, A, C, Stream>;
          Kokkos::RangePolicy<Exec, Kokkos::Schedule<Kokkos::Dynamic>, Indices> items(
              exec, 0, divide_up(args.m(), Rows::rows));
          items.set_chunk_size(1);
          Kokkos::parallel_for(label, items, Rows{args, packed});
        };
        if constexpr (tile::stores_whole_lines) {
          if (args.beta == 0.0F &&
              tile::should_stream<Exec>(static_cast<const C*>(args.c.data), args.m(), args.n(),
                                        args.c.stride[0])) {
            return launch.template operator()<true>();
          }
        }
        launch.template operator()<false>();
      });
    });
  });
}

#define KATT_INSTANTIATE_LOW_RANK(Exec)                                             \
  template std::size_t low_rank_workspace_bytes<Exec>(const GemmArgs&, SkinnyUnit); \
  template void low_rank<Exec>(const Exec&, const GemmArgs&, SkinnyUnit, Workspace, const char*);

KATT_INSTANTIATE_LOW_RANK(Host)

}  // namespace katt::linear::impl
