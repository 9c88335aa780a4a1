#pragma once

#include <cstdint>

#include <Kokkos_Core.hpp>

#include "tile/engine.hpp"
#include "tile/fragments.hpp"
#include "tile/pack.hpp"

/// What the threads of a device do together for RowEngine: rows into shared memory, the softmax of a
/// row by a warp.
namespace katt::tile {

/// Where the running statistics of a row are.
struct RunningSoftmax {
  float* max;      ///< in base 2
  float* sum;      ///< of the probabilities
  float* rescale;  ///< 2^(m − m′), what the earlier ones are multiplied with
};

/// Scores of a row become probabilities, 2^(factor · score − max), by the threads of a warp; `lane` is
/// the number of this one.
KOKKOS_INLINE_FUNCTION void softmax_of_warp(float* scores, int columns, int lane, float factor,
                                            const RunningSoftmax& row) {
  constexpr int threads = static_cast<int>(warp_size);
  const auto over_warp = [](float value, const auto& f) {
    KOKKOS_IF_ON_DEVICE((for (int mask = threads / 2; mask > 0; mask /= 2) {
      value = f(value, __shfl_xor_sync(0xFFFFFFFFU, value, mask));
    }))
    (void)f;
    return value;
  };
  float largest = -Kokkos::Experimental::infinity_v<float>;
  for (int j = lane; j < columns; j += threads) largest = max(largest, scores[j]);
  largest = over_warp(largest, [](float a, float b) { return max(a, b); });
  const float old_max = *row.max;
  const float new_max = max(old_max, largest * factor);
  const float rescale = exp2(float(old_max - new_max));
  float sum = 0.0F;
  for (int j = lane; j < columns; j += threads) {
    const float p = exp2(fma(scores[j], factor, -new_max));
    scores[j] = p;
    sum += p;
  }
  sum = over_warp(sum, [](float a, float b) { return a + b; });
  KOKKOS_IF_ON_DEVICE((__syncwarp();))  // all have read what one writes now
  if (lane == 0) {
    *row.rescale = rescale;
    *row.sum = *row.sum * rescale + sum;
    *row.max = new_max;
  }
}

/// Copies rows of `columns` elements to `target`, widened to f32, `stride` floats apart; thread `rank`
/// of `size`. 16 bytes at a time where they lie so, a few chunks of a thread together: all are loaded
/// before any is stored.
template <class T>
KOKKOS_INLINE_FUNCTION void widen_rows(const Rows<T>& source, int columns, float* target,
                                       int stride, int rank, int size) {
  constexpr auto bytes = static_cast<std::int64_t>(sizeof(T));
  if (reinterpret_cast<std::uintptr_t>(source.data) % 16 != 0 || source.stride * bytes % 16 != 0 ||
      columns % chunk_elements != 0) {
    for (int item = rank; item < source.count * columns; item += size) {
      const int r = item / columns;
      const int d = item - r * columns;
      target[r * stride + d] = static_cast<float>(source.data[r * source.stride + d]);
    }
    return;
  }
  constexpr int together = 4;
  const int of_row = columns / chunk_elements;
  const int all = source.count * of_row;
  for (int first = rank; first < all; first += together * size) {
    float values[together][chunk_elements];
    const auto each = [&](const auto& f) {
      KATT_UNROLL
      for (int k = 0; k < together; ++k) {
        const int item = first + k * size;
        const int r = item / of_row;
        if (item < all) f(k, r, (item - r * of_row) * chunk_elements);
      }
    };
    each([&](int k, int r, int d) { load_chunk(source.data + r * source.stride + d, values[k]); });
    each([&](int k, int r, int d) {
      KATT_UNROLL
      for (int i = 0; i < chunk_elements; ++i) target[r * stride + d + i] = values[k][i];
    });
  }
}

}  // namespace katt::tile
