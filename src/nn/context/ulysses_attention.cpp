#include "nn/context/ulysses_attention.hpp"

#include <algorithm>

#include <Kokkos_Core.hpp>

#include "core/execution.hpp"
#include "core/views.hpp"
#include "ops/attention/backward.hpp"

namespace katt::nn {

namespace {

/// A matrix of `sections` (queries: 1; keys and values: 2) times all heads on one side, the own heads
/// on the other.
struct Exchange {
  ZigzagRows rows;
  std::int64_t batch = 0, sections = 1, width = 0;  ///< elements of a section with all heads

  [[nodiscard]] std::int64_t own_width() const { return width / rows.ranks; }
  /// Elements that each rank sends to each.
  [[nodiscard]] std::int64_t part() const { return batch * rows.rows() * sections * own_width(); }
  [[nodiscard]] std::int64_t size() const { return part() * rows.ranks; }
};

/// The place of an element of a message: messages are (rank, batch, row, section, column). With
/// `by_token` the matrix has the rows of `here` and all heads, and the rank selects the heads.
/// Otherwise it has all tokens and the own heads, and the rank selects the rows; rows behind the
/// end of a chunk have no place.
struct MessagePlace {
  ZigzagPlace tokens;
  std::int64_t batch, sections, own_width;
  bool by_token;

  MessagePlace(const Exchange& of, bool own_tokens)
      : tokens(of.rows),
        batch(of.batch),
        sections(of.sections),
        own_width(of.own_width()),
        by_token(own_tokens) {}

  /// Row and column of element i; row −1: none.
  KOKKOS_FUNCTION void find(std::int64_t i, std::int64_t& row, std::int64_t& column) const {
    const std::int64_t c = i % own_width;
    const std::int64_t section = i / own_width % sections;
    const std::int64_t r = i / (own_width * sections) % tokens.rows;
    const std::int64_t b = i / (own_width * sections * tokens.rows) % batch;
    const std::int64_t rank = i / (own_width * sections * tokens.rows * batch);
    row = by_token ? b * tokens.rows + r : tokens.whole_row(rank, b, r);
    column = (by_token ? section * tokens.ranks + rank : section) * own_width + c;
  }
};

template <class T, class Memory>
struct PackMessages {
  MessagePlace place;
  StridedView<const T, 2, Memory> from;
  T* to;

  KOKKOS_FUNCTION void operator()(std::int64_t i) const {
    std::int64_t row = 0, column = 0;
    place.find(i, row, column);
    to[i] = row < 0 ? T(0.0F) : from(row, column);
  }
};

template <class T, class Memory>
struct UnpackMessages {
  MessagePlace place;
  const T* from;
  StridedView<T, 2, Memory> to;

  KOKKOS_FUNCTION void operator()(std::int64_t i) const {
    std::int64_t row = 0, column = 0;
    place.find(i, row, column);
    if (row >= 0) to(row, column) = from[i];
  }
};

/// to ← from: own tokens of all heads become all tokens of the own heads, or the reverse.
template <class Exec>
void exchange(Runner<Exec>& run, const Exchange& what, const TensorRef<2>& from,
              const TensorRef<2>& to, bool to_heads, const UlyssesBuffers& buffers) {
  if (run.is_dry()) return;
  using Memory = typename Exec::memory_space;
  const Kokkos::Profiling::ScopedRegion region("katt::ranks::all_to_all");
  const std::int64_t size = what.size();
  const Kokkos::RangePolicy<Exec, Kokkos::IndexType<std::int64_t>> range(run.exec(), 0, size);
  const TensorRef<1> sent(buffers.sent.data, from.dtype, {size});
  const TensorRef<1> received(buffers.received.data, from.dtype, {size});
  visit_dtype(from.dtype, [&]<class T>() {
    Kokkos::parallel_for("katt::nn::ulysses_pack", range,
                         PackMessages<T, Memory>{MessagePlace(what, to_heads),
                                                 ConstTensorRef<2>(from).view<T, Memory>(),
                                                 static_cast<T*>(sent.data)});
    run.groups().context.all_to_all(run.exec(), sent, received).wait();
    Kokkos::parallel_for(
        "katt::nn::ulysses_unpack", range,
        UnpackMessages<T, Memory>{MessagePlace(what, !to_heads),
                                  static_cast<const T*>(received.data), to.view<T, Memory>()});
  });
}

/// The exchanges of a pass.
template <class Exec>
struct Exchanges {
  Runner<Exec>& run;
  const UlyssesShape& shape;
  const UlyssesBuffers& buffers;

  [[nodiscard]] Exchange queries() const {
    return {shape.queries(), shape.batch, 1, shape.heads * shape.head_dim};
  }
  [[nodiscard]] Exchange keys() const {
    return {shape.keys(), shape.batch, 2, shape.kv_heads * shape.head_dim};
  }
  void to_heads(const Exchange& what, const TensorRef<2>& from, const TensorRef<2>& to) const {
    exchange(run, what, from, to, true, buffers);
  }
  void to_tokens(const Exchange& what, const TensorRef<2>& from, const TensorRef<2>& to) const {
    exchange(run, what, from, to, false, buffers);
  }
  [[nodiscard]] TensorRef<4> query_heads(const TensorRef<2>& rows) const {
    return heads_of(rows, 0, shape.batch, shape.own_heads(), shape.head_dim);
  }
  /// Part 0: keys, 1: values.
  [[nodiscard]] TensorRef<4> kv_heads(const TensorRef<2>& rows, std::int64_t part) const {
    return heads_of(rows, part * shape.own_kv_heads() * shape.head_dim, shape.batch,
                    shape.own_kv_heads(), shape.head_dim);
  }
};

}  // namespace

UlyssesBuffers lay_out_ulysses(Arena& arena, Dtype dtype, const UlyssesShape& shape,
                               bool backward) {
  const std::int64_t q = shape.own_heads() * shape.head_dim;
  const std::int64_t kv = 2 * shape.own_kv_heads() * shape.head_dim;
  const std::int64_t queries = shape.batch * shape.seq_q, keys = shape.batch * shape.seq_kv;
  const std::int64_t most =
      shape.batch * shape.ranks * std::max(shape.queries().rows() * q, shape.keys().rows() * kv);
  UlyssesBuffers at;
  at.sent = arena.tensor<1>(dtype, {most});
  at.received = arena.tensor<1>(dtype, {most});
  at.q = arena.tensor<2>(dtype, {queries, q});
  at.out = arena.tensor<2>(dtype, {queries, q});
  at.kv = arena.tensor<2>(dtype, {keys, kv});
  if (!backward) return at;
  at.dout = arena.tensor<2>(dtype, {queries, q});
  at.dq = arena.tensor<2>(dtype, {queries, q});
  at.dkv = arena.tensor<2>(dtype, {keys, kv});
  return at;
}

template <class Exec>
void ulysses_forward(Runner<Exec>& run, const Kernels& kernels, const UlyssesShape& shape,
                     const RingForwardArgs& args, const UlyssesRule& rule,
                     const UlyssesBuffers& buffers) {
  const Exchanges<Exec> all{run, shape, buffers};
  all.to_heads(all.queries(), args.q, buffers.q);
  all.to_heads(all.keys(), args.kv, buffers.kv);
  run(attention::forward_variants<Exec>(),
      attention::ForwardArgs{.q = all.query_heads(buffers.q),
                             .k = all.kv_heads(buffers.kv, 0),
                             .v = all.kv_heads(buffers.kv, 1),
                             .out = all.query_heads(buffers.out),
                             .lse = args.lse,
                             .scale = args.scale,
                             .score = rule.score,
                             .mask = rule.mask,
                             .for_backward = args.for_backward},
      kernels.attention);
  all.to_tokens(all.queries(), buffers.out, args.out);
}

template <class Exec>
void ulysses_backward(Runner<Exec>& run, const Kernels& kernels, const UlyssesShape& shape,
                      const RingBackwardArgs& args, const UlyssesRule& rule,
                      const UlyssesBuffers& buffers) {
  const Exchanges<Exec> all{run, shape, buffers};
  all.to_heads(all.queries(), args.q, buffers.q);
  all.to_heads(all.keys(), args.kv, buffers.kv);
  all.to_heads(all.queries(), args.out, buffers.out);
  all.to_heads(all.queries(), args.dout, buffers.dout);
  run(attention::backward_variants<Exec>(),
      attention::BackwardArgs{.q = all.query_heads(buffers.q),
                              .k = all.kv_heads(buffers.kv, 0),
                              .v = all.kv_heads(buffers.kv, 1),
                              .out = all.query_heads(buffers.out),
                              .dout = all.query_heads(buffers.dout),
                              .lse = args.lse,
                              .dq = all.query_heads(buffers.dq),
                              .dk = all.kv_heads(buffers.dkv, 0),
                              .dv = all.kv_heads(buffers.dkv, 1),
                              .scale = args.scale,
                              .score = rule.score,
                              .mask = rule.mask},
      kernels.attention);
  all.to_tokens(all.queries(), buffers.dq, args.dq);
  all.to_tokens(all.keys(), buffers.dkv, args.dkv);
}

#define KATT_INSTANTIATE_ULYSSES(Exec)                                                     \
  template void ulysses_forward<Exec>(Runner<Exec>&, const Kernels&, const UlyssesShape&,  \
                                      const RingForwardArgs&, const UlyssesRule&,          \
                                      const UlyssesBuffers&);                              \
  template void ulysses_backward<Exec>(Runner<Exec>&, const Kernels&, const UlyssesShape&, \
                                       const RingBackwardArgs&, const UlyssesRule&,        \
                                       const UlyssesBuffers&);

KATT_FOR_EACH_EXEC(KATT_INSTANTIATE_ULYSSES)

}  // namespace katt::nn
