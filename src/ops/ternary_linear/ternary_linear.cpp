#include "ops/ternary_linear/ternary_linear.hpp"

#include <string>

#include "core/execution.hpp"
#include "ops/ternary_linear/ternary_linear_naive.hpp"
#include "ops/ternary_linear/ternary_linear_packed.hpp"

namespace katt::ternary_linear {

namespace {

/// True when the weight is there in the form that a packed variant reads. Without tensors, as for a
/// forecast of memory, every form is as good as there.
template <class Args>
Status has_format(const Args& args, PackFormat format) {
  if (args.x.data == nullptr || (args.packed && args.packed.format == format)) return Status::ok();
  return Status::skipped(std::string("reads weights packed ") +
                         (format == PackFormat::two_bit ? "at 2 bits" : "5 to a byte") +
                         ", which the arguments lack");
}

template <class Args>
Status has_dense(const Args& args) {
  if (args.x.data == nullptr || args.dense) return Status::ok();
  return Status::skipped("reads dequantised weights, which the arguments lack");
}

template <class Exec>
Variant<Exec, ForwardArgs> packed_forward(const char* name, int rank, PackFormat format,
                                          const char* description) {
  return {.name = name,
          .description = description,
          .rank = rank,
          .supports = [format](const ForwardArgs& args) { return has_format(args, format); },
          .workspace_bytes =
              [format](const Exec& exec, const ForwardArgs& args) {
                return visit_dtype(args.x.dtype, [&]<class T>() {
                  return impl::packed_forward_bytes<Exec, T>(exec, args, format);
                });
              },
          .run =
              [format](const Exec& exec, const ForwardArgs& args, Workspace workspace) {
                visit_dtype(args.x.dtype, [&]<class T>() {
                  impl::packed_forward<Exec, T>(exec, args, format, workspace);
                });
              },
          .engine =
              [](const ForwardArgs& args) {
                return std::string(impl::is_on_tiles<Exec>(args) ? "amx" : "");
              }};
}

template <class Exec>
Variant<Exec, BackwardArgs> packed_backward(const char* name, int rank, PackFormat format,
                                            const char* description) {
  return {.name = name,
          .description = description,
          .rank = rank,
          .supports = [format](const BackwardArgs& args) { return has_format(args, format); },
          .workspace_bytes =
              [format](const Exec& exec, const BackwardArgs& args) {
                return visit_dtype(args.x.dtype, [&]<class T>() {
                  return impl::packed_backward_bytes<Exec, T>(exec, args, format);
                });
              },
          .run =
              [format](const Exec& exec, const BackwardArgs& args, Workspace workspace) {
                visit_dtype(args.x.dtype, [&]<class T>() {
                  impl::packed_backward<Exec, T>(exec, args, format, workspace);
                });
              }};
}

}  // namespace

template <class Exec>
VariantTable<Exec, ForwardArgs>& forward_variants() {
  static VariantTable<Exec, ForwardArgs> table{
      {.name = "naive",
       .description = "dequantised weights in the dtype, matrix-vector product or GEMM",
       .supports = has_dense<ForwardArgs>,
       .workspace_bytes =
           [](const Exec& exec, const ForwardArgs& args) {
             return visit_dtype(args.x.dtype, [&]<class T>() {
               return impl::naive_forward_bytes<Exec, T>(exec, args);
             });
           },
       .run =
           [](const Exec& exec, const ForwardArgs& args, Workspace workspace) {
             visit_dtype(args.x.dtype,
                         [&]<class T>() { impl::naive_forward<Exec, T>(exec, args, workspace); });
           }},
      packed_forward<Exec>("packed2", 2, PackFormat::two_bit, "2 bits a weight, int8 dot products"),
      packed_forward<Exec>("packed5", 1, PackFormat::five_per_byte,
                           "5 weights a byte, int8 dot products")};
  return table;
}

template <class Exec>
VariantTable<Exec, BackwardArgs>& backward_variants() {
  static VariantTable<Exec, BackwardArgs> table{
      {.name = "naive",
       .description = "dequantised weights and inputs in the dtype, two GEMMs",
       .supports =
           [](const BackwardArgs& args) {
             if (args.adds_dweight) return Status::skipped("does not add to dweight");
             return has_dense(args);
           },
       .workspace_bytes =
           [](const Exec& exec, const BackwardArgs& args) {
             return visit_dtype(args.x.dtype, [&]<class T>() {
               return impl::naive_backward_bytes<Exec, T>(exec, args);
             });
           },
       .run =
           [](const Exec& exec, const BackwardArgs& args, Workspace workspace) {
             visit_dtype(args.x.dtype,
                         [&]<class T>() { impl::naive_backward<Exec, T>(exec, args, workspace); });
           }},
      packed_backward<Exec>("packed2", 2, PackFormat::two_bit,
                            "2 bits a weight, unpacked by panels for dx"),
      packed_backward<Exec>("packed5", 1, PackFormat::five_per_byte,
                            "5 weights a byte, unpacked by panels for dx")};
  return table;
}

KATT_DEFINE_PASS(forward, ForwardArgs)
KATT_DEFINE_PASS(backward, BackwardArgs)

}  // namespace katt::ternary_linear
