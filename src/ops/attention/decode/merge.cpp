#include "ops/attention/decode/merge.hpp"

#include "core/check.hpp"
#include "core/error.hpp"
#include "core/execution.hpp"
#include "core/views.hpp"
#include "ops/attention/decode/merge_kernel.hpp"

namespace katt::attention {

void check(const MergeArgs& args) {
  const auto& [b, h, s, d] = args.out.extent;
  const std::int64_t parts = args.parts.extent[0];
  if (parts < 1) {
    throw InputError("attention merge: parts: holds " + std::to_string(parts) +
                     " parts, expected at least 1");
  }
  check_tensor("attention merge", "parts", args.parts, args.parts.dtype, {parts, b, h, s, d});
  check_tensor("attention merge", "parts_lse", args.parts_lse, Dtype::f32, {parts, b, h, s});
  if (args.lse) check_tensor("attention merge", "lse", args.lse, Dtype::f32, {b, h, s});
}

template <class Exec>
void merge(const Exec& exec, const MergeArgs& args) {
  using Memory = typename Exec::memory_space;
  check(args);
  visit_dtype(args.parts.dtype, [&]<class Part>() {
    visit_dtype(args.out.dtype, [&]<class T>() {
      const impl::MergeParts<Exec, Part, T, impl::LseSums<Memory>> kernel{
          args.parts.view<Part, Memory>(),
          {args.parts_lse.view<float, Memory>()},
          args.out.view<T, Memory>(),
          args.lse.view<float, Memory>(),
          {1.0F, impl::log2e}};
      const auto& extent = args.out.extent;
      tile::for_each_row(exec, "katt::attention::merge", extent[0] * extent[1] * extent[2], kernel);
    });
  });
}

#define KATT_INSTANTIATE_MERGE(Exec) template void merge<Exec>(const Exec&, const MergeArgs&);

KATT_FOR_EACH_EXEC(KATT_INSTANTIATE_MERGE)

}  // namespace katt::attention
