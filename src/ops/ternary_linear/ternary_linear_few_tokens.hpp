#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

#include <Kokkos_Core.hpp>

#include "core/parts.hpp"
#include "core/views.hpp"
#include "ops/ternary_linear/ternary_linear_digits.hpp"
#include "tile/bf16/bf16_units.hpp"
#include "tile/engines/dots.hpp"
#include "tile/extents.hpp"
#include "tile/rows/elementwise.hpp"
#include "tile/vec/vec.hpp"

/// dx = (dout · s_w) · W_q of few tokens, straight from the packed weight: a stored panel of it would take
/// longer to write than to multiply.
///
///   for every slice of rows o, chunk of blocks, part of a block, few tokens t:
///     sums(slice, t, columns) = Σ_o dout(t, o) · s_w(o) · W_q(o, columns)      in registers, f32
///   dx(t, columns) = Σ_slice sums(slice, t, columns)                           rounded once
///
/// Slices and chunks depend on the shape alone, so the bits do not depend on the number of threads.
namespace katt::ternary_linear::impl {

#if defined(KATT_TERNARY_AVX512) || defined(KATT_TERNARY_AVX2)
#define KATT_TERNARY_FEW_TOKENS

/// Weights as f32 vectors. Bytes lie in lanes of 32 bits, and a shuffle looks the weights up: the lowest two
/// bits of a lane are its digit, the index bits above them do not matter.
struct FewTokensVectors {
  using Vec = tile::VecOf<Host>;
  using Sum = Vec;
  using Factor = float;           ///< a row's share of a token
  static constexpr int rows = 1;  ///< of the weight at a time
#if defined(KATT_TERNARY_AVX512)
  using Bytes = __m512i;
  static constexpr int width = 16;      ///< bytes at a time
  static constexpr int most_sums = 24;  ///< vectors that the registers hold beside the operands
  static constexpr int most_tokens(PackFormat format) {
    return format == PackFormat::two_bit ? 6 : 4;
  }

  static Bytes load(const std::uint8_t* from) {
    return _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
  }
  static Vec weights(Bytes digits) {
    const __m512 table = _mm512_setr_ps(-1, 0, 1, 0, -1, 0, 1, 0, -1, 0, 1, 0, -1, 0, 1, 0);
    return Vec(_mm512_permutexvar_ps(digits, table));
  }
  static Bytes shift(Bytes v) { return _mm512_srli_epi32(v, 2); }
  static Bytes upper(Bytes v) { return _mm512_srli_epi32(v, 4); }
  static Bytes triple(Bytes v) { return _mm512_add_epi32(v, _mm512_slli_epi32(v, 1)); }
  static Bytes high(Bytes v) { return _mm512_srli_epi32(v, 8); }
  static Bytes low(Bytes v) { return _mm512_and_si512(v, _mm512_set1_epi32(255)); }
#else
  using Bytes = __m256i;
  static constexpr int width = 8;
  static constexpr int most_sums = 8;
  static constexpr int most_tokens(PackFormat format) {
    return format == PackFormat::two_bit ? 4 : 2;
  }

  static Bytes load(const std::uint8_t* from) {
    return _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from)));
  }
  static Vec weights(Bytes digits) {
    const __m256 table = _mm256_setr_ps(-1, 0, 1, 0, -1, 0, 1, 0);
    return Vec(_mm256_permutevar8x32_ps(table, digits));
  }
  static Bytes shift(Bytes v) { return _mm256_srli_epi32(v, 2); }
  static Bytes upper(Bytes v) { return _mm256_srli_epi32(v, 4); }
  static Bytes triple(Bytes v) { return _mm256_add_epi32(v, _mm256_slli_epi32(v, 1)); }
  static Bytes high(Bytes v) { return _mm256_srli_epi32(v, 8); }
  static Bytes low(Bytes v) { return _mm256_and_si256(v, _mm256_set1_epi32(255)); }
#endif
  static_assert(sizeof(Vec) == width * sizeof(float));

  static Sum zero() { return Vec(0.0F); }
  static Sum load_sum(const float* from) { return tile::load<Vec>(from); }
  static void store_sum(float* to, const Sum& sum) { tile::store(to, sum); }
  static Sum add(const Sum& sum, const float* factor, const Vec& weights) {
    return tile::fma(Vec(*factor), weights, sum);
  }
  template <PackFormat Format>
  static Bytes load(const std::uint8_t* from, std::int64_t /*next_row*/) {
    return load(from);
  }

  /// The weights of the next digit, which leaves the bytes.
  template <PackFormat Format>
  static Vec next(Bytes& bytes, int /*digit*/) {
    const Bytes digits = Format == PackFormat::two_bit ? bytes : triple(bytes);
    bytes = Format == PackFormat::two_bit ? shift(bytes) : low(digits);
    return weights(Format == PackFormat::two_bit ? digits : high(digits));
  }
};

#if defined(KATT_BF16_PANELS) && defined(KATT_TERNARY_AVX512)
#define KATT_TERNARY_DOTS

/// Pairs of rows as VDPBF16PS multiplies them: the digits of both side by side look a pair of weights up.
struct FewTokensDots {
  using Sum = __m512;
  using Factor = std::array<bf16, 2>;
  static constexpr int rows = 2;
  static constexpr int width = 16;
  static constexpr int most_sums = FewTokensVectors::most_sums;
  static constexpr int most_tokens(PackFormat format) {
    return FewTokensVectors::most_tokens(format);
  }

  /// Two bits a digit: digits 0 and 2 of both rows in the halves of a byte, 1 and 3. Five to a byte: a row in each
  /// half of a lane.
  struct Bytes {
    __m512i first, second;
  };
  template <PackFormat Format>
  static Bytes load(const std::uint8_t* from, std::int64_t next_row) {
    const __m512i a = FewTokensVectors::load(from);
    const __m512i b = FewTokensVectors::load(from + next_row);
    if constexpr (Format == PackFormat::two_bit) {
      const __m512i mask = _mm512_set1_epi32(0x33);
      return {choose(mask, a, _mm512_slli_epi32(b, 2)), choose(mask, _mm512_srli_epi32(a, 2), b)};
    } else {
      return {_mm512_or_si512(a, _mm512_slli_epi32(b, 16)), _mm512_setzero_si512()};
    }
  }
  template <PackFormat Format>
  static __m512i next(Bytes& bytes, int digit) {
    if constexpr (Format == PackFormat::two_bit) {
      const __m512i half = digit % 2 == 0 ? bytes.first : bytes.second;
      return weights(digit < 2 ? half : _mm512_srli_epi32(half, 4));
    } else {
      const __m512i triple = FewTokensVectors::triple(bytes.first);
      bytes.first = _mm512_and_si512(triple, _mm512_set1_epi32(0x00FF00FF));
      return weights(choose(_mm512_set1_epi32(3), _mm512_srli_epi32(triple, 8),
                            _mm512_srli_epi32(triple, 22)));
    }
  }

  static Sum zero() { return _mm512_setzero_ps(); }
  static Sum load_sum(const float* from) { return _mm512_loadu_ps(from); }
  static void store_sum(float* to, Sum sum) { _mm512_storeu_ps(to, sum); }
  static Sum add(Sum sum, const Factor* factor, __m512i weights) {
    int pair = 0;
    std::memcpy(&pair, factor, sizeof pair);
    return tile::add_dots(sum, _mm512_set1_epi32(pair), weights);
  }

 private:
  /// Bits of a where the mask is set, else of b.
  static __m512i choose(__m512i mask, __m512i a, __m512i b) {
    return _mm512_ternarylogic_epi32(mask, a, b, 0xCA);
  }
  /// Bits 0 and 1 of a lane: the digit of the first row; 2 and 3: that of the second.
  static __m512i weights(__m512i digits) {
    static constexpr auto table = [] {
      constexpr std::array<std::uint32_t, 4> weight{0xBF80, 0, 0x3F80, 0};
      std::array<std::uint32_t, 16> pairs{};
      for (unsigned i = 0; i < 16; ++i) pairs[i] = weight[i % 4] | weight[i / 4] << 16U;
      return pairs;
    }();
    return _mm512_permutexvar_epi32(digits, _mm512_loadu_si512(table.data()));
  }
};
#endif

/// How the product is cut.
template <class Unit, PackFormat Format>
struct FewTokensPlan {
  static constexpr int digits = digits_per_byte(Format);
  static constexpr int most_tokens = Unit::most_tokens(Format);  ///< share an unpacking
  static constexpr std::int64_t chunk_blocks = 4;                ///< a run of memory
  static constexpr std::int64_t rows_at_once = 64;               ///< added to sums in registers
  static constexpr std::int64_t shortest_slice = 256;
  static constexpr std::int64_t wanted_items = 32;

  std::int64_t tokens, rows, blocks;
  std::int64_t chunks, slices, depth;  ///< depth: rows of a slice
  std::int64_t token_blocks;

  explicit FewTokensPlan(const ConstTensorRef<2>& dout, std::int64_t in_features)
      : tokens(dout.extent[0]),
        rows(dout.extent[1]),
        blocks(divide_up(in_features, block_weights(Format))),
        chunks(divide_up(blocks, chunk_blocks)),
        token_blocks(divide_up(tokens, most_tokens)) {
    const std::int64_t wanted = std::clamp<std::int64_t>(
        divide_up(wanted_items, chunks), 1, std::max<std::int64_t>(1, rows / shortest_slice));
    depth = round_up(std::max<std::int64_t>(1, divide_up(rows, wanted)), rows_at_once);
    slices = divide_up(rows, depth);
  }

  std::int64_t first_token(std::int64_t block) const { return tokens * block / token_blocks; }
  std::int64_t columns() const { return blocks * block_weights(Format); }
  std::int64_t steps() const { return divide_up(rows, std::int64_t{Unit::rows}); }
  std::size_t scaled_bytes() const {
    return aligned_bytes<typename Unit::Factor>(tokens * steps());
  }
  std::size_t bytes() const {
    return scaled_bytes() + aligned_bytes<float>(slices * tokens * columns());
  }
};

/// dout · s_w as (block of tokens, step of rows of the weight, token).
template <class T, class Unit, PackFormat Format>
struct ScaleGradients {
  FewTokensPlan<Unit, Format> plan;
  const T* dout;
  std::int64_t stride;
  const float* scales;
  typename Unit::Factor* scaled;

  void operator()(std::int64_t t) const {
    const std::int64_t block = (plan.token_blocks * (t + 1) - 1) / plan.tokens;
    const std::int64_t first = plan.first_token(block);
    const std::int64_t count = plan.first_token(block + 1) - first;
    const T* from = dout + t * stride;
    auto* to = scaled + first * plan.steps() + (t - first);
    const auto product = [&](std::int64_t o) { return static_cast<float>(from[o]) * scales[o]; };
    for (std::int64_t s = 0; s < plan.steps(); ++s) {
      if constexpr (Unit::rows == 1) {
        to[s * count] = product(s);
      } else {
        const bool whole = 2 * s + 1 < plan.rows;
        to[s * count] = {bf16(product(2 * s)), bf16(whole ? product(2 * s + 1) : 0.0F)};
      }
    }
  }
};

/// One slice of one chunk, all tokens.
template <class Unit, PackFormat Format>
struct FewTokensItem {
  using Plan = FewTokensPlan<Unit, Format>;
  using Factor = typename Unit::Factor;
  static constexpr int width = Unit::width;

  Plan plan;
  const std::uint8_t* packed;
  std::int64_t row_bytes;
  const Factor* scaled;
  float* sums;  ///< (slices, tokens, columns)

  void operator()(std::int64_t item) const {
    const std::int64_t slice = item % plan.slices;
    const std::int64_t begin = slice * plan.depth;
    const std::int64_t end = std::min(begin + plan.depth, plan.rows);
    const std::int64_t first = item / plan.slices * Plan::chunk_blocks;
    const std::int64_t last = std::min(first + Plan::chunk_blocks, plan.blocks);
    for (std::int64_t row = begin; row < end; row += Plan::rows_at_once) {
      const std::int64_t rows = std::min(Plan::rows_at_once, end - row);
      for (std::int64_t block = first; block < last; ++block) {
        const std::uint8_t* bytes = packed + row * row_bytes + block * block_bytes;
        for (std::int64_t b = 0; b < plan.token_blocks; ++b) {
          const std::int64_t token = plan.first_token(b);
          const std::int64_t count = plan.first_token(b + 1) - token;
          const Pass pass{.bytes = bytes,
                          .row_bytes = row_bytes,
                          .scaled = scaled + token * plan.steps() + row / Unit::rows * count,
                          .rows = rows,
                          .sums = sums + (slice * plan.tokens + token) * plan.columns() +
                                  block * block_weights(Format),
                          .stride = plan.columns(),
                          .resume = row > begin,
                          .asks = b == 0};
          kernel(count)(pass);
        }
      }
    }
  }

 private:
  struct Pass {
    const std::uint8_t* bytes;
    std::int64_t row_bytes;
    const Factor* scaled;
    std::int64_t rows;
    float* sums;
    std::int64_t stride;
    bool resume;
    bool asks;  ///< prefetches the block of the next rows
  };

  /// Digits of a byte at a time: all, or two where there would be more sums than registers.
  static constexpr int digits(int tokens) {
    const bool all = Format != PackFormat::two_bit || tokens * Plan::digits <= Unit::most_sums;
    return all ? Plan::digits : 2;
  }

  /// Parts of a block that are multiplied side by side, so that there are chains of sums enough.
  static constexpr int parts(int tokens) {
    int count = 1;
    while (2 * count * tokens * digits(tokens) <= Unit::most_sums &&
           2 * count * width <= block_bytes) {
      count *= 2;
    }
    return count;
  }

  static auto kernel(std::int64_t tokens) {
    using Kernel = void (*)(const Pass&);
    static constexpr auto kernels = []<int... N>(std::integer_sequence<int, N...>) {
      return std::array<Kernel, Plan::most_tokens>{multiply<N + 1, parts(N + 1)>...};
    }
    (std::make_integer_sequence<int, Plan::most_tokens>{});
    return kernels[static_cast<std::size_t>(tokens - 1)];
  }

  template <int Tokens, int Parts>
  static void multiply(const Pass& pass) {
    for (std::int64_t at = 0; at < block_bytes; at += Parts * width) {
      multiply_parts<Tokens, Parts, 0>(pass, at, pass.asks && at == 0);
      if constexpr (digits(Tokens) < Plan::digits) {
        multiply_parts<Tokens, Parts, 2>(pass, at, false);
      }
    }
  }

  template <int Tokens, int Parts, int First>
  static void multiply_parts(const Pass& pass, std::int64_t at, bool asks) {
    constexpr int taken = digits(Tokens);
    constexpr int count = Tokens * Parts * taken;
    typename Unit::Sum sum[count];  // (part, digit, token)
    const auto place = [&](int i) {
      const int part = i / (taken * Tokens);
      const int digit = First + i / Tokens % taken;
      return pass.sums + i % Tokens * pass.stride + digit * block_bytes + at + part * width;
    };
#pragma GCC unroll 32
    for (int i = 0; i < count; ++i) {
      sum[i] = pass.resume ? Unit::load_sum(place(i)) : Unit::zero();
    }
    const std::uint8_t* bytes = pass.bytes + at;
    const Factor* scaled = pass.scaled;
    for (std::int64_t row = 0; row < pass.rows; row += Unit::rows) {
      if (asks) {
        for (int r = 0; r < Unit::rows; ++r) {
          tile::prefetch(bytes + (Plan::rows_at_once + r) * pass.row_bytes);
        }
      }
      const std::int64_t next_row = row + 1 < pass.rows ? pass.row_bytes : 0;  // 0: its factor is 0
#pragma GCC unroll 8
      for (int part = 0; part < Parts; ++part) {
        auto rest = Unit::template load<Format>(bytes + part * width, next_row);
        if constexpr (First > 0) rest = Unit::upper(rest);
#pragma GCC unroll 8
        for (int digit = 0; digit < taken; ++digit) {
          const auto weights = Unit::template next<Format>(rest, digit);
#pragma GCC unroll 8
          for (int t = 0; t < Tokens; ++t) {
            auto& one = sum[(part * taken + digit) * Tokens + t];
            one = Unit::add(one, scaled + t, weights);
          }
        }
      }
      bytes += Unit::rows * pass.row_bytes;
      scaled += Tokens;
    }
#pragma GCC unroll 32
    for (int i = 0; i < count; ++i) Unit::store_sum(place(i), sum[i]);
  }
};

/// dx, from the sums of the slices.
template <class T>
struct AddSlices {
  const float* sums;
  std::int64_t slices, slice_size, columns;
  T* dx;
  std::int64_t stride;

  template <class Vec, class Lanes>
  KOKKOS_INLINE_FUNCTION void operator()(std::int64_t row, std::int64_t column, Lanes lanes) const {
    const float* from = sums + row * columns + column;
    Vec total(0.0F);
    for (std::int64_t s = 0; s < slices; ++s) {
      total = total + tile::load<Vec>(from + s * slice_size, lanes);
    }
    tile::store(dx + row * stride + column, total, lanes);
  }
};

/// Unit that multiplies dx: a product with a panel of weights, vectors or dot products of bf16.
enum class FewTokens : std::uint8_t { panel, vectors, dots };

template <class T>
FewTokens few_tokens_unit(PackFormat format, std::int64_t tokens) {
  using tile::bf16_panels::UnitName;
  const UnitName unit = std::is_same_v<T, bf16> ? tile::bf16_panels::unit() : UnitName::none;
  // Five digits take many operations each, and a panel of bf16 is read by tiles of AMX.
  const std::int64_t most = format == PackFormat::five_per_byte ? 8
                            : unit == UnitName::amx             ? 28
                                                                : 64;
  if (tokens == 0 || tokens > most) return FewTokens::panel;
  return unit == UnitName::dot ? FewTokens::dots : FewTokens::vectors;
}

/// Calls f.operator()<Unit>() for one that is no panel.
template <class F>
decltype(auto) visit_few_tokens([[maybe_unused]] FewTokens unit, const F& f) {
#if defined(KATT_TERNARY_DOTS)
  if (unit == FewTokens::dots) return f.template operator()<FewTokensDots>();
#endif
  return f.template operator()<FewTokensVectors>();
}

template <class Exec, class T, class Unit, PackFormat Format>
void few_tokens_dx(const Exec& exec, const PackedTernary& weight, const ConstTensorRef<2>& dout,
                   const TensorRef<2>& dx, void* workspace) {
  using Indices = Kokkos::IndexType<std::int64_t>;
  const char* label = "katt::ternary_linear::packed_few_dx";
  const FewTokensPlan<Unit, Format> plan(dout, weight.in_features);
  auto* base = static_cast<std::byte*>(workspace);
  auto* scaled = reinterpret_cast<typename Unit::Factor*>(base);
  auto* sums = reinterpret_cast<float*>(base + plan.scaled_bytes());
  Kokkos::parallel_for(label, Kokkos::RangePolicy<Exec, Indices>(exec, 0, plan.tokens),
                       ScaleGradients<T, Unit, Format>{plan, static_cast<const T*>(dout.data),
                                                       dout.stride[0], weight.scales(), scaled});
  Kokkos::RangePolicy<Exec, Kokkos::Schedule<Kokkos::Dynamic>, Indices> items(
      exec, 0, plan.chunks * plan.slices);
  items.set_chunk_size(1);
  Kokkos::parallel_for(
      label, items,
      FewTokensItem<Unit, Format>{plan, weight.rows(), weight.row_bytes(), scaled, sums});
  tile::for_each_vector(exec, label, plan.tokens, weight.in_features,
                        AddSlices<T>{sums, plan.slices, plan.tokens * plan.columns(),
                                     plan.columns(), static_cast<T*>(dx.data), dx.stride[0]});
}

#endif

}  // namespace katt::ternary_linear::impl
