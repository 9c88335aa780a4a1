#include "ops/linear/gemm/bf16/bf16.hpp"

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include <Kokkos_Core.hpp>

#include "core/execution.hpp"
#include "core/thread_slot.hpp"
#include "ops/linear/gemm/bf16/bf16_operands.hpp"
#include "ops/linear/gemm/bf16/bf16_plan.hpp"
#include "ops/linear/gemm/finish.hpp"
#include "ops/linear/gemm/scales.hpp"
#include "tile/bf16/bf16_units.hpp"
#include "tile/bf16/transpose.hpp"
#include "tile/engines/dots.hpp"
#include "tile/rows/elementwise.hpp"

namespace katt::linear::impl {

namespace {

#if defined(KATT_BF16_PANELS)

using Vec = bf16_panels::HostVec;

/// Sixteen indices over 32 steps, whose rows run along k, as sixteen vectors; zero beyond the factor.
void load_square(const Factor& factor, std::int64_t index, std::int64_t step, Vec (&square)[16]) {
  const auto indices = static_cast<int>(std::min<std::int64_t>(16, factor.count(index)));
  const auto steps = static_cast<int>(std::min<std::int64_t>(32, factor.k - step));
  const bf16* corner = factor.at(index, step);
  const bool whole = indices == 16 && steps == 32;
  if (whole) {
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) {
      square[i] = Vec(_mm512_castsi512_ps(_mm512_loadu_si512(corner + i * factor.stride)));
    }
    return;
  }
  const auto mask = static_cast<__mmask32>((std::uint64_t{1} << steps) - 1);
  for (int i = 0; i < 16; ++i) {
    const __m512i row = i < indices ? _mm512_maskz_loadu_epi16(mask, corner + i * factor.stride)
                                    : _mm512_setzero_si512();
    square[i] = Vec(_mm512_castsi512_ps(row));
  }
}

/// Packs a strip of a factor whose rows are steps of k.
void pack_strip_of_steps(const Factor& factor, bool left, std::int64_t index, std::int64_t step,
                         std::int64_t steps, std::byte* out) {
  const auto indices = static_cast<int>(std::min<std::int64_t>(32, factor.count(index)));
  const int panels = indices > 16 ? 2 : 1;
  for (std::int64_t s = step; s < step + steps; s += depth_of_panel) {
    const bf16* corner = factor.at(index, s);
    const auto there = static_cast<int>(std::min<std::int64_t>(depth_of_panel, factor.k - s));
    auto* to = reinterpret_cast<bf16*>(out);
    if (left) {
      bf16_panels::pack_columns(corner, factor.stride, there, indices, panels, to);
    } else {
      const auto row = [&](int r) { return r < there ? corner + r * factor.stride : nullptr; };
      bf16_panels::pack_pairs(row, indices, panels, to);
    }
    out += panels * bf16_panels::panel_bytes;
  }
}

void pack_scaled_strip(const Factor& factor, bool left, std::int64_t index, std::int64_t step,
                       std::int64_t steps, std::byte* out);

/// Packs the strip of indices from `index` on over steps of k, a panel for every 16 indices and 32
/// steps.
void pack_strip(const Factor& factor, bool left, std::int64_t index, std::int64_t step,
                std::int64_t steps, std::byte* out) {
  if (factor.scales.are_there()) {
    return pack_scaled_strip(factor, left, index, step, steps, out);
  }
  if (!factor.along) return pack_strip_of_steps(factor, left, index, step, steps, out);
  const int panels = factor.extent() - index > 16 ? 2 : 1;
  for (std::int64_t s = 0; s < steps; s += depth_of_panel) {
    for (int t = 0; t < panels; ++t, out += bf16_panels::panel_bytes) {
      Vec square[16];
      load_square(factor, index + 16 * t, step + s, square);
      if (!left) tile::transpose(square);
#pragma GCC unroll 16
      for (int i = 0; i < 16; ++i) tile::store(reinterpret_cast<float*>(out) + 16 * i, square[i]);
    }
  }
}

/// pack_strip() of a matrix with scales: 32 steps at a time, from a block of the scaled elements.
void pack_scaled_strip(const Factor& factor, bool left, std::int64_t index, std::int64_t step,
                       std::int64_t steps, std::byte* out) {
  const std::int64_t indices = std::min(strip, factor.count(index));
  const std::int64_t panels = indices > 16 ? 2 : 1;
  ConstTensorRef<2> matrix;
  matrix.data = factor.data;
  matrix.stride = {factor.stride, 1};
  for (std::int64_t s = step; s < step + steps; s += depth_of_panel) {
    const std::int64_t there = std::min(depth_of_panel, factor.k - s);
    if (left && factor.along && indices == 16 * panels && there == depth_of_panel) {
      // Rows of the block are those of the panels.
      scale_block<Vec>(matrix, factor.scales, {index, s, indices, there},
                       reinterpret_cast<bf16*>(out), depth_of_panel);
      out += panels * bf16_panels::panel_bytes;
      continue;
    }
    alignas(64) std::byte memory[strip * depth_of_panel * sizeof(bf16)];  // bf16 clears itself
    auto* scaled = reinterpret_cast<bf16*>(memory);
    const BlockRange block =
        factor.along ? BlockRange{index, s, indices, there} : BlockRange{s, index, there, indices};
    scale_block<Vec>(matrix, factor.scales, block, scaled, strip);
    pack_strip({scaled, strip, factor.along, indices, there}, left, 0, 0, depth_of_panel, out);
    out += panels * bf16_panels::panel_bytes;
  }
}

/// Rounds to bf16 in one instruction, which every CPU with such a unit has.
void store_rounded(bf16* target, const Vec& value) {
  __m256i narrow;
  asm("vcvtneps2bf16 %1, %0" : "=v"(narrow) : "v"(static_cast<__m512>(value)));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(target), narrow);
}
template <class T>
void store_rounded(T* target, const Vec& value) {
  tile::store(target, value);
}

/// The same for two vectors that follow each other.
void store_rounded(bf16* target, const Vec& low, const Vec& high) {
  _mm512_storeu_si512(target, tile::round_two(static_cast<__m512>(low), static_cast<__m512>(high)));
}
template <class T>
void store_rounded(T* target, const Vec& low, const Vec& high) {
  tile::store(target, low);
  tile::store(target + 16, high);
}

/// C = alpha · sums + beta · C + bias for the 16 × 16 sums of a panel at (row, column) of C.
template <class T, class B>
void finish_square(const GemmArgs& args, Vec (&square)[16], std::int64_t row, std::int64_t column) {
  const auto rows = static_cast<int>(std::min<std::int64_t>(16, args.m() - row));
  const auto columns = static_cast<int>(std::min<std::int64_t>(16, args.n() - column));
  T* c = static_cast<T*>(args.c.data) + row * args.c.stride[0] + column;
  const B* bias = args.bias ? static_cast<const B*>(args.bias.data) + column : nullptr;
  const tile::PartialVector part{columns};
  const bool whole = columns == 16;
  const auto read = [&](const auto* from) {
    return whole ? tile::load<Vec>(from) : tile::load<Vec>(from, part);
  };
  const Vec addend = bias != nullptr ? read(bias) : Vec(0.0F);
  const Vec alpha(args.alpha);
  const Vec beta(args.beta);
  for (int i = 0; i < rows; ++i, c += args.c.stride[0]) {
    Vec value = tile::fma(alpha, square[i], addend);
    if (args.beta != 0.0F) value = tile::fma(beta, read(c), value);
    if (whole) store_rounded(c, value);
    else tile::store(c, value, part);
  }
}

/// The same for 32 columns and as many rows as there are, up to 32: sums lie as [2][32][16].
template <class T, class B>
void finish_rows(const GemmArgs& args, const float* sums, std::int64_t row, std::int64_t column) {
  const auto rows = static_cast<int>(std::min(strip, args.m() - row));
  T* c = static_cast<T*>(args.c.data) + row * args.c.stride[0] + column;
  Vec addend[2] = {Vec(0.0F), Vec(0.0F)};
  if (args.bias) {
    const B* bias = static_cast<const B*>(args.bias.data) + column;
    for (int half = 0; half < 2; ++half) addend[half] = tile::load<Vec>(bias + 16 * half);
  }
  const Vec alpha(args.alpha);
  const Vec beta(args.beta);
  const bool adds = args.beta != 0.0F;
  for (int i = 0; i < rows; ++i, c += args.c.stride[0]) {
    Vec value[2];
    for (int half = 0; half < 2; ++half) {
      value[half] = tile::fma(alpha, tile::load<Vec>(sums + 512 * half + 16 * i), addend[half]);
      if (adds) value[half] = tile::fma(beta, tile::load<Vec>(c + 16 * half), value[half]);
    }
    store_rounded(c, value[0], value[1]);
  }
}

/// C from the sums of a strip of the gated factor and panels of rows of A. Swapped: A is the right factor.
template <class T, bool Swapped>
void finish_gated(const GemmArgs& args, const float* sums, std::int64_t row, int panels,
                  std::int64_t column) {
  constexpr int gate_to_up = Swapped ? 1 : 2;  // panels
  const auto columns = static_cast<int>(std::min<std::int64_t>(16, args.n() - column));
  const Vec alpha(args.alpha);
  for (int p = 0; p < panels; ++p, row += 16) {
    const float* gate = sums + (Swapped ? 2 : 1) * p * bf16_panels::panel_floats;
    const float* up = gate + gate_to_up * bf16_panels::panel_floats;
    Vec square[16];
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) {
      square[i] = gated<T>(Vec(alpha * tile::load<Vec>(gate + 16 * i)),
                           Vec(alpha * tile::load<Vec>(up + 16 * i)));
    }
    if constexpr (Swapped) tile::transpose(square);
    T* c = static_cast<T*>(args.c.data) + row * args.c.stride[0] + column;
    const auto rows = static_cast<int>(std::min<std::int64_t>(16, args.m() - row));
    for (int i = 0; i < rows; ++i, c += args.c.stride[0]) {
      if (columns == 16) store_rounded(c, square[i]);
      else tile::store(c, square[i], tile::PartialVector{columns});
    }
  }
}

/// Packs a chunk of the resident factor: pass by pass, strip by strip. One item is one strip.
struct PackChunk {
  Bf16Plan plan;
  Factor resident;
  std::int64_t first, strips;  ///< of the chunk
  std::byte* packed;

  void operator()(std::int64_t item) const {
    const std::int64_t k = item / strips * plan.depth;
    pack_strip(resident, plan.left_resident, first + item % strips * strip, k,
               std::min(plan.depth, resident.k - k), packed + item * plan.strip_bytes());
  }
};

/// One block of C, or of Cᵀ.
template <bf16_panels::Unit U, class Exec>
struct Bf16Block {
  using Token =
      Kokkos::Experimental::UniqueToken<Exec, Kokkos::Experimental::UniqueTokenScope::Instance>;

  GemmArgs args;
  Bf16Plan plan;
  Factor streamed;
  std::int64_t first, strips;  ///< of the chunk
  const std::byte* packed;
  Token slots;
  std::byte* workspace;

  void operator()(std::int64_t item) const {
    const int slot = slots.acquire();
    std::byte* passing = workspace + slot * plan.thread_bytes();
    auto* kept = reinterpret_cast<float*>(passing + plan.passing_bytes());
    const std::int64_t streamed_blocks = divide_up(plan.streamed, plan.streamed_block);
    const std::int64_t in_block = plan.resident_block / strip;
    const std::int64_t p_begin = item / streamed_blocks * in_block;
    const std::int64_t p_end = std::min(p_begin + in_block, strips);
    const std::int64_t begin = item % streamed_blocks * plan.streamed_block;
    const std::int64_t end = std::min(begin + plan.streamed_block, plan.streamed);
    [[maybe_unused]] const typename U::Session session;
    for (std::int64_t pass = 0; pass < plan.passes; ++pass) {
      const std::int64_t k = pass * plan.depth;
      const std::int64_t depth = std::min(plan.depth, args.k() - k);
      const std::int64_t steps = divide_up(depth, depth_of_panel);
      for (std::int64_t s = begin; s < end; s += strip) {
        const int panels = streamed.extent() - s > 16 ? 2 : 1;
        const bool in_place =
            plan.direct && (s + strip <= plan.streamed || plan.streamed % 16 == 0);
        if (!in_place) pack_strip(streamed, !plan.left_resident, s, k, depth, passing);
        for (std::int64_t p = p_begin; p < p_end; ++p) {
          const std::int64_t r = first + p * strip;
          const int resident_panels = plan.resident - r > 16 ? 2 : 1;
          alignas(64) float once[4 * bf16_panels::panel_bytes / 4];
          const std::int64_t block = (s - begin) / strip * in_block + p - p_begin;
          float* sums = plan.passes == 1 ? once : kept + block * 4 * bf16_panels::panel_bytes / 4;
          const auto resident_walk =
              PackedWalk::of(packed + (pass * strips + p) * plan.strip_bytes(), resident_panels);
          const Ahead next = next_strip(s, end, k, p - p_begin, p_end - p_begin);
          const Ahead too =
              pass + 1 < plan.passes
                  ? next_pass(pass, (s - begin) / strip * (p_end - p_begin) + p - p_begin, p_begin,
                              p_end, divide_up(end - begin, strip), steps)
                  : target(plan.left_resident ? r : s, plan.left_resident ? s : r, steps);
          const auto call = [&]<int S, int R>() {
            const auto streamed_walk = PackedWalk::of(passing, panels);
            if (plan.left_resident) {
              multiply<bf16_panels::Product{.left = R, .right = S, .keeps_sums = false}>(
                  resident_walk, streamed_walk, steps, pass > 0, sums, {next, too});
            } else if (in_place) {
              multiply<bf16_panels::Product{.left = S, .right = R, .keeps_sums = false}>(
                  RowWalk(streamed, s, k), resident_walk, steps, pass > 0, sums, {next, too});
            } else {
              multiply<bf16_panels::Product{
                  .left = S, .right = R, .keeps_left = true, .keeps_sums = false}>(
                  streamed_walk, resident_walk, steps, pass > 0, sums, {next, too});
            }
          };
          if (panels == 2 && resident_panels == 2) call.template operator()<2, 2>();
          else if (panels == 2) call.template operator()<2, 1>();
          else if (resident_panels == 2) call.template operator()<1, 2>();
          else call.template operator()<1, 1>();
          if (pass + 1 < plan.passes) continue;
          if (plan.left_resident) finish(sums, r, resident_panels, s, panels);
          else finish(sums, s, panels, r, resident_panels);
        }
      }
    }
    slots.release(slot);
  }

  template <bf16_panels::Product product, class A, class B>
  static void multiply(const A& left, const B& right, std::int64_t steps, bool resume, float* sums,
                       Prefetches beside) {
    U::template product<product>(left, right, static_cast<int>(steps), resume, sums, beside);
  }

  /// The share of the p-th multiplication in the streamed strip that follows.
  Ahead next_strip(std::int64_t s, std::int64_t end, std::int64_t k, std::int64_t p,
                   std::int64_t count) const {
    if (s + strip >= end) return {};
    const std::int64_t begin = strip * p / count;
    const auto lines = static_cast<int>(strip * (p + 1) / count - begin);
    const std::int64_t row_bytes = streamed.stride * 2;
    if (streamed.along) {
      return {reinterpret_cast<const std::byte*>(streamed.at(s + strip + begin, k)), row_bytes, 64,
              lines};
    }
    return {reinterpret_cast<const std::byte*>(streamed.at(s + strip, k + begin)), row_bytes,
            row_bytes * depth_of_panel, lines};
  }

  /// The share of the q-th multiplication in the resident block of the pass that follows.
  Ahead next_pass(std::int64_t pass, std::int64_t q, std::int64_t p_begin, std::int64_t p_end,
                  std::int64_t streamed_strips, std::int64_t steps) const {
    constexpr std::int64_t line = 64;
    const std::int64_t lines = divide_up(strip, streamed_strips);
    const std::int64_t from = q * lines * steps * line;
    if (from >= (p_end - p_begin) * plan.strip_bytes()) return {};
    return {packed + ((pass + 1) * strips + p_begin) * plan.strip_bytes() + from, line,
            lines * line, static_cast<int>(lines)};
  }

  /// The rows of C that the sums of a left and a right strip go to.
  Ahead target(std::int64_t left, std::int64_t right, std::int64_t steps) const {
    const std::int64_t row = plan.swapped ? right : left;
    const std::int64_t column = (plan.swapped ? left : right) / (args.is_gated() ? 2 : 1);
    const auto size = static_cast<std::int64_t>(size_of(args.c.dtype));
    const std::int64_t lines = divide_up(strip, steps);
    return {static_cast<const std::byte*>(args.c.data) + (row * args.c.stride[0] + column) * size,
            args.c.stride[0] * size, args.c.stride[0] * size * lines, static_cast<int>(lines)};
  }

  /// Writes the sums of left_panels × right_panels panels.
  void finish(const float* sums, std::int64_t left, int left_panels, std::int64_t right,
              int right_panels) const {
    visit_dtype(args.c.dtype, [&]<class T>() {
      if (args.is_gated()) {
        return plan.swapped ? finish_gated<T, true>(args, sums, right, right_panels, left / 2)
                            : finish_gated<T, false>(args, sums, left, left_panels, right / 2);
      }
      visit_dtype(args.bias.dtype, [&]<class B>() {
        if (!plan.swapped && right + strip <= args.n()) {
          return finish_rows<T, B>(args, sums, left, right);
        }
        for (int l = 0; l < left_panels; ++l) {
          for (int r = 0; r < right_panels; ++r) {
            const float* from = sums + (l + 2 * r) * 256;
            Vec square[16];
#pragma GCC unroll 16
            for (int i = 0; i < 16; ++i) square[i] = tile::load<Vec>(from + 16 * i);
            if (plan.swapped) {
              tile::transpose(square);
              finish_square<T, B>(args, square, right + 16 * r, left + 16 * l);
            } else {
              finish_square<T, B>(args, square, left + 16 * l, right + 16 * r);
            }
          }
        }
      });
    });
  }
};

#endif

}  // namespace

bool bf16_takes(const GemmArgs& args) {
  return args.a.dtype == Dtype::bf16 && args.b.dtype == Dtype::bf16 && args.m() > 0 &&
         args.n() > 0 && args.k() > 0;
}

template <class Exec>
std::size_t bf16_gemm_workspace_bytes(const Exec& exec, const GemmArgs& args, UnitName unit) {
  const int threads = exec.concurrency();
  // True when it is direct depends on pointers; the direct form needs less.
  const auto plan = Bf16Plan::of(args, unit, threads, false);
  return static_cast<std::size_t>(plan.packed_bytes() + threads * plan.thread_bytes());
}

template <class Exec>
void bf16_gemm(const Exec& exec, const GemmArgs& args, UnitName unit, Workspace workspace,
               const char* label) {
#if defined(KATT_BF16_PANELS)
  const auto plan = Bf16Plan::of(args, unit, exec.concurrency(), true);
  const Factor a{.data = static_cast<const bf16*>(args.a.data),
                 .stride = args.a.stride[0],
                 .along = !args.trans_a,
                 .rows = args.m(),
                 .k = args.k(),
                 .scales = args.a_scales};
  const Factor b{.data = static_cast<const bf16*>(args.b.data),
                 .stride = args.b.stride[0],
                 .along = args.trans_b,
                 .rows = args.n(),
                 .k = args.k(),
                 .gate = static_cast<const bf16*>(args.gate.data),
                 .scales = args.b_scales};
  const bool a_resident = plan.left_resident != plan.swapped;
  const Factor& resident = a_resident ? a : b;
  const Factor& streamed = a_resident ? b : a;
  auto* packed = static_cast<std::byte*>(workspace.data);
  using Policy =
      Kokkos::RangePolicy<Exec, Kokkos::Schedule<Kokkos::Dynamic>, Kokkos::IndexType<std::int64_t>>;
  for (std::int64_t first = 0; first < plan.resident; first += plan.chunk) {
    const std::int64_t extent = std::min(plan.chunk, plan.resident - first);
    const std::int64_t strips = divide_up(extent, strip);
    Kokkos::parallel_for(label, Policy(exec, 0, strips * plan.passes),
                         PackChunk{plan, resident, first, strips, packed});
    Policy blocks(
        exec, 0,
        divide_up(extent, plan.resident_block) * divide_up(plan.streamed, plan.streamed_block));
    blocks.set_chunk_size(1);
    bf16_panels::visit_unit(unit, [&]<bf16_panels::Unit U>() {
      using Block = Bf16Block<U, Exec>;
      Kokkos::parallel_for(label, blocks,
                           Block{args, plan, streamed, first, strips, packed,
                                 typename Block::Token(exec), packed + plan.packed_bytes()});
    });
  }
#else
  (void)exec, (void)args, (void)unit, (void)workspace, (void)label;
#endif
}

#define KATT_INSTANTIATE_BF16_GEMM(Exec)                                                        \
  template std::size_t bf16_gemm_workspace_bytes<Exec>(const Exec&, const GemmArgs&, UnitName); \
  template void bf16_gemm<Exec>(const Exec&, const GemmArgs&, UnitName, Workspace, const char*);

KATT_INSTANTIATE_BF16_GEMM(Host)

}  // namespace katt::linear::impl
