#include "tile/convert.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>

#include "tile/vec/convert_avx2.hpp"
#include "tile/vec/convert_avx512.hpp"
#include "tile/vec/convert_neon.hpp"

namespace katt {

namespace {

template <class In, class Out>
void require_same_size(std::span<const In> in, std::span<Out> out) {
  if (in.size() != out.size()) {
    throw std::invalid_argument("convert: " + std::to_string(in.size()) + " elements into " +
                                std::to_string(out.size()));
  }
}

/// The rest after the vectors, or everything without vectors.
template <class In, class Out>
void convert_rest(std::span<const In> in, std::span<Out> out, std::size_t first) {
  for (std::size_t i = first; i < in.size(); ++i) out[i] = Out(static_cast<float>(in[i]));
}

#if defined(__AVX512F__)

constexpr std::size_t lanes = 16;

template <class Half>
void convert_vector(const float* in, Half* out) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), avx512::narrow<Half>(_mm512_loadu_ps(in)));
}

template <class Half>
void convert_vector(const Half* in, float* out) {
  const auto half = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(in));
  _mm512_storeu_ps(out, avx512::widen<Half>(half));
}

#elif defined(__AVX2__) && defined(__F16C__)

constexpr std::size_t lanes = 8;

template <class Half>
void convert_vector(const float* in, Half* out) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(out), avx2::narrow<Half>(_mm256_loadu_ps(in)));
}

template <class Half>
void convert_vector(const Half* in, float* out) {
  const auto half = _mm_loadu_si128(reinterpret_cast<const __m128i*>(in));
  _mm256_storeu_ps(out, avx2::widen<Half>(half));
}

#elif defined(__aarch64__) && defined(__ARM_NEON)

constexpr std::size_t lanes = 4;

template <class Half>
void convert_vector(const float* in, Half* out) {
  vst1_u16(reinterpret_cast<std::uint16_t*>(out), neon::narrow<Half>(vld1q_f32(in)));
}

template <class Half>
void convert_vector(const Half* in, float* out) {
  vst1q_f32(out, neon::widen<Half>(vld1_u16(reinterpret_cast<const std::uint16_t*>(in))));
}

#else

constexpr std::size_t lanes = 0;  // none

template <class In, class Out>
void convert_vector(const In* /*in*/, Out* /*out*/) {}

#endif

template <class In, class Out>
void convert_all(std::span<const In> in, std::span<Out> out) {
  require_same_size(in, out);
  std::size_t done = 0;
  if constexpr (lanes > 0) {
    for (; done + lanes <= in.size(); done += lanes) {
      convert_vector(in.data() + done, out.data() + done);
    }
  }
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
