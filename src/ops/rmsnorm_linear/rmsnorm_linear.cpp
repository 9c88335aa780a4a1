#include "ops/rmsnorm_linear/rmsnorm_linear.hpp"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "core/execution.hpp"
#include "core/parts.hpp"
#include "ops/linear/gemm/gemm.hpp"
#include "ops/rmsnorm/rmsnorm.hpp"
#include "ops/rmsnorm_linear/rmsnorm_linear_kernels.hpp"
#include "tile/rows/rows.hpp"

namespace katt::rmsnorm_linear {

namespace {

/// y as products read it: stored, or h with the scales that make y of it.
struct Normal {
  ConstTensorRef<2> rows;
  linear::ElementScales scales{};
};

template <class Args>
Normal scaled(const ConstTensorRef<2>& h, const Args& args, const TensorRef<2>& scales) {
  return {h, {.rows = scales, .columns = args.norm_weight}};
}

linear::GemmArgs out_product(const ForwardArgs& args, const Normal& y) {
  return {.a = y.rows, .b = args.weight, .c = args.out, .trans_b = true, .a_scales = y.scales};
}
linear::GemmArgs dweight_product(const BackwardArgs& args, const Normal& y) {
  return {.a = args.dout, .b = y.rows, .c = args.dweight, .trans_a = true, .b_scales = y.scales};
}
linear::GemmArgs dy_product(const BackwardArgs& args, const TensorRef<2>& dy) {
  return {.a = args.dout, .b = args.weight, .c = dy};
}

rmsnorm::ForwardArgs norm_of(const ForwardArgs& args, const TensorRef<2>& y) {
  return {.x = args.x,
          .weight = args.norm_weight,
          .residual = args.residual,
          .out = y,
          .residual_out = args.residual_out,
          .eps = args.eps};
}
rmsnorm::ForwardArgs norm_of(const BackwardArgs& args, const TensorRef<2>& y) {
  return {.x = args.x, .weight = args.norm_weight, .out = y, .eps = args.eps};
}
/// `dy` may be the memory of dx.
rmsnorm::BackwardArgs norm_backward_of(const BackwardArgs& args, const TensorRef<2>& dy) {
  return {.dout = dy,
          .x = args.x,
          .weight = args.norm_weight,
          .dresidual_out = args.dresidual_out,
          .dx = args.dx,
          .dweight = args.dnorm_weight,
          .eps = args.eps};
}

/// Runs steps one after the other: a matrix at the beginning of the workspace, and behind it the workspace of a
/// step. A rehearsal only finds the size.
template <class Exec>
class Steps {
 public:
  explicit Steps(const Exec& exec) : exec_(exec) {}
  Steps(const Exec& exec, Workspace workspace)
      : exec_(exec), is_rehearsal_(false), workspace_(workspace) {}

  TensorRef<2> matrix(Dtype dtype, std::int64_t rows, std::int64_t columns) {
    TensorRef<2> matrix(workspace_.data, dtype, {rows, columns});
    matrix_bytes_ = aligned_bytes(matrix);
    return matrix;
  }
  /// The fastest variant of another operator.
  template <class Args>
  void run(const VariantTable<Exec, Args>& table, const Args& args) {
    const auto call = table.call(exec_, args, {});
    reserve(call.workspace_bytes());
    if (!is_rehearsal_) call.launch(rest());
  }
  void product(const linear::GemmArgs& args, const char* label) {
    reserve(linear::gemm_workspace_bytes(exec_, args));
    if (!is_rehearsal_) linear::gemm(exec_, args, rest(), label);
  }
  void row_scales(const rmsnorm::ForwardArgs& args,
                  const TensorRef<2>& scales) requires(is_host_v<Exec>) {
    if (is_rehearsal_) return;
    visit_dtype(args.x.dtype, [&]<class T>() {
      tile::for_each_row(exec_, "katt::rmsnorm_linear::row_scales", args.tokens(),
                         impl::RowScales<Exec, T>{{exec_, args}, static_cast<float*>(scales.data)});
    });
  }
  [[nodiscard]] std::size_t bytes() const { return matrix_bytes_ + step_bytes_; }

 private:
  void reserve(std::size_t bytes) { step_bytes_ = std::max(step_bytes_, bytes); }
  Workspace rest() const {
    return {static_cast<std::byte*>(workspace_.data) + matrix_bytes_,
            workspace_.bytes - matrix_bytes_};
  }

  const Exec& exec_;
  bool is_rehearsal_ = true;
  Workspace workspace_;
  std::size_t matrix_bytes_ = 0, step_bytes_ = 0;
};

template <class Exec>
void naive(Steps<Exec>& steps, const ForwardArgs& args) {
  const TensorRef<2> y = steps.matrix(args.x.dtype, args.tokens(), args.hidden());
  steps.run(rmsnorm::forward_variants<Exec>(), norm_of(args, y));
  steps.product(out_product(args, {y}), "katt::rmsnorm_linear::out");
}

template <class Exec>
void naive(Steps<Exec>& steps, const BackwardArgs& args) {
  const TensorRef<2> y = steps.matrix(args.x.dtype, args.tokens(), args.hidden());
  steps.run(rmsnorm::forward_variants<Exec>(), norm_of(args, y));
  steps.product(dweight_product(args, {y}), "katt::rmsnorm_linear::dweight");
  const TensorRef<2>& dy = y;  // y is not needed any more
  steps.product(dy_product(args, dy), "katt::rmsnorm_linear::dy");
  steps.run(rmsnorm::backward_variants<Exec>(), norm_backward_of(args, dy));
}

template <class Exec>
void fused(Steps<Exec>& steps, const ForwardArgs& args) {
  const TensorRef<2> scales = steps.matrix(Dtype::f32, args.tokens(), 2);
  steps.row_scales(norm_of(args, {}), scales);
  const ConstTensorRef<2> h = args.residual.size() > 0 ? args.residual_out : args.x;
  steps.product(out_product(args, scaled(h, args, scales)), "katt::rmsnorm_linear::out");
}

template <class Exec>
void fused(Steps<Exec>& steps, const BackwardArgs& args) {
  const TensorRef<2> scales = steps.matrix(Dtype::f32, args.tokens(), 2);
  steps.row_scales(norm_of(args, {}), scales);
  steps.product(dweight_product(args, scaled(args.x, args, scales)),
                "katt::rmsnorm_linear::dweight");
  steps.product(dy_product(args, args.dx), "katt::rmsnorm_linear::dy");
  steps.run(rmsnorm::backward_variants<Exec>(), norm_backward_of(args, args.dx));
}

/// Rank of "fused" on a host; "naive" has 0. With few tokens the pass that finds the statistics costs a launch and
/// saves nothing. In bf16 rows are packed, and scaled, again for every few hundred columns of out, where the units
/// would read stored ones.
int fused_rank(const ForwardArgs& args) {
  const bool is_narrow = args.x.dtype != Dtype::bf16 || args.out_features() <= 512;
  return args.tokens() > 64 && is_narrow ? 1 : -1;
}
int fused_rank(const BackwardArgs& args) { return args.tokens() > 64 ? 1 : -1; }

/// The product that reads y, without memory.
linear::GemmArgs product_of(const ForwardArgs& args, const Normal& y) {
  return out_product(args, y);
}
linear::GemmArgs product_of(const BackwardArgs& args, const Normal& y) {
  return dweight_product(args, y);
}

template <class Exec, class Args>
VariantTable<Exec, Args> built_in() {
  VariantTable<Exec, Args> table{
      {.name = "naive",
       .description = "the fastest norm, stored, and the fastest product",
       .workspace_bytes =
           [](const Exec& exec, const Args& args) {
             Steps<Exec> steps(exec);
             naive(steps, args);
             return steps.bytes();
           },
       .run =
           [](const Exec& exec, const Args& args, Workspace workspace) {
             Steps<Exec> steps(exec, workspace);
             naive(steps, args);
           },
       .engine =
           [](const Exec&, const Args& args) {
             return linear::fastest_engine<Exec>(product_of(args, {args.x})).unit;
           }}};
  Variant<Exec, Args> variant{
      .name = "fused",
      .description = "the product scales rows where it packs them; they are not stored"};
  if constexpr (is_host_v<Exec>) {
    variant.rank = [](const Args& args) { return fused_rank(args); };
    variant.workspace_bytes = [](const Exec& exec, const Args& args) {
      Steps<Exec> steps(exec);
      fused(steps, args);
      return steps.bytes();
    };
    variant.run = [](const Exec& exec, const Args& args, Workspace workspace) {
      Steps<Exec> steps(exec, workspace);
      fused(steps, args);
    };
    variant.engine = [](const Exec&, const Args& args) {
      const TensorRef<2> scales(nullptr, Dtype::f32, {args.tokens(), 2});
      return linear::fastest_engine<Exec>(product_of(args, scaled(args.x, args, scales))).unit;
    };
  } else {
    variant.supports = [](const Args&) {
      return Status::skipped("fused: a device's products read their operands as they are stored");
    };
    variant.run = [](const Exec&, const Args&, Workspace) {};
  }
  table.add(std::move(variant));
  return table;
}

}  // namespace

KATT_DEFINE_VARIANTS(forward, ForwardArgs, built_in<Exec, ForwardArgs>())
KATT_DEFINE_VARIANTS(backward, BackwardArgs, built_in<Exec, BackwardArgs>())
KATT_DEFINE_PASS(forward, ForwardArgs)
KATT_DEFINE_PASS(backward, BackwardArgs)

}  // namespace katt::rmsnorm_linear
