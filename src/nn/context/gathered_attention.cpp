#include "nn/context/gathered_attention.hpp"

#include <Kokkos_Core.hpp>

#include "core/execution.hpp"
#include "core/parts.hpp"
#include "core/views.hpp"
#include "nn/context/ring_parts.hpp"
#include "nn/products.hpp"
#include "ops/attention/backward.hpp"

namespace katt::nn {

namespace {

template <class T>
struct RowsToSequence {
  ZigzagPlace place;
  std::int64_t batch, columns;
  const T* ranks;
  T* whole;

  KOKKOS_FUNCTION void operator()(std::int64_t i) const {
    const std::int64_t row = i / columns;
    const std::int64_t to =
        place.whole_row(row / (place.rows * batch), row / place.rows % batch, row % place.rows);
    if (to >= 0) whole[to * columns + i % columns] = ranks[i];
  }
};

/// ranks ← ranks + whole, for keys first … first + count − 1 of every sequence.
template <class T>
struct AddToRows {
  ZigzagPlace place;
  std::int64_t batch, columns, first, count;
  const T* whole;
  float* ranks;

  KOKKOS_FUNCTION void operator()(std::int64_t i) const {
    const std::int64_t row = i / columns, b = row / place.rows % batch;
    const std::int64_t from = place.whole_row(row / (place.rows * batch), b, row % place.rows);
    if (from < 0 || from - b * place.seq < first || from - b * place.seq >= first + count) return;
    ranks[i] += static_cast<float>(whole[from * columns + i % columns]);
  }
};

template <class From, class To>
struct RoundRows {
  const From* from;
  To* to;
  KOKKOS_FUNCTION void operator()(std::int64_t i) const { to[i] = static_cast<To>(from[i]); }
};

template <class Exec, class F>
void for_each_element(Runner<Exec>& run, const char* label, std::int64_t size, const F& functor) {
  Kokkos::parallel_for(
      label, Kokkos::RangePolicy<Exec, Kokkos::IndexType<std::int64_t>>(run.exec(), 0, size),
      functor);
}

template <class Exec>
void gather_keys(Runner<Exec>& run, const RingShape& shape, const ZigzagRows& keys,
                 const TensorRef<2>& kv, const GatheredBuffers& buffers) {
  if (run.is_dry()) return;
  const Kokkos::Profiling::ScopedRegion region("katt::ranks::all_gather");
  run.groups().context.all_gather(run.exec(), kv, buffers.ranks_kv).wait();
  visit_dtype(kv.dtype, [&]<class T>() {
    for_each_element(run, "katt::nn::gathered_rows", buffers.ranks_kv.size(),
                     RowsToSequence<T>{ZigzagPlace(keys), shape.batch, kv.extent[1],
                                       static_cast<const T*>(buffers.ranks_kv.data),
                                       static_cast<T*>(buffers.kv.data)});
  });
}

}  // namespace

GatheredBuffers lay_out_gathered(Arena& arena, Dtype dtype, const RingShape& shape,
                                 const ZigzagRows& keys, bool backward) {
  const std::int64_t columns = 2 * shape.kv_heads * shape.head_dim;
  const std::int64_t own = shape.batch * keys.rows(), all = keys.ranks * own;
  const std::int64_t whole = shape.batch * keys.seq;
  GatheredBuffers at;
  at.ranks_kv = arena.tensor<2>(dtype, {all, columns});
  at.kv = arena.tensor<2>(dtype, {whole, columns});
  if (!backward) return at;
  at.dkv_part = arena.tensor<2>(dtype, {whole, columns});
  at.ranks_dkv = arena.tensor<2>(Dtype::f32, {all, columns});
  at.own_dkv = arena.tensor<2>(Dtype::f32, {own, columns});
  return at;
}

template <class Exec>
void gathered_forward(Runner<Exec>& run, const Kernels& kernels, const RingShape& shape,
                      const ZigzagRows& keys, const RingForwardArgs& args,
                      const GatheredBuffers& buffers, const RingSchedule<Exec>& schedule) {
  gather_keys(run, shape, keys, args.kv, buffers);
  if (!run.is_dry()) {  // queries that see nothing need no call
    clear_rows(run.exec(), args.out);
    Kokkos::deep_copy(run.exec(), args.lse.template view<float, typename Exec::memory_space>(),
                      -Kokkos::Experimental::infinity_v<float>);
  }
  for (const RingCall& call : schedule.calls(0)) {
    const auto queries = [&](const TensorRef<2>& rows) {
      return impl::seq_part(impl::query_heads(shape, rows), call.q_begin, call.q_count);
    };
    const auto part_of_keys = [&](std::int64_t part) {
      return impl::seq_part(impl::kv_heads(shape, buffers.kv, part), call.k_begin, call.k_count);
    };
    run(attention::forward_variants<Exec>(),
        attention::ForwardArgs{.q = queries(args.q),
                               .k = part_of_keys(0),
                               .v = part_of_keys(1),
                               .out = queries(args.out),
                               .lse = impl::seq_part(args.lse, call.q_begin, call.q_count),
                               .scale = args.scale,
                               .score = schedule.score(),
                               .mask = call.mask,
                               .for_backward = args.for_backward},
        kernels.attention);
  }
}

template <class Exec>
void gathered_backward(Runner<Exec>& run, const Kernels& kernels, const RingShape& shape,
                       const ZigzagRows& keys, const RingBackwardArgs& args,
                       const GatheredBuffers& buffers, const RingSchedule<Exec>& schedule) {
  gather_keys(run, shape, keys, args.kv, buffers);
  if (!run.is_dry()) {
    clear_rows(run.exec(), args.dq);
    clear_rows(run.exec(), buffers.ranks_dkv);
  }
  for (const RingCall& call : schedule.calls(0)) {
    const auto queries = [&](const TensorRef<2>& rows) {
      return impl::seq_part(impl::query_heads(shape, rows), call.q_begin, call.q_count);
    };
    const auto part_of = [&](const TensorRef<2>& rows, std::int64_t part) {
      return impl::seq_part(impl::kv_heads(shape, rows, part), call.k_begin, call.k_count);
    };
    run(attention::backward_variants<Exec>(),
        attention::BackwardArgs{.q = queries(args.q),
                                .k = part_of(buffers.kv, 0),
                                .v = part_of(buffers.kv, 1),
                                .out = queries(args.out),
                                .dout = queries(args.dout),
                                .lse = impl::seq_part(args.lse, call.q_begin, call.q_count),
                                .dq = queries(args.dq),
                                .dk = part_of(buffers.dkv_part, 0),
                                .dv = part_of(buffers.dkv_part, 1),
                                .scale = args.scale,
                                .score = schedule.score(),
                                .mask = call.mask},
        kernels.attention);
    if (run.is_dry()) continue;
    visit_dtype(buffers.dkv_part.dtype, [&]<class T>() {
      for_each_element(run, "katt::nn::gathered_gradients", buffers.ranks_dkv.size(),
                       AddToRows<T>{ZigzagPlace(keys), shape.batch, args.kv.extent[1], call.k_begin,
                                    call.k_count, static_cast<const T*>(buffers.dkv_part.data),
                                    static_cast<float*>(buffers.ranks_dkv.data)});
    });
  }
  if (run.is_dry()) return;
  const Kokkos::Profiling::ScopedRegion region("katt::ranks::reduce_scatter");
  run.groups().context.reduce_scatter(run.exec(), buffers.ranks_dkv, buffers.own_dkv).wait();
  visit_dtype(args.dkv.dtype, [&]<class T>() {
    for_each_element(run, "katt::nn::gathered_round", args.dkv.size(),
                     RoundRows<float, T>{static_cast<const float*>(buffers.own_dkv.data),
                                         static_cast<T*>(args.dkv.data)});
  });
}

#define KATT_INSTANTIATE_GATHERED(Exec)                                                    \
  template void gathered_forward<Exec>(Runner<Exec>&, const Kernels&, const RingShape&,    \
                                       const ZigzagRows&, const RingForwardArgs&,          \
                                       const GatheredBuffers&, const RingSchedule<Exec>&); \
  template void gathered_backward<Exec>(Runner<Exec>&, const Kernels&, const RingShape&,   \
                                        const ZigzagRows&, const RingBackwardArgs&,        \
                                        const GatheredBuffers&, const RingSchedule<Exec>&);

KATT_FOR_EACH_EXEC(KATT_INSTANTIATE_GATHERED)

}  // namespace katt::nn
