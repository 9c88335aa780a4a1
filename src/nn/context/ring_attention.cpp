#include "nn/context/ring_attention.hpp"

#include <utility>

#include <Kokkos_Core.hpp>

#include "core/execution.hpp"
#include "core/parts.hpp"
#include "core/views.hpp"
#include "nn/context/ring_parts.hpp"
#include "nn/context/ring_schedule.hpp"

namespace katt::nn {

namespace {

using impl::kv_heads;
using impl::query_heads;
using impl::seq_part;

template <class Exec>
using Range = Kokkos::RangePolicy<Exec, Kokkos::IndexType<std::int64_t>>;

/// to ← from, or to ← to + from, element by element of matrices.
template <class To, class From, class Memory>
struct MoveRows {
  StridedView<const From, 2, Memory> from;
  StridedView<To, 2, Memory> to;
  bool adds;

  KOKKOS_FUNCTION void operator()(std::int64_t i) const {
    const auto columns = static_cast<std::int64_t>(from.extent(1));
    const std::int64_t t = i / columns;
    const std::int64_t c = i % columns;
    const auto value = static_cast<float>(from(t, c));
    to(t, c) = static_cast<To>(adds ? static_cast<float>(to(t, c)) + value : value);
  }
};

/// Adds a part to the merged sums: with m = max(lse, lse'),
///
///   sum ← exp(lse − m) · sum + exp(lse' − m) · out',   weight ← exp(lse − m) · weight + exp(lse' − m),
///   lse ← m
///
/// So an lse stays that of one part, bit by bit, until the end: a large lse that is rounded with
/// every part would carry all of these errors into P = exp(S − lse) of the backward pass.
template <class T, class Memory>
struct MergePart {
  StridedView<float, 4, Memory> sum;
  StridedView<float, 3, Memory> weight;
  StridedView<float, 3, Memory> lse;
  StridedView<const T, 4, Memory> part;
  StridedView<const float, 3, Memory> part_lse;

  KOKKOS_FUNCTION void operator()(std::int64_t i) const {
    const auto rows = static_cast<std::int64_t>(part.extent(2));
    const auto heads = static_cast<std::int64_t>(part.extent(1));
    const std::int64_t s = i % rows;
    const std::int64_t h = i / rows % heads;
    const std::int64_t b = i / rows / heads;
    const float before = lse(b, h, s);
    const float own = part_lse(b, h, s);
    const float largest = Kokkos::max(before, own);
    if (largest == -Kokkos::Experimental::infinity_v<float>) return;  // no key so far
    const float keep = Kokkos::exp(before - largest);
    const float take = Kokkos::exp(own - largest);
    for (std::size_t d = 0; d < part.extent(3); ++d) {
      sum(b, h, s, d) = keep * sum(b, h, s, d) + take * static_cast<float>(part(b, h, s, d));
    }
    weight(b, h, s) = keep * weight(b, h, s) + take;
    lse(b, h, s) = largest;
  }
};

/// sum ← sum / weight, lse ← lse + log(weight); nothing for a query that has seen no key.
template <class Memory>
struct FinishRows {
  StridedView<float, 4, Memory> sum;
  StridedView<const float, 3, Memory> weight;
  StridedView<float, 3, Memory> lse;

  KOKKOS_FUNCTION void operator()(std::int64_t i) const {
    const auto rows = static_cast<std::int64_t>(sum.extent(2));
    const auto heads = static_cast<std::int64_t>(sum.extent(1));
    const std::int64_t s = i % rows;
    const std::int64_t h = i / rows % heads;
    const std::int64_t b = i / rows / heads;
    const float all = weight(b, h, s);
    if (all == 0.0F) return;
    for (std::size_t d = 0; d < sum.extent(3); ++d) sum(b, h, s, d) /= all;
    lse(b, h, s) += Kokkos::log(all);
  }
};

template <class Exec>
void move_rows(Runner<Exec>& run, const TensorRef<2>& from, const TensorRef<2>& to,
               bool adds = false) {
  if (run.is_dry()) return;
  using Memory = typename Exec::memory_space;
  visit_dtype(from.dtype, [&]<class From>() {
    visit_dtype(to.dtype, [&]<class To>() {
      Kokkos::parallel_for("katt::nn::ring_rows", Range<Exec>(run.exec(), 0, from.size()),
                           MoveRows<To, From, Memory>{ConstTensorRef<2>(from).view<From, Memory>(),
                                                      to.view<To, Memory>(), adds});
    });
  });
}

/// The log-sum-exp of a part (half 0), and the weights of the merged sums (half 1).
TensorRef<3> half_of(TensorRef<3> pair, std::int64_t half) {
  pair.extent[0] /= 2;
  pair.data = static_cast<float*>(pair.data) + half * pair.extent[0] * pair.stride[0];
  return pair;
}

/// The shape of causal attention of equal sequences, as in a model.
template <class Exec>
RingSchedule<Exec> causal_schedule(const Runner<Exec>& run, const RingShape& shape) {
  const ranks::Place& place = run.groups().place;
  const std::int64_t seq = shape.seq * place.layout.context;
  return RingSchedule<Exec>(run.exec(),
                            {.batch = shape.batch, .seq_q = seq, .seq_kv = seq, .causal = true},
                            place.layout.context, place.context);
}

/// The ring of a context group, from one step to the next.
template <class Exec>
class RingPass {
 public:
  explicit RingPass(Runner<Exec>& run)
      : run_(run), ranks_(run.groups().place.layout.context), rank_(run.groups().place.context) {}

  [[nodiscard]] int ranks() const { return ranks_; }
  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] int source(int step) const { return (rank_ - step + ranks_) % ranks_; }

  /// Sends to the next rank and receives from the last.
  [[nodiscard]] std::pair<ranks::Request, ranks::Request> pass_on(const TensorRef<2>& from,
                                                                  const TensorRef<2>& to) {
    if (run_.is_dry()) return {};
    const ranks::Communicator& group = run_.groups().context;
    auto sent = group.send(run_.exec(), from, (rank_ + 1) % ranks_);
    return {std::move(sent), group.recv(run_.exec(), to, (rank_ + ranks_ - 1) % ranks_)};
  }

 private:
  Runner<Exec>& run_;
  int ranks_, rank_;
};

}  // namespace

std::vector<std::int64_t> zigzag_positions(std::int64_t seq, int ranks, int rank) {
  const std::int64_t chunk = seq / (2 * ranks);
  std::vector<std::int64_t> positions;
  for (const std::int64_t at : {std::int64_t{rank}, std::int64_t{2} * ranks - 1 - rank}) {
    for (std::int64_t i = 0; i < chunk; ++i) positions.push_back(at * chunk + i);
  }
  return positions;
}

RingBuffers lay_out_ring(Arena& arena, Dtype dtype, const RingShape& shape) {
  return lay_out_ring(arena, dtype, shape, shape.seq);
}

RingBuffers lay_out_ring(Arena& arena, Dtype dtype, const RingShape& shape, std::int64_t kv_rows) {
  const std::int64_t queries = shape.batch * shape.seq;
  const std::int64_t keys = shape.batch * kv_rows;
  const std::int64_t q = shape.heads * shape.head_dim;
  const std::int64_t kv = 2 * shape.kv_heads * shape.head_dim;
  RingBuffers at;
  at.kv = arena.tensor<2>(dtype, {keys, kv});
  at.next_kv = arena.tensor<2>(dtype, {keys, kv});
  at.sum = arena.tensor<2>(Dtype::f32, {queries, q});
  at.part = arena.tensor<2>(dtype, {queries, q});
  at.part_lse = arena.tensor<3>(Dtype::f32, {2 * shape.batch, shape.heads, shape.seq});
  at.dkv = arena.tensor<2>(Dtype::f32, {keys, kv});
  at.next_dkv = arena.tensor<2>(Dtype::f32, {keys, kv});
  at.dkv_part = arena.tensor<2>(dtype, {keys, kv});
  return at;
}

template <class Exec>
void ring_forward(Runner<Exec>& run, const Kernels& kernels, const RingShape& shape,
                  const RingForwardArgs& args, const RingBuffers& buffers) {
  ring_forward(run, kernels, shape, args, buffers, causal_schedule(run, shape));
}

template <class Exec>
void ring_backward(Runner<Exec>& run, const Kernels& kernels, const RingShape& shape,
                   const RingBackwardArgs& args, const RingBuffers& buffers) {
  ring_backward(run, kernels, shape, args, buffers, causal_schedule(run, shape));
}

template <class Exec>
void ring_forward(Runner<Exec>& run, const Kernels& kernels, const RingShape& shape,
                  const RingForwardArgs& args, const RingBuffers& buffers,
                  const RingSchedule<Exec>& schedule) {
  using Memory = typename Exec::memory_space;
  RingPass<Exec> ring(run);
  TensorRef<2> kv = buffers.kv, next_kv = buffers.next_kv;
  move_rows(run, args.kv, kv);
  const std::vector<RingCall>& own = schedule.calls(ring.rank());
  // A call with all queries begins the sums; without such a call they begin with zeros.
  const bool begins = own.size() == 1 && own.front().q_count == shape.seq;
  const TensorRef<3> lses = half_of(buffers.part_lse, 0), weight = half_of(buffers.part_lse, 1);
  if (!run.is_dry()) {
    const auto fill = [&](const auto& tensor, float value) {
      Kokkos::deep_copy(run.exec(), tensor.template view<float, Memory>(), value);
    };
    fill(weight, begins ? 1.0F : 0.0F);
    if (!begins) fill(buffers.sum, 0.0F);
    if (!begins) fill(args.lse, -Kokkos::Experimental::infinity_v<float>);
  }
  for (int step = 0; step < ring.ranks(); ++step) {
    std::pair<ranks::Request, ranks::Request> under_way;
    if (step + 1 < ring.ranks()) under_way = ring.pass_on(kv, next_kv);
    for (const RingCall& call : schedule.calls(ring.source(step))) {
      const bool first = begins && step == 0;
      const TensorRef<4> part =
          seq_part(query_heads(shape, buffers.part), call.q_begin, call.q_count);
      const TensorRef<3> part_lse = seq_part(first ? args.lse : lses, call.q_begin, call.q_count);
      run(attention::forward_variants<Exec>(),
          attention::ForwardArgs{
              .q = seq_part(query_heads(shape, args.q), call.q_begin, call.q_count),
              .k = seq_part(kv_heads(shape, kv, 0), call.k_begin, call.k_count),
              .v = seq_part(kv_heads(shape, kv, 1), call.k_begin, call.k_count),
              .out = part,
              .lse = part_lse,
              .scale = args.scale,
              .score = schedule.score(),
              .mask = call.mask,
              .for_backward = args.for_backward},
          kernels.attention);
      if (first) {
        move_rows(run, buffers.part, buffers.sum);
      } else if (!run.is_dry()) {
        visit_dtype(part.dtype, [&]<class T>() {
          Kokkos::parallel_for(
              "katt::nn::ring_merge",
              Range<Exec>(run.exec(), 0, shape.batch * shape.heads * call.q_count),
              MergePart<T, Memory>{
                  seq_part(query_heads(shape, buffers.sum), call.q_begin, call.q_count)
                      .template view<float, Memory>(),
                  seq_part(weight, call.q_begin, call.q_count).template view<float, Memory>(),
                  seq_part(args.lse, call.q_begin, call.q_count).template view<float, Memory>(),
                  ConstTensorRef<4>(part).template view<T, Memory>(),
                  ConstTensorRef<3>(part_lse).template view<float, Memory>()});
        });
      }
    }
    under_way.second.wait();
    under_way.first.wait();
    std::swap(kv, next_kv);
  }
  if (!run.is_dry()) {
    Kokkos::parallel_for(
        "katt::nn::ring_finish", Range<Exec>(run.exec(), 0, shape.batch * shape.heads * shape.seq),
        FinishRows<Memory>{query_heads(shape, buffers.sum).template view<float, Memory>(),
                           ConstTensorRef<3>(weight).template view<float, Memory>(),
                           args.lse.template view<float, Memory>()});
  }
  move_rows(run, buffers.sum, args.out);
}

template <class Exec>
void ring_backward(Runner<Exec>& run, const Kernels& kernels, const RingShape& shape,
                   const RingBackwardArgs& args, const RingBuffers& buffers,
                   const RingSchedule<Exec>& schedule) {
  RingPass<Exec> ring(run);
  TensorRef<2> kv = buffers.kv, next_kv = buffers.next_kv;
  TensorRef<2> dkv = buffers.dkv, next_dkv = buffers.next_dkv;
  const auto clear = [&](const TensorRef<2>& tensor) {
    if (!run.is_dry()) {
      Kokkos::deep_copy(run.exec(), tensor.template view<float, typename Exec::memory_space>(),
                        0.0F);
    }
  };
  move_rows(run, args.kv, kv);
  clear(dkv);
  clear(buffers.sum);
  for (int step = 0; step < ring.ranks(); ++step) {
    std::pair<ranks::Request, ranks::Request> under_way;
    if (step + 1 < ring.ranks()) under_way = ring.pass_on(kv, next_kv);
    for (const RingCall& call : schedule.calls(ring.source(step))) {
      const auto queries = [&](const TensorRef<2>& rows) {
        return seq_part(query_heads(shape, rows), call.q_begin, call.q_count);
      };
      const auto keys = [&](const TensorRef<2>& rows, std::int64_t part) {
        return seq_part(kv_heads(shape, rows, part), call.k_begin, call.k_count);
      };
      run(attention::backward_variants<Exec>(),
          attention::BackwardArgs{.q = queries(args.q),
                                  .k = keys(kv, 0),
                                  .v = keys(kv, 1),
                                  .out = queries(args.out),
                                  .dout = queries(args.dout),
                                  .lse = seq_part(args.lse, call.q_begin, call.q_count),
                                  .dq = queries(buffers.part),
                                  .dk = keys(buffers.dkv_part, 0),
                                  .dv = keys(buffers.dkv_part, 1),
                                  .scale = args.scale,
                                  .score = schedule.score(),
                                  .mask = call.mask},
          kernels.attention);
      for (std::int64_t b = 0; b < shape.batch; ++b) {
        const auto add = [&](const TensorRef<2>& part, const TensorRef<2>& sum, std::int64_t begin,
                             std::int64_t count) {
          move_rows(run, rows_of(part, begin, count), rows_of(sum, begin, count), true);
        };
        add(buffers.part, buffers.sum, b * shape.seq + call.q_begin, call.q_count);
        add(buffers.dkv_part, dkv, b * schedule.kv_rows() + call.k_begin, call.k_count);
      }
    }
    if (ring.ranks() == 1) break;
    // One step more than the keys: the gradients come home.
    auto gradients = ring.pass_on(dkv, next_dkv);
    for (auto* pair : {&under_way, &gradients}) {
      pair->second.wait();
      pair->first.wait();
    }
    std::swap(kv, next_kv);
    std::swap(dkv, next_dkv);
  }
  move_rows(run, buffers.sum, args.dq);
  move_rows(run, dkv, args.dkv);
}

#define KATT_INSTANTIATE_RING(Exec)                                                  \
  template void ring_forward<Exec>(Runner<Exec>&, const Kernels&, const RingShape&,  \
                                   const RingForwardArgs&, const RingBuffers&);      \
  template void ring_backward<Exec>(Runner<Exec>&, const Kernels&, const RingShape&, \
                                    const RingBackwardArgs&, const RingBuffers&);    \
  template void ring_forward<Exec>(Runner<Exec>&, const Kernels&, const RingShape&,  \
                                   const RingForwardArgs&, const RingBuffers&,       \
                                   const RingSchedule<Exec>&);                       \
  template void ring_backward<Exec>(Runner<Exec>&, const Kernels&, const RingShape&, \
                                    const RingBackwardArgs&, const RingBuffers&,     \
                                    const RingSchedule<Exec>&);

KATT_FOR_EACH_EXEC(KATT_INSTANTIATE_RING)

}  // namespace katt::nn
