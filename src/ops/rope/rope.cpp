#include "ops/rope/rope.hpp"

#include <algorithm>
#include <array>
#include <string>

#include "core/check.hpp"
#include "core/error.hpp"
#include "ops/rope/rope_kernels.hpp"
#include "ops/rope/rope_naive.hpp"

namespace katt::rope {

namespace {

[[noreturn]] void fail(const std::string& message) { throw InputError("rope: " + message); }

/// Bytes that are written, 0 in place; without tensors, as for a forecast, they are apart.
std::int64_t new_bytes(const impl::Turn& turn) {
  std::int64_t bytes = 0;
  for (int t = 0; t < 2 && turn.has(t); ++t) {
    if (turn.out[t].data != nullptr && turn.out[t].data == turn.in[t].data) return 0;
    bytes += turn.out[t].size() * static_cast<std::int64_t>(size_of(turn.out[t].dtype));
  }
  return bytes;
}

template <class Exec, class Args, bool Stream>
void fused(const Exec& exec, const Args& args) {
  const impl::Turn turn(args);
  visit_dtype(turn.in[0].dtype, [&]<class T>() {
    const impl::Rotate<Exec, T, Stream && tile::can_stream_v<Exec>> rotate(exec, turn);
    tile::for_each_wide_row(exec, turn.inverse ? "katt::rope::backward" : "katt::rope::forward",
                            rotate.items(), rotate, rotate.is_wide(turn));
  });
}

template <class Exec, class Args>
VariantTable<Exec, Args> built_in_variants() {
  return VariantTable<Exec, Args>{
      {.name = "naive",
       .description = "angles gathered and expanded, rotate_half stored, products and sum apart",
       .workspace_bytes =
           [](const Args& args) {
             const impl::Turn turn(args);
             return visit_dtype(turn.in[0].dtype,
                                [&]<class T>() { return impl::naive_workspace_bytes<T>(turn); });
           },
       .run =
           [](const Exec& exec, const Args& args, Workspace workspace) {
             const impl::Turn turn(args);
             visit_dtype(turn.in[0].dtype,
                         [&]<class T>() { impl::naive_turn<Exec, T>(exec, turn, workspace); });
           }},
      {.name = "fused",
       .description = "one pass, angles reused from cache by every head",
       .rank = 2,
       .run = fused<Exec, Args, false>},
      {.name = "stream",
       .description = "fused, with stores past the caches: for tensors larger than them",
       .rank =
           [](const Args& args) {
             const impl::Turn turn(args);  // the halves of a row, or pairs
             return tile::stream_rank(new_bytes(turn), turn.in[0].dtype, turn.interleaved ? 1 : 2);
           },
       .supports = tile::stream_support<Exec>(),
       .run = fused<Exec, Args, true>}};
}

}  // namespace

KATT_DEFINE_VARIANTS(forward, ForwardArgs, built_in_variants<Exec, ForwardArgs>())
KATT_DEFINE_VARIANTS(backward, BackwardArgs, built_in_variants<Exec, BackwardArgs>())

template <class Exec>
void build_cache(const Exec& exec, const FrequencyArgs& args, const TensorRef<2>& cache,
                 const std::int64_t* positions) {
  const std::int64_t head_dim = cache.extent[1];
  const std::vector<double> values = frequencies(args, head_dim);
  if (cache.dtype != Dtype::f32 || cache.stride[0] != head_dim) {
    fail("cache: holds " + std::string(name_of(cache.dtype)) + " in rows " +
         std::to_string(cache.stride[0]) + " apart, expected dense f32");
  }
  impl::BuildCache<Exec> kernel{static_cast<float*>(cache.data),
                                positions,
                                head_dim / 2,
                                args.precision == AnglePrecision::f32,
                                {}};
  std::copy(values.begin(), values.end(), kernel.frequency);
  tile::for_each_row(exec, "katt::rope::cache", cache.extent[0], kernel);
}

#define KATT_INSTANTIATE_ROPE_CACHE(Exec)                                                 \
  template void build_cache<Exec>(const Exec&, const FrequencyArgs&, const TensorRef<2>&, \
                                  const std::int64_t*);

KATT_FOR_EACH_EXEC(KATT_INSTANTIATE_ROPE_CACHE)
KATT_DEFINE_PASS(forward, ForwardArgs)
KATT_DEFINE_PASS(backward, BackwardArgs)
KATT_DEFINE_WORKSPACE_BYTES(forward, ForwardArgs)
KATT_DEFINE_WORKSPACE_BYTES(backward, BackwardArgs)

}  // namespace katt::rope
