#pragma once

#include <cstdint>

#include <Kokkos_Core.hpp>

#include "core/execution.hpp"
#include "tile/rows/columns.hpp"
#include "tile/rows/pairs.hpp"
#include "tile/rows/rows.hpp"
#include "tile/rows/stream.hpp"
#include "tile/vec/vec.hpp"

/// Launches of element-wise kernels: one body, written in vectors, for every element of a matrix.
namespace katt::tile {

/// The number of lanes of a vector that hold elements: all, or the first few at the end of a row.
/// The arithmetic uses whole vectors either way, so a value does not depend on its place.
struct WholeVector {
  static constexpr bool streamed = false;
};
/// All lanes, and stores bypass the caches (see stream.hpp).
struct StreamedVector {
  static constexpr bool streamed = true;
};
struct PartialVector {
  int count;
};

template <class Vec, class T, class Lanes>
KOKKOS_FORCEINLINE_FUNCTION Vec load(const T* source, Lanes /*lanes*/) {
  return load<Vec>(source);
}

/// Lanes beyond the count are 0.
template <class Vec, class T>
KOKKOS_FORCEINLINE_FUNCTION Vec load(const T* source, PartialVector lanes) {
  T padded[sizeof(Vec) / sizeof(float)] = {};
  for (int lane = 0; lane < lanes.count; ++lane) padded[lane] = source[lane];
  return load<Vec>(padded);
}

template <class Vec, class T, class Lanes>
KOKKOS_FORCEINLINE_FUNCTION void store(T* target, const Vec& value, Lanes /*lanes*/) {
  store_to<Lanes::streamed>(target, value);
}

/// Two whole vectors in the order of load_two().
template <class Vec, class T, class Lanes>
KOKKOS_FORCEINLINE_FUNCTION void store_two(T* target, const Vec& a, const Vec& b, Lanes /*lanes*/) {
  store_two<Lanes::streamed>(target, a, b);
}

template <class Vec, class T>
KOKKOS_FORCEINLINE_FUNCTION void store(T* target, const Vec& value, PartialVector lanes) {
  T padded[sizeof(Vec) / sizeof(float)];
  store(padded, value);
  for (int lane = 0; lane < lanes.count; ++lane) target[lane] = padded[lane];
}

/// True when a rows × columns output at `data`, rows `stride` elements apart, is large enough for
/// streaming stores and aligned for them.
template <class Exec, class T>
bool should_stream(const T* data, std::int64_t rows, std::int64_t columns, std::int64_t stride) {
  constexpr auto size = static_cast<std::int64_t>(sizeof(T));
  return can_stream_v<Exec> && rows * columns * size >= streaming_bytes && is_streamable(data) &&
         (rows == 1 || stride * size % 64 == 0);
}

namespace impl {

/// A row in pieces of this many elements; one thread works on a piece at a time.
inline constexpr std::int64_t piece_elements = 2048;

template <class Exec, class Body, class Whole>
struct HostElementwise {
  Body body;
  std::int64_t columns;
  std::int64_t pieces;  ///< of a row

  void operator()(std::int64_t item) const {
    constexpr int lanes = lanes_v<Exec>;
    using Vec = VecOf<Exec>;
    const std::int64_t row = item / pieces;
    const std::int64_t begin = item % pieces * piece_elements;
    const std::int64_t end = begin + piece_elements < columns ? begin + piece_elements : columns;
    std::int64_t column = begin;
    if constexpr (requires { body.template pair<Vec>(row, column, Whole{}); }) {
      for (; column + 2 * lanes <= end; column += 2 * lanes) {
        body.template pair<Vec>(row, column, Whole{});
      }
    }
    for (; column + lanes <= end; column += lanes) {
      body.template operator()<Vec>(row, column, Whole{});
    }
    if (column < end) {
      body.template operator()<Vec>(row, column, PartialVector{static_cast<int>(end - column)});
    }
    if constexpr (Whole::streamed) stream_fence();
  }
};

template <class Body>
struct DeviceElementwise {
  Body body;
  std::int64_t columns;

  KOKKOS_INLINE_FUNCTION void operator()(std::int64_t item) const {
    body.template operator()<float>(item / columns, item % columns, WholeVector{});
  }
};

/// A piece of a row for a WideTeam: the elements that its threads load at once.
template <class Exec, int Most, class Body>
struct WideElements {
  static constexpr std::int64_t piece = Most * chunk_stride;
  Body body;
  std::int64_t columns;
  int pieces;  ///< of a row

  template <class Team>
  KOKKOS_FORCEINLINE_FUNCTION void operator()(const Team& team, std::int64_t item) const {
    const int row = static_cast<int>(item) / pieces;
    const std::int64_t begin = (static_cast<int>(item) - row * pieces) * piece;
    for_columns<Exec, Most>(team, begin, Kokkos::min(begin + piece, columns),
                            [&]<class V>(std::int64_t c) {
                              body.template operator()<V>(std::int64_t{row}, c, WholeVector{});
                            });
  }
};

}  // namespace impl

/// Calls body.operator()<Vec>(row, column, lanes) for vectors that together hold every element of a
/// rows × columns matrix once; load() and store() with these lanes move them. A body with long
/// chains of arithmetic may also have pair<Vec>(row, column, lanes), for two vectors side by side:
/// it loads both before it stores one, so the chains overlap. `stream` requests streaming stores,
/// when should_stream() holds for every output. Does not wait.
template <class Exec, class Body>
void for_each_vector(const Exec& exec, const char* label, std::int64_t rows, std::int64_t columns,
                     const Body& body, bool stream = false) {
  using Policy = Kokkos::RangePolicy<Exec, Kokkos::IndexType<std::int64_t>>;
  if (rows == 0 || columns == 0) return;
  if constexpr (is_host_v<Exec>) {
    const std::int64_t pieces = (columns + impl::piece_elements - 1) / impl::piece_elements;
    const auto launch = [&]<class Whole>() {
      Kokkos::parallel_for(label, Policy(exec, 0, rows * pieces),
                           impl::HostElementwise<Exec, Body, Whole>{body, columns, pieces});
    };
    if constexpr (can_stream_v<Exec>) {
      if (stream) return launch.template operator()<StreamedVector>();
    }
    launch.template operator()<WholeVector>();
  } else {
    Kokkos::parallel_for(label, Policy(exec, 0, rows * columns),
                         impl::DeviceElementwise<Body>{body, columns});
  }
}

/// for_each_vector() for a body that takes any vector: on a device packs of up to `Most` chunks
/// when `wide`, that is are_chunks() of all tensors of the body. With fewer chunks a body of many
/// tensors needs fewer registers.
template <int Most = most_chunks, class Exec, class Body>
void for_each_wide_vector(const Exec& exec, const char* label, std::int64_t rows,
                          std::int64_t columns, const Body& body, bool wide, bool stream = false) {
  if constexpr (!is_host_v<Exec>) {
    using Pieces = impl::WideElements<Exec, Most, Body>;
    const std::int64_t pieces = (columns + Pieces::piece - 1) / Pieces::piece;
    if constexpr (Most > 1) {
      // Few elements leave most of the device idle: a thread then takes one chunk, not several.
      const std::int64_t least = exec.concurrency() / row_team_size / 8;
      if (wide && rows * pieces < least) {
        return for_each_wide_vector<1>(exec, label, rows, columns, body, wide);
      }
    }
    if (wide && rows * pieces <= 0x7FFFFFFF) {
      const Pieces kernel{body, columns, static_cast<int>(pieces)};
      launch_wide_rows(exec, label, rows * pieces, kernel);
      return;
    }
  }
  for_each_vector(exec, label, rows, columns, body, stream);
}

}  // namespace katt::tile
