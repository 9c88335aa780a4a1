#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "core/thread_slot.hpp"
#include "ops/linear/gemm/bf16/bf16.hpp"
#include "ops/linear/gemm/gemm.hpp"
#include "tile/bf16/bf16_units.hpp"
#include "tile/extents.hpp"
#include "tile/vec/vec.hpp"

/// How the products of gemm/bf16/bf16.cpp are cut into blocks, strips and passes.
namespace katt::linear::impl {

/// Rows or columns of C that a strip holds: two panels, so that four accumulators take four products
/// for four loads.
inline constexpr std::int64_t strip = 32;
inline constexpr std::int64_t depth_of_panel = 32;

/// How a product is cut. One of its factors, the left one of L(i, k) · R(k, j), fills panels row by
/// row, the other one pairs of rows at a time. So a factor whose rows run along k is copied where
/// it is on the left and transposed where it is on the right; one whose rows run across k is
/// transposed on the left. Where that saves transpositions, Cᵀ = op(B)ᵀ · op(A)ᵀ is computed.
///
/// The factor that needs transposing ("resident") is packed first, as a whole or, where it is
/// large, chunk by chunk. A block of it then stays in the second-level cache, with the sums of a
/// block of C, while strips of the other factor ("streamed") are packed into the first-level cache
/// as they pass by. So a strip is short, and long sums are taken in passes over k. Rows of a
/// streamed left factor are read from where they lie ("direct"): by the dot products, which broadcast
/// pairs, where there is one pass or eight rows that are pages apart leave room in a set of the
/// first-level cache, and by AMX where the resident factor is a single strip, as in generation, so that
/// every streamed element is used once. A gated product has its halves as one factor, of which a strip has a
/// panel of each.
struct Bf16Plan {
  bool swapped = false;                                 ///< the left factor is op(B)ᵀ
  bool left_resident = false;                           ///< else the right one is
  std::int64_t resident = 0, streamed = 0;              ///< extents
  std::int64_t chunk = 0;                               ///< of resident, packed at one time
  std::int64_t resident_block = 0, streamed_block = 0;  ///< of C; all are multiples of a strip
  std::int64_t depth = 0;                               ///< steps of k of a pass
  std::int64_t passes = 0;
  bool direct = false;

  static constexpr std::int64_t largest_chunk_bytes = std::int64_t{8} << 20;
  /// Rows and columns of a block of C, so that its sums stay in the second-level cache: 2 MiB where
  /// there is AMX, else 1 MiB or less.
  static std::int64_t largest_streamed(UnitName unit) { return unit == UnitName::amx ? 512 : 256; }
  static std::int64_t largest_resident(UnitName unit, bool far) {
    if (unit == UnitName::amx || tile::is_zen5) return 512;
    return far ? 320 : 256;
  }
  static constexpr std::int64_t largest_depth = 512;
  /// Where thousands of streamed rows run across k, as in gradients of weights, every strip comes from memory,
  /// a line of each row: dot products do best with short strips that more of the resident factor meets.
  static constexpr std::int64_t depth_of_far = 256;
  static bool is_far(UnitName unit, bool streamed_along, std::int64_t k) {
    return unit == UnitName::dot && !streamed_along && k > 2048;
  }
  /// Zen 5: twelve ways of a set, eight of Zen 4.
  static constexpr std::int64_t largest_direct = tile::is_zen5 ? INT64_MAX : largest_depth;

  static Bf16Plan of(const GemmArgs& args, UnitName unit, int threads, bool may_be_direct) {
    const std::int64_t m = args.m();
    const std::int64_t n = args.is_gated() ? 2 * round_up(args.n(), strip / 2) : args.n();
    const std::int64_t k = args.k();
    const bool a_along = !args.trans_a;
    const bool b_along = args.trans_b;
    // Vectors that are transposed; a vector of C holds half as many elements as one of a factor.
    const auto transposed = [&](bool left_along, bool right_along, std::int64_t left,
                                std::int64_t right) {
      return ((left_along ? 0 : left) + (right_along ? right : 0)) * k;
    };
    Bf16Plan plan;
    plan.swapped =
        transposed(b_along, a_along, n, m) + 2 * m * n < transposed(a_along, b_along, m, n);
    const std::int64_t left = plan.swapped ? n : m;
    const std::int64_t right = plan.swapped ? m : n;
    const bool left_costs = plan.swapped ? !b_along : !a_along;
    const bool right_costs = plan.swapped ? a_along : b_along;
    const bool in_rows = unit == UnitName::dot && (plan.swapped ? b_along : a_along);
    plan.left_resident = left_costs != right_costs ? left_costs : left < right && !in_rows;
    plan.resident = plan.left_resident ? left : right;
    plan.streamed = plan.left_resident ? right : left;

    const auto cut = [](std::int64_t extent, std::int64_t count, std::int64_t unit) {
      return round_up(divide_up(extent, count), unit);
    };
    const bool passes_b = plan.left_resident != plan.swapped;
    const ConstTensorRef<2>& passing = passes_b ? args.b : args.a;
    const bool streamed_along = passes_b ? b_along : a_along;
    const bool far = is_far(unit, streamed_along, k);
    const bool is_amx = unit == UnitName::amx;
    const std::int64_t read_at_once = is_amx ? 32 : 2;  // elements
    const auto is_aligned = [&](const void* data) {
      return reinterpret_cast<std::uintptr_t>(data) % (2 * read_at_once) == 0;
    };
    const bool gate_is_direct =
        !passes_b || !args.is_gated() || (args.n() % 16 == 0 && is_aligned(args.gate.data));
    const ElementScales& scales = passes_b ? args.b_scales : args.a_scales;
    plan.direct =
        may_be_direct && !scales.are_there() && !plan.left_resident && streamed_along &&
        k % depth_of_panel == 0 && passing.stride[0] % read_at_once == 0 &&
        is_aligned(passing.data) && gate_is_direct &&
        (is_amx ? plan.resident <= strip && plan.streamed % 16 == 0 : k <= largest_direct);
    plan.depth = plan.direct && is_amx
                     ? k
                     : cut(k, divide_up(k, far ? depth_of_far : largest_depth), depth_of_panel);
    plan.passes = divide_up(k, plan.depth);
    plan.resident_block =
        cut(plan.resident, divide_up(plan.resident, largest_resident(unit, far)), strip);
    const std::int64_t blocks_in_chunk =
        std::max<std::int64_t>(1, largest_chunk_bytes / (2 * plan.resident_block * k));
    plan.chunk = std::min(blocks_in_chunk * plan.resident_block, round_up(plan.resident, strip));
    const std::int64_t resident_blocks = divide_up(plan.chunk, plan.resident_block);
    const std::int64_t wanted = threads > 1 ? 4 * static_cast<std::int64_t>(threads) : 1;
    const std::int64_t least = std::max(divide_up(plan.streamed, largest_streamed(unit)),
                                        divide_up(wanted, resident_blocks));
    plan.streamed_block = even_block(plan.streamed, least, strip, resident_blocks, threads);
    return plan;
  }

  /// Bytes of the packed chunk, and of a thread: a streamed strip, sums between passes.
  std::int64_t packed_bytes() const { return chunk * depth * passes * 2; }
  std::int64_t strip_bytes() const { return strip * depth * 2; }
  std::int64_t passing_bytes() const { return direct && streamed % 16 == 0 ? 0 : strip_bytes(); }
  std::int64_t thread_bytes() const {
    const std::int64_t sums = passes == 1 ? 0 : resident_block * streamed_block * 4;
    return static_cast<std::int64_t>(
        thread_slice_bytes(static_cast<std::size_t>(passing_bytes() + sums)));
  }
};

}  // namespace katt::linear::impl
