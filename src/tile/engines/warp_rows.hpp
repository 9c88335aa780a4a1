#pragma once

#include <cstdint>

#include <Kokkos_Core.hpp>

#include "tile/cuda/warp.hpp"
#include "tile/engines/engine.hpp"
#include "tile/rows/pack.hpp"

/// The softmax of a row for RowEngine, and the other work that the threads of a device do together
/// for it: copies of rows into shared memory.
namespace katt::tile {

/// The places of the running statistics of a row.
struct RunningSoftmax {
  float* max;      ///< the largest score
  float* sum;      ///< sum of the probabilities
  float* rescale;  ///< 2^(factor · (m − m′)), the factor of the earlier sums
};

/// Turns the scores of a row into probabilities, 2^(factor · (score − max)), on a host: `columns`
/// of them, then room for a vector.
template <class Vec>
KOKKOS_FORCEINLINE_FUNCTION void softmax_of_vectors(float* s, int columns, float factor,
                                                    const RunningSoftmax& row) {
  constexpr int lanes = sizeof(Vec) / sizeof(float);
  int end = columns;
  for (; end % lanes != 0; ++end) s[end] = -Kokkos::Experimental::infinity_v<float>;
  Vec largest(-Kokkos::Experimental::infinity_v<float>);
  for (int j = 0; j < end; j += lanes) largest = max(largest, load<Vec>(s + j));
  const float new_max = max(*row.max, reduce_max(largest));
  Vec sum(0.0F);
  for (int j = 0; j < end; j += lanes) {
    const Vec p = exp2(Vec((load<Vec>(s + j) - Vec(new_max)) * Vec(factor)));
    store(s + j, p);
    sum = sum + p;
  }
  const Vec rescale = exp2(Vec((*row.max - new_max) * factor));
  if constexpr (lanes == 1) {
    *row.rescale = rescale;
  } else {
    *row.rescale = rescale[0];
  }
  *row.sum = *row.sum * *row.rescale + reduce_sum(sum);
  *row.max = new_max;
}

/// The same on a device, by the threads of a warp; `lane` is the number of this one.
KOKKOS_INLINE_FUNCTION void softmax_of_warp(float* scores, int columns, int lane, float factor,
                                            const RunningSoftmax& row) {
  constexpr int threads = static_cast<int>(warp_size);
  float largest = -Kokkos::Experimental::infinity_v<float>;
  for (int j = lane; j < columns; j += threads) largest = max(largest, scores[j]);
  largest = over_warp(largest, [](float a, float b) { return max(a, b); });
  const float old_max = *row.max;
  const float new_max = max(old_max, largest);
  const float rescale = exp2(float((old_max - new_max) * factor));
  float sum = 0.0F;
  for (int j = lane; j < columns; j += threads) {
    const float p = exp2(float((scores[j] - new_max) * factor));
    scores[j] = p;
    sum += p;
  }
  sum = over_warp(sum, [](float a, float b) { return a + b; });
  KOKKOS_IF_ON_DEVICE((__syncwarp();))  // all threads have read the value that one writes now
  if (lane == 0) {
    *row.rescale = rescale;
    *row.sum = *row.sum * rescale + sum;
    *row.max = new_max;
  }
}

/// Widens a query that is chunks, by the threads of a warp: element d goes to q[d · step]; o becomes 0.
template <class T>
KOKKOS_FORCEINLINE_FUNCTION void widen_query(const T* source, int head_dim, int lane, float* q,
                                             int step, float* o) {
  constexpr int threads = static_cast<int>(warp_size);
  for (int d = lane * chunk_elements; d < head_dim; d += threads * chunk_elements) {
    float values[chunk_elements];
    load_chunk(source + d, values);
    KATT_UNROLL
    for (int i = 0; i < chunk_elements; ++i) {
      q[(d + i) * step] = values[i];
      o[d + i] = 0.0F;
    }
  }
}

/// Copies rows of `columns` elements to `target`, widened to f32, `stride` floats apart; thread
/// `rank` of `size`. `Wide`: the rows are chunks (are_chunks()), so a thread moves 16 bytes at a
/// time and four chunks together: it loads all before it stores any.
template <bool Wide, class T>
KOKKOS_INLINE_FUNCTION void widen_rows(const Rows<T>& source, int columns, float* target,
                                       int stride, int rank, int size) {
  if constexpr (!Wide) {
    for (int item = rank; item < source.count * columns; item += size) {
      const int r = item / columns;
      const int d = item - r * columns;
      target[r * stride + d] = static_cast<float>(source.data[r * source.stride + d]);
    }
  } else {
    const int of_row = columns / chunk_elements;
    const int all = source.count * of_row;
    const auto copy = [&]<int Together>(int first) {
      float values[Together][chunk_elements];
      int place[Together];  // in target
      KATT_UNROLL
      for (int k = 0; k < Together; ++k) {
        const int r = (first + k * size) / of_row;
        const int d = (first + k * size - r * of_row) * chunk_elements;
        place[k] = r * stride + d;
        load_chunk(source.data + r * source.stride + d, values[k]);
      }
      KATT_UNROLL
      for (int k = 0; k < Together; ++k) {
        KATT_UNROLL
        for (int i = 0; i < chunk_elements; ++i) target[place[k] + i] = values[k][i];
      }
    };
    constexpr int together = 4;
    int first = rank;
    for (; first + (together - 1) * size < all; first += together * size) {
      copy.template operator()<together>(first);
    }
    for (; first < all; first += size) copy.template operator()<1>(first);
  }
}

}  // namespace katt::tile
