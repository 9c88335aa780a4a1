#include "ops/convert_dtype/convert_dtype.hpp"

#include <string>

#include "core/error.hpp"
#include "core/execution.hpp"
#include "tile/rows/elementwise.hpp"

namespace katt::convert_dtype {

namespace {

/// Vectors of elements, through f32.
template <class From, class To>
struct ConvertVectors {
  const From* x;
  std::int64_t x_stride;
  To* out;
  std::int64_t out_stride;

  template <class Vec, class Lanes>
  KOKKOS_INLINE_FUNCTION void operator()(std::int64_t row, std::int64_t column, Lanes lanes) const {
    tile::store(out + row * out_stride + column,
                tile::load<Vec>(x + row * x_stride + column, lanes), lanes);
  }
};

/// Calls f.operator()<From, To>() with the element types of the arguments.
template <class F>
void visit_dtypes(const ForwardArgs& args, const F& f) {
  visit_dtype(args.x.dtype, [&]<class From>() {
    visit_dtype(args.out.dtype, [&]<class To>() { f.template operator()<From, To>(); });
  });
}

/// With or without streaming stores for outputs that are large enough for them, and 16 bytes at a
/// time on a device.
template <class Exec>
void convert(const Exec& exec, const ForwardArgs& args, const char* label, bool fast) {
  visit_dtypes(args, [&]<class From, class To>() {
    auto* out = static_cast<To*>(args.out.data);
    const std::int64_t rows = args.x.extent[0];
    const std::int64_t columns = args.x.extent[1];
    const ConvertVectors<From, To> body{static_cast<const From*>(args.x.data), args.x.stride[0],
                                        out, args.out.stride[0]};
    const bool stream = fast && tile::should_stream<Exec>(out, rows, columns, args.out.stride[0]);
    const bool wide = !is_host_v<Exec> && fast && tile::are_chunks(args.x, args.out);
    const bool one_row = wide && args.x.stride[0] == columns && args.out.stride[0] == columns;
    tile::for_each_wide_vector(exec, label, one_row ? 1 : rows, one_row ? rows * columns : columns,
                               body, wide, stream);
  });
}

template <class Exec>
void run_naive(const Exec& exec, const ForwardArgs& args) {
  convert(exec, args, "katt::convert::naive", false);
}

template <class Exec>
void run_vector(const Exec& exec, const ForwardArgs& args) {
  convert(exec, args, "katt::convert::vector", true);
}

}  // namespace

template <class Exec>
VariantTable<Exec, ForwardArgs>& forward_variants() {
  static VariantTable<Exec, ForwardArgs> table{
      {.name = "naive", .description = "whole vectors, ordinary stores", .run = run_naive<Exec>},
      {.name = "vector",
       .description = "whole vectors; streaming stores for large outputs, 16 bytes on a device",
       .rank = 1,
       .run = run_vector<Exec>}};
  return table;
}

template <class Exec>
Status forward(const Exec& exec, const ForwardArgs& args, const Config& config) {
  check(args);
  return forward_variants<Exec>().run(exec, args, config, {});
}

#define KATT_INSTANTIATE_CONVERT(Exec)                                \
  template VariantTable<Exec, ForwardArgs>& forward_variants<Exec>(); \
  template Status forward<Exec>(const Exec&, const ForwardArgs&, const Config&);

KATT_FOR_EACH_EXEC(KATT_INSTANTIATE_CONVERT)

}  // namespace katt::convert_dtype
