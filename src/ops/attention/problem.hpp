#pragma once

#include <cstddef>
#include <cstdint>

#include <Kokkos_Core.hpp>

#include "ops/attention/attention.hpp"
#include "ops/attention/backward.hpp"
#include "ops/attention/scores.hpp"
#include "tile/bf16/transpose.hpp"
#include "tile/rows/elementwise.hpp"
#include "tile/vec/vec.hpp"

/// The arguments of a call in the form for kernels: rows of tensors, extents, score rule, and the
/// division of the packed query rows into tiles.
namespace katt::attention::impl {

/// Rows of head_dim elements of a tensor (batch, head, seq, head_dim).
template <class T>
struct HeadRows {
  T* data = nullptr;
  std::int64_t stride_batch = 0;
  std::int64_t stride_head = 0;
  std::int64_t stride_seq = 0;

  HeadRows() = default;
  template <bool Const>
  explicit HeadRows(const BasicTensorRef<4, Const>& tensor)
      : data(static_cast<T*>(tensor.data)),
        stride_batch(tensor.stride[0]),
        stride_head(tensor.stride[1]),
        stride_seq(tensor.stride[2]) {}

  KOKKOS_INLINE_FUNCTION T* row(std::int64_t b, std::int64_t head, std::int64_t i) const {
    return data + b * stride_batch + head * stride_head + i * stride_seq;
  }
};

/// A number for every query row (batch, head, seq), such as lse.
template <class T>
struct RowValues {
  T* data = nullptr;
  std::int64_t stride_batch = 0;
  std::int64_t stride_head = 0;
  std::int64_t stride_seq = 0;

  template <bool Const>
  explicit RowValues(const BasicTensorRef<3, Const>& tensor)
      : data(static_cast<T*>(tensor.data)),
        stride_batch(tensor.stride[0]),
        stride_head(tensor.stride[1]),
        stride_seq(tensor.stride[2]) {}

  KOKKOS_INLINE_FUNCTION explicit operator bool() const { return data != nullptr; }
  KOKKOS_INLINE_FUNCTION T& operator()(std::int64_t b, std::int64_t head, std::int64_t i) const {
    return data[b * stride_batch + head * stride_head + i * stride_seq];
  }
};

/// Some of the packed query rows of a K/V head of a batch entry.
struct QueryTile {
  std::int64_t batch;
  PackedRows packed;
  int rows;

  KOKKOS_INLINE_FUNCTION std::int64_t first() const { return packed.query(0); }
  KOKKOS_INLINE_FUNCTION std::int64_t last() const { return packed.query(rows - 1); }
};

/// The inputs of both passes.
template <class T, class Rule>
struct Problem {
  HeadRows<const T> q, k, v;
  Scores<T, Rule> scores;
  std::int64_t batch, kv_heads, seq_kv;
  std::int64_t group;  ///< query heads per K/V head
  std::int64_t rows;   ///< packed query rows per K/V head
  int head_dim;

  template <class Args>
  Problem(const Args& args, const Rule& rule)
      : q(args.q),
        k(args.k),
        v(args.v),
        scores(args, rule),
        batch(args.batch()),
        kv_heads(args.kv_heads()),
        seq_kv(args.seq_kv()),
        group(args.heads() / args.kv_heads()),
        rows(args.seq_q() * group),
        head_dim(static_cast<int>(args.head_dim())) {}

  /// Pairs of a batch entry and a K/V head.
  KOKKOS_INLINE_FUNCTION std::int64_t heads() const { return batch * kv_heads; }
  KOKKOS_INLINE_FUNCTION std::int64_t row_tiles(int size) const { return (rows + size - 1) / size; }

  /// Tile `index` of heads() · row_tiles(size): head-major, so that neighbouring workers share a
  /// head's keys in cache; within a head from the last rows, which see the most keys under a causal
  /// mask, to the first.
  KOKKOS_INLINE_FUNCTION QueryTile query_tile(std::int64_t index, int size) const {
    const std::int64_t tiles = row_tiles(size);
    const std::int64_t begin = (tiles - 1 - index % tiles) * size;
    return {index / tiles / kv_heads,
            {index / tiles % kv_heads, group, begin},
            static_cast<int>(Kokkos::min<std::int64_t>(size, rows - begin))};
  }
};

template <class T, class Rule>
struct ForwardProblem : Problem<T, Rule> {
  HeadRows<T> out;
  RowValues<float> lse;

  ForwardProblem(const ForwardArgs& args, const Rule& rule)
      : Problem<T, Rule>(args, rule), out(args.out), lse(args.lse) {}
};

template <class T, class Rule>
struct BackwardProblem : Problem<T, Rule> {
  HeadRows<const T> out, dout;
  RowValues<const float> lse, dlse;
  HeadRows<T> dq, dk, dv;

  /// The gradient of lse of a row, 0 where it has none: in a row that sees no key, too.
  KOKKOS_INLINE_FUNCTION float lse_gradient(std::int64_t b, std::int64_t head,
                                            std::int64_t i) const {
    if (!dlse || lse(b, head, i) == -Kokkos::Experimental::infinity_v<float>) return 0.0F;
    return dlse(b, head, i);
  }

  BackwardProblem(const BackwardArgs& args, const Rule& rule)
      : Problem<T, Rule>(args, rule),
        out(args.out),
        dout(args.dout),
        lse(args.lse),
        dlse(args.dlse),
        dq(args.dq),
        dk(args.dk),
        dv(args.dv) {}
};

/// Number of parts of a backward pass: enough for the threads of a large host, and the same on
/// every host, so that results do not depend on it.
inline constexpr std::int64_t least_items = 16;

/// Number of sections for the key tiles of a head when heads are few: each section has its own sum
/// of dQ.
KOKKOS_INLINE_FUNCTION std::int64_t key_sections(std::int64_t heads, std::int64_t key_tiles) {
  const std::int64_t wanted = heads == 0 ? 1 : (least_items + heads - 1) / heads;
  return Kokkos::max<std::int64_t>(1, Kokkos::min(wanted, key_tiles));
}

/// Δ of one query row: Σ_d dout · out, in the order in which the kernel sums dP = Σ_d dout · v,
/// groups of `Group` elements from the last one backwards. For a row that sees one key, whose value
/// is `out`, dP − Δ is then exactly 0, like its gradient.
template <int Group, class T>
KOKKOS_INLINE_FUNCTION float row_delta(const T* out, const T* dout, int head_dim) {
  float sum = 0.0F;
  for (int d = 0; d < head_dim; d += Group) {
    for (int i = Group - 1; i >= 0; --i) {
      sum = tile::fma(static_cast<float>(dout[d + i]), static_cast<float>(out[d + i]), sum);
    }
  }
  return sum;
}

/// A whole vector of a row of `left` elements, zeros beyond them; all zeros without a row.
template <class Vec, class T>
KOKKOS_FORCEINLINE_FUNCTION Vec load_of_row(const T* row, int left) {
  constexpr int lanes = sizeof(Vec) / sizeof(float);
  if (row == nullptr) return Vec(0.0F);
  return left >= lanes ? tile::load<Vec>(row) : tile::load<Vec>(row, tile::PartialVector{left});
}

/// Elements d … of as many rows as a host vector has lanes, transposed: a vector an element.
/// row(r) is the first element of row r, or nullptr.
template <class Vec, int Lanes, class Row>
KOKKOS_INLINE_FUNCTION void load_transposed(const Row& row, int d, int head_dim,
                                            Vec (&square)[Lanes]) {
  for (int r = 0; r < Lanes; ++r) {
    const auto* first = row(r);
    square[r] = load_of_row<Vec>(first == nullptr ? first : first + d, head_dim - d);
  }
  tile::transpose(square);
}

/// The same Δ of as many rows as a host vector has lanes.
template <int Group, class Vec, class Out, class Dout>
KOKKOS_INLINE_FUNCTION Vec row_deltas(const Out& out, const Dout& dout, int head_dim) {
  constexpr int lanes = sizeof(Vec) / sizeof(float);
  Vec sum(0.0F);
  for (int d = 0; d < head_dim; d += lanes) {
    Vec left[lanes];
    Vec right[lanes];
    load_transposed(dout, d, head_dim, left);
    load_transposed(out, d, head_dim, right);
    for (int first = 0; first < lanes; first += Group) {
      for (int i = first + Group - 1; i >= first; --i) sum = tile::fma(left[i], right[i], sum);
    }
  }
  return sum;
}

}  // namespace katt::attention::impl
