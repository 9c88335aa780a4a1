#include "ops/ternary_linear/ternary_linear.hpp"

#include <string>

#include "core/error.hpp"
#include "core/execution.hpp"
#include "ops/ternary_linear/ternary_linear_naive.hpp"
#include "ops/ternary_linear/ternary_linear_packed.hpp"

namespace katt::ternary_linear {

namespace {

[[noreturn]] void fail(const std::string& message) {
  throw InputError("ternary_linear: " + message);
}

void check_shape(const char* name, const ConstTensorRef<2>& tensor, Dtype dtype, std::int64_t rows,
                 std::int64_t columns) {
  if (tensor.extent[0] != rows || tensor.extent[1] != columns || tensor.dtype != dtype) {
    fail(std::string(name) + ": holds (" + std::to_string(tensor.extent[0]) + ", " +
         std::to_string(tensor.extent[1]) + ") " + std::string(name_of(tensor.dtype)) +
         ", expected (" + std::to_string(rows) + ", " + std::to_string(columns) + ") " +
         std::string(name_of(dtype)));
  }
}

/// Parts of both passes.
template <class Args>
void check_weight(const Args& args) {
  const std::int64_t in = args.in_features();
  if (in < 1 || in > max_in_features) {
    fail("in_features " + std::to_string(in) + ": expected 1 to " +
         std::to_string(max_in_features));
  }
  if (args.dense) check_shape("dense", args.dense, args.x.dtype, args.out_features(), in);
  if (args.packed &&
      (args.packed.out_features != args.out_features() || args.packed.in_features != in)) {
    fail("packed: holds (" + std::to_string(args.packed.out_features) + ", " +
         std::to_string(args.packed.in_features) + "), expected (" +
         std::to_string(args.out_features()) + ", " + std::to_string(in) + ")");
  }
}

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

void check(const ForwardArgs& args) {
  check_weight(args);
  check_shape("out", args.out, args.x.dtype, args.tokens(), args.out_features());
}

void check(const BackwardArgs& args) {
  check_weight(args);
  check_shape("dout", args.dout, args.x.dtype, args.tokens(), args.out_features());
  check_shape("dx", args.dx, args.x.dtype, args.tokens(), args.in_features());
  check_shape("dweight", args.dweight, args.adds_dweight ? Dtype::f32 : args.x.dtype,
              args.out_features(), args.in_features());
}

namespace {

template <class Args>
double weight_bytes(const Args& args) {
  return static_cast<double>(
      packed_bytes(PackFormat::five_per_byte, args.out_features(), args.in_features()));
}

}  // namespace

double forward_flops(const ForwardArgs& args) {
  return 2.0 * static_cast<double>(args.tokens()) * static_cast<double>(args.in_features()) *
         static_cast<double>(args.out_features());
}

double backward_flops(const BackwardArgs& args) {
  return 4.0 * static_cast<double>(args.tokens()) * static_cast<double>(args.in_features()) *
         static_cast<double>(args.out_features());
}

double forward_bytes(const ForwardArgs& args) {
  return weight_bytes(args) + static_cast<double>(size_of(args.x.dtype)) *
                                  static_cast<double>(args.x.size() + args.out.size());
}

double backward_bytes(const BackwardArgs& args) {
  return weight_bytes(args) +
         static_cast<double>(size_of(args.x.dtype)) *
             static_cast<double>(2 * args.x.size() + args.dout.size()) +
         static_cast<double>(size_of(args.dweight.dtype) * (args.adds_dweight ? 2 : 1)) *
             static_cast<double>(args.dweight.size());
}

KATT_DEFINE_PASS(forward, ForwardArgs)
KATT_DEFINE_PASS(backward, BackwardArgs)

}  // namespace katt::ternary_linear
