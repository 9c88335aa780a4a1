#include "core/convert.hpp"

#include <algorithm>
#include <cstddef>
#include <stdexcept>
#include <string>

#if defined(__AVX512F__) || defined(__F16C__)
#include <immintrin.h>
#endif

namespace katt {

namespace {

template <class In, class Out>
void require_same_size(std::span<const In> in, std::span<Out> out) {
  if (in.size() != out.size()) {
    throw std::invalid_argument("convert: " + std::to_string(in.size()) + " elements into " +
                                std::to_string(out.size()));
  }
}

/// What remains after the vectors, and everything where there are none.
template <class In, class Out>
void convert_rest(std::span<const In> in, std::span<Out> out, std::size_t first) {
  for (std::size_t i = first; i < in.size(); ++i) out[i] = Out(static_cast<float>(in[i]));
}

#if defined(__AVX512F__)

// AVX-512F contains the 16-wide forms of F16C. For bf16 there is VCVTNEPS2BF16, but it flushes
// subnormal numbers to zero, so the rounding is done on the bits.

constexpr std::size_t lanes = 16;

__m256i load_half(const void* from) {
  return _mm256_loadu_si256(static_cast<const __m256i*>(from));
}

void store_half(void* to, __m256i bits) { _mm256_storeu_si256(static_cast<__m256i*>(to), bits); }

void convert_vector(const float* in, f16* out) {
  store_half(out, _mm512_cvtps_ph(_mm512_loadu_ps(in), _MM_FROUND_TO_NEAREST_INT));
}

void convert_vector(const f16* in, float* out) {
  _mm512_storeu_ps(out, _mm512_cvtph_ps(load_half(in)));
}

void convert_vector(const float* in, bf16* out) {
  const __m512 value = _mm512_loadu_ps(in);
  const __m512i bits = _mm512_castps_si512(value);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7FFF)));
  const __mmask16 nan = _mm512_cmp_ps_mask(value, value, _CMP_UNORD_Q);
  const __m512i quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x00400000));
  const __m512i result = _mm512_mask_blend_epi32(nan, rounded, quiet);
  store_half(out, _mm512_cvtepi32_epi16(_mm512_srli_epi32(result, 16)));
}

void convert_vector(const bf16* in, float* out) {
  const __m512i bits = _mm512_slli_epi32(_mm512_cvtepu16_epi32(load_half(in)), 16);
  _mm512_storeu_ps(out, _mm512_castsi512_ps(bits));
}

#elif defined(__F16C__)

constexpr std::size_t lanes = 8;

void convert_vector(const float* in, f16* out) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(out),
                   _mm256_cvtps_ph(_mm256_loadu_ps(in), _MM_FROUND_TO_NEAREST_INT));
}

void convert_vector(const f16* in, float* out) {
  _mm256_storeu_ps(out, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(in))));
}

#endif

template <class In, class Out>
void convert_all(std::span<const In> in, std::span<Out> out) {
  require_same_size(in, out);
  std::size_t done = 0;
#if defined(__AVX512F__) || defined(__F16C__)
  if constexpr (requires { convert_vector(in.data(), out.data()); }) {
    for (; done + lanes <= in.size(); done += lanes) {
      convert_vector(in.data() + done, out.data() + done);
    }
  }
#endif
  convert_rest(in, out, done);
}

}  // namespace

void convert(std::span<const float> in, std::span<float> out) {
  require_same_size(in, out);
  std::ranges::copy(in, out.begin());
}

void convert(std::span<const float> in, std::span<f16> out) { convert_all(in, out); }
void convert(std::span<const float> in, std::span<bf16> out) { convert_all(in, out); }
void convert(std::span<const f16> in, std::span<float> out) { convert_all(in, out); }
void convert(std::span<const bf16> in, std::span<float> out) { convert_all(in, out); }

}  // namespace katt
