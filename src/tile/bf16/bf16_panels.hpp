#pragma once

#include <cstddef>
#include <cstdint>

#include "core/dtype.hpp"
#include "tile/bf16/amx.hpp"
#include "tile/bf16/transpose.hpp"

/// Operands of bf16 products, packed into panels of 1 KiB one after the other, as the registers of
/// AMX hold them (tile/bf16/amx.hpp): a panel of A is 16 rows of 32 elements, a panel of B 16 pairs of
/// rows of 16 columns.
#if defined(KATT_BF16_PANELS)
namespace katt::tile::bf16_panels {

using amx::depth;
using amx::panel_bytes;
using amx::row_bytes;
using amx::rows;

inline constexpr int block = 32;  ///< queries, keys, and depth of a block
inline constexpr int panel_elements = panel_bytes / 2;
inline constexpr int panel_floats = panel_bytes / 4;
using tile::impl::HostVec;

/// Panels of 32 dimensions that hold a head_dim.
constexpr int depth_panels(std::int64_t head_dim) {
  return static_cast<int>((head_dim + depth - 1) / depth);
}

/// Reads `count` of 16 dwords, the others zero, from bf16 elements.
inline __m512i load_dwords(const bf16* source, int elements) {
  if (elements >= depth) return _mm512_loadu_si512(source);
  const __mmask32 mask = elements <= 0 ? 0 : (1U << static_cast<unsigned>(elements)) - 1U;
  return _mm512_maskz_loadu_epi16(mask, source);
}

/// The first `count` of 16 lanes.
inline __mmask16 first_lanes(int count) {
  if (count >= 16) return 0xFFFF;
  return count <= 0 ? 0 : static_cast<__mmask16>((1U << static_cast<unsigned>(count)) - 1U);
}

/// target row i = column i of the 16 × 16 dwords in `square`.
inline void store_transposed(HostVec (&square)[16], bf16* target) {
  transpose(square);
  for (int i = 0; i < 16; ++i) {
    _mm512_storeu_ps(reinterpret_cast<float*>(target) + i * 16, static_cast<__m512>(square[i]));
  }
}

/// Packs 16 rows as a panel of B = rowsᵀ: dimensions by rows, in pairs of dimensions. row(r) is the
/// first of `elements` elements of row r, or nullptr for a row of zeros.
template <class Row>
void pack_transposed(const Row& row, int elements, bf16* target) {
  HostVec square[16];
  for (int r = 0; r < 16; ++r) {
    const bf16* source = row(r);
    square[r] = source == nullptr ? HostVec(0.0F)
                                  : HostVec(_mm512_castsi512_ps(load_dwords(source, elements)));
  }
  store_transposed(square, target);
}

/// Packs 16 rows as a panel of A, zero from row `rows` on.
inline void pack_rows(const bf16* source, std::int64_t stride, int rows, int elements,
                      bf16* target) {
  for (int r = 0; r < 16; ++r) {
    const __m512i row =
        r < rows ? load_dwords(source + r * stride, elements) : _mm512_setzero_si512();
    _mm512_storeu_si512(target + r * depth, row);
  }
}

/// Packs 32 rows of head_dim elements as panels of A, [32 dimensions][row panel 2], zero from row
/// `rows` on.
inline void pack_row_block(const bf16* source, std::int64_t stride, int rows, int head_dim,
                           bf16* target) {
  for (int d = 0; d < depth_panels(head_dim); ++d) {
    for (int t = 0; t < 2; ++t) {
      const int live = rows - t * amx::rows;
      pack_rows(live > 0 ? source + t * amx::rows * stride + d * depth : nullptr, stride, live,
                head_dim - d * depth, target + (d * 2 + t) * panel_elements);
    }
  }
}

/// Element d of two rows as a pair, of dimensions 0 to 15 and 16 to 31.
struct Pairs {
  __m512i first, second;

  Pairs(__m512i even, __m512i odd)
      : first(_mm512_permutex2var_epi16(even, places(0), odd)),
        second(_mm512_permutex2var_epi16(even, places(16), odd)) {}

 private:
  /// Dword i takes element `begin` + i of either row.
  static __m512i places(int begin) {
    const __m512i i = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
    const __m512i even = _mm512_add_epi32(i, _mm512_set1_epi32(begin));
    return _mm512_or_si512(even,
                           _mm512_slli_epi32(_mm512_add_epi32(even, _mm512_set1_epi32(32)), 16));
  }
};

/// Packs 32 rows × 32 dimensions as two panels of A, dimensions by rows, zero from row `rows` on; or
/// the first 16 dimensions as one panel.
inline void pack_columns(const bf16* source, std::int64_t stride, int rows, int elements,
                         int panels, bf16* target) {
  const auto row = [&](int r) {
    return r < rows ? load_dwords(source + r * stride, elements) : _mm512_setzero_si512();
  };
  HostVec low[16];
  HostVec high[16];
  for (int p = 0; p < 16; ++p) {
    const Pairs pairs(row(2 * p), row(2 * p + 1));
    low[p] = HostVec(_mm512_castsi512_ps(pairs.first));
    high[p] = HostVec(_mm512_castsi512_ps(pairs.second));
  }
  store_transposed(low, target);
  if (panels > 1) store_transposed(high, target + panel_elements);
}

/// Packs 32 rows × 32 dimensions as two panels of B = rows, in pairs of rows, or the first 16 dimensions as
/// one panel. row(r) is the first of `elements` elements of row r, or nullptr for a row of zeros.
template <class Row>
void pack_pairs(const Row& row, int elements, int panels, bf16* target) {
  const auto dwords = [&](int r) {
    const bf16* source = row(r);
    return source == nullptr ? _mm512_setzero_si512() : load_dwords(source, elements);
  };
  for (int p = 0; p < 16; ++p) {
    const Pairs pairs(dwords(2 * p), dwords(2 * p + 1));
    _mm512_store_si512(target + p * depth, pairs.first);
    if (panels > 1) _mm512_store_si512(target + panel_elements + p * depth, pairs.second);
  }
}

/// No work beside the products.
struct Nothing {
  KOKKOS_FORCEINLINE_FUNCTION void share(int /*i*/, int /*steps*/) const {}
};
inline constexpr Nothing nothing;

}  // namespace katt::tile::bf16_panels
#endif
