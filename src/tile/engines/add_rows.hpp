#pragma once

#include "tile/bf16/transpose.hpp"
#include "tile/engines/engine.hpp"

namespace katt::tile {

/// True for an engine whose for_each_part() gives parts with neighbouring rows side by side, on a
/// host.
template <class Engine>
concept ColumnsOuter = Engine::columns_outer;

/// score(r, j) += row_of(r)[j] for the first `columns` columns of a part that has neighbouring rows
/// side by side: squares of what is added are transposed in registers.
template <class Vec, class RowOf>
void add_rows(const ScorePart& part, int columns, const RowOf& row_of) {
  constexpr int lanes = sizeof(Vec) / sizeof(float);
  static_assert(16 % lanes == 0);
  for (int first = 0; first < part.existing; first += lanes) {
    decltype(row_of(0)) added[lanes];
    for (int lane = 0; lane < lanes; ++lane) {
      added[lane] = row_of(Kokkos::min(first + lane, part.existing - 1));
    }
    float* score = part.score + first / 16 * part.vector + first % 16;
    int j = 0;
    for (; j + lanes <= columns; j += lanes) {
      Vec square[lanes];
      for (int lane = 0; lane < lanes; ++lane) square[lane] = load<Vec>(added[lane] + j);
      transpose(square);
      for (int c = 0; c < lanes; ++c, score += part.stride) {
        store(score, Vec(load<Vec>(score) + square[c]));
      }
    }
    for (; j < columns; ++j, score += part.stride) {
      for (int lane = 0; lane < lanes; ++lane) score[lane] += static_cast<float>(added[lane][j]);
    }
  }
}

}  // namespace katt::tile
