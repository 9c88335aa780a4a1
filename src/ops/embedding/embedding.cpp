#include "ops/embedding/embedding.hpp"

#include <limits>
#include <string>

#include "core/error.hpp"
#include "core/execution.hpp"
#include "core/parts.hpp"
#include "core/views.hpp"
#include "ops/embedding/embedding_kernels.hpp"
#include "tile/rows/elementwise.hpp"

namespace katt::embedding {

namespace {

template <class Exec>
using Range = Kokkos::RangePolicy<Exec, Kokkos::IndexType<std::int64_t>>;

template <class Exec>
void naive_forward(const Exec& exec, const ForwardArgs& args) {
  visit_dtype(args.out.dtype, [&]<class T>() {
    tile::for_each_vector(
        exec, "katt::embedding::naive_gather", args.out.extent[0], args.out.extent[1],
        impl::GatherVectors<T>{static_cast<const T*>(args.weight.data), args.weight.stride[0],
                               args.weight.extent[0], args.ids, static_cast<T*>(args.out.data),
                               args.out.stride[0]});
  });
}

template <class Exec>
void rows_forward(const Exec& exec, const ForwardArgs& args) {
  using Memory = typename Exec::memory_space;
  visit_dtype(args.out.dtype, [&]<class T>() {
    tile::for_each_wide_row(exec, "katt::embedding::rows_gather", args.out.extent[0],
                            impl::GatherRows<Exec, T>{args.weight.view<T, Memory>(), args.ids,
                                                      args.out.view<T, Memory>()},
                            tile::are_chunks(args.weight, args.out));
  });
}

/// f32 sums in dweight itself where it is f32 and dense, else in the workspace.
bool sums_in_place(const BackwardArgs& args) {
  return args.dweight.dtype == Dtype::f32 && args.dweight.stride[0] == args.dweight.extent[1];
}

template <class T>
struct Clear {
  T* out;
  std::int64_t stride;
  template <class Vec, class Lanes>
  KOKKOS_INLINE_FUNCTION void operator()(std::int64_t row, std::int64_t column, Lanes lanes) const {
    tile::store(out + row * stride + column, Vec(0.0F), lanes);
  }
};

/// Offsets of the parts of a workspace, in bytes: the lists of the tokens of every id, then naive's
/// f32 sums, a row a token.
struct Places {
  std::size_t next, sums, total;
  explicit Places(const BackwardArgs& args)
      : next(aligned_bytes<std::int32_t>(args.dweight.extent[0])),
        sums(next + aligned_bytes<std::int32_t>(args.dout.extent[0])),
        total(sums + aligned_bytes<float>(args.dout.size())) {}
};

/// The lists of the tokens of every id; `first` begins the workspace.
template <class Exec>
impl::LinkTokens link_tokens(const Exec& exec, const char* label, const BackwardArgs& args,
                             Workspace workspace) {
  auto* base = static_cast<std::byte*>(workspace.data);
  const std::int64_t vocab = args.dweight.extent[0];
  // A worker reads every id: few workers on a host, one for few rows on a device.
  const std::int64_t rows = is_host_v<Exec> ? 4096 : 64;
  const impl::LinkTokens lists{args.ids,
                               args.dout.extent[0],
                               vocab,
                               rows,
                               reinterpret_cast<std::int32_t*>(base),
                               reinterpret_cast<std::int32_t*>(base + Places(args).next)};
  Kokkos::parallel_for(label, Range<Exec>(exec, 0, (vocab + rows - 1) / rows), lists);
  return lists;
}

template <class Exec>
void naive_backward(const Exec& exec, const BackwardArgs& args, Workspace workspace) {
  using Memory = typename Exec::memory_space;
  const std::int64_t vocab = args.dweight.extent[0];
  const std::int64_t columns = args.dweight.extent[1];
  const bool in_place = sums_in_place(args);
  visit_dtype(args.dout.dtype, [&]<class T>() {
    auto* dweight = static_cast<T*>(args.dweight.data);
    const std::int64_t stride = args.dweight.stride[0];
    tile::for_each_vector(exec, "katt::embedding::naive_clear", vocab, columns,
                          Clear<T>{dweight, stride});
    const std::int32_t* first =
        in_place ? nullptr
                 : link_tokens(exec, "katt::embedding::naive_first", args, workspace).first;
    auto* sums = reinterpret_cast<float*>(
        in_place ? args.dweight.data : static_cast<std::byte*>(workspace.data) + Places(args).sums);
    using Scatter = impl::ScatterColumns<Exec, T>;
    Kokkos::parallel_for(
        "katt::embedding::naive_scatter",
        Range<Exec>(exec, 0, (columns + Scatter::columns - 1) / Scatter::columns),
        Scatter{args.dout.view<T, Memory>(), args.ids, vocab, first, sums, columns});
    if (in_place) return;
    tile::for_each_vector(
        exec, "katt::embedding::naive_round", args.dout.extent[0], columns,
        impl::RoundFirst<T>{sums, columns, args.ids, vocab, first, dweight, stride});
  });
}

template <class Exec>
void rows_backward(const Exec& exec, const BackwardArgs& args, Workspace workspace) {
  using Memory = typename Exec::memory_space;
  const std::int64_t vocab = args.dweight.extent[0];
  const impl::LinkTokens lists = link_tokens(exec, "katt::embedding::rows_link", args, workspace);
  visit_dtype(args.dout.dtype, [&]<class T>() {
    tile::for_each_wide_row(exec, "katt::embedding::rows_sum", vocab,
                            impl::SumLists<Exec, T>{args.dout.view<T, Memory>(), lists.first,
                                                    lists.next, args.dweight.view<T, Memory>()},
                            tile::are_chunks(args.dout, args.dweight));
  });
}

}  // namespace

template <class Exec>
VariantTable<Exec, ForwardArgs>& forward_variants() {
  static VariantTable<Exec, ForwardArgs> table{
      {.name = "naive", .description = "one vector at a time", .run = naive_forward<Exec>},
      {.name = "rows",
       .description = "vectors of whole rows",
       .rank = 1,
       .run = rows_forward<Exec>}};
  return table;
}

template <class Exec>
VariantTable<Exec, BackwardArgs>& backward_variants() {
  static VariantTable<Exec, BackwardArgs> table{
      {.name = "naive",
       .description = "cleared; added to token by token in f32; rounded",
       .workspace_bytes =
           [](const BackwardArgs& args) { return sums_in_place(args) ? 0 : Places(args).total; },
       .run = naive_backward<Exec>},
      {.name = "rows",
       .description = "lists of tokens by id, each row summed in registers and written once",
       .rank = 1,
       .workspace_bytes = [](const BackwardArgs& args) { return Places(args).sums; },
       .run = rows_backward<Exec>}};
  return table;
}

KATT_DEFINE_PASS(forward, ForwardArgs)
KATT_DEFINE_PASS(backward, BackwardArgs)

}  // namespace katt::embedding
