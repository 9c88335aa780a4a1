#include "ops/swiglu/swiglu.hpp"

#include <cstddef>

#include "core/parts.hpp"
#include "ops/swiglu/swiglu_kernels.hpp"
#include "ops/swiglu/swiglu_naive.hpp"

namespace katt::swiglu {

namespace {

using impl::Matrix;

template <class T, bool Const>
auto matrix(const BasicTensorRef<2, Const>& tensor) {
  using Element = std::conditional_t<Const, const T, T>;
  return Matrix<Element>{static_cast<Element*>(tensor.data), tensor.stride[0]};
}

template <class T>
Matrix<const T> readable(const Matrix<T>& m) {
  return {m.data, m.stride};
}

/// Launches of one operation: its extents, one long row where all tensors are dense.
template <class Exec>
class Launcher {
 public:
  template <class... Refs>
  explicit Launcher(const Exec& exec, const ConstTensorRef<2>& first, const Refs&... others)
      : exec_(exec),
        rows_(first.extent[0]),
        columns_(first.extent[1]),
        wide_(tile::are_chunks(first, others...)) {
    const auto dense = [&](const auto& tensor) { return tensor.stride[0] == columns_; };
    if (dense(first) && (dense(others) && ...)) {
      columns_ *= rows_;
      rows_ = columns_ > 0 ? 1 : 0;
    }
  }

  /// `outputs` decide whether the stores go past the caches.
  template <class Body, class... Outputs>
  void operator()(const char* label, const Body& body, const Outputs&... outputs) const {
    const bool stream =
        tile::stores_whole_lines &&
        (tile::should_stream<Exec>(outputs.data, rows_, columns_, outputs.stride) && ...);
    tile::for_each_wide_vector<Body::chunks>(exec_, label, rows_, columns_, body, wide_, stream);
  }

 private:
  const Exec& exec_;
  std::int64_t rows_, columns_;
  bool wide_;  ///< Intermediates are dense and aligned.
};

/// One intermediate of the naive variants: (tokens, intermediate), dense, in the dtype.
template <class Args>
std::size_t buffer_bytes(const Args& args) {
  return aligned_bytes(args.gate);
}

template <class T>
Matrix<T> buffer(const Workspace& workspace, std::size_t offset, std::int64_t columns) {
  return {reinterpret_cast<T*>(static_cast<std::byte*>(workspace.data) + offset), columns};
}

template <class Exec>
Variant<Exec, ForwardArgs> naive_forward() {
  return {
      .name = "naive",
      .description = "two passes: silu of the gate, times up",
      .workspace_bytes = buffer_bytes<ForwardArgs>,
      .run =
          [](const Exec& exec, const ForwardArgs& args, Workspace workspace) {
            visit_dtype(args.gate.dtype, [&]<class T>() {
              const Launcher launch(exec, args.gate, args.up, args.out);
              const auto gate = matrix<T>(args.gate);
              const auto silu = buffer<T>(workspace, 0, args.intermediate());
              const auto out = matrix<T>(args.out);
              launch("katt::swiglu::naive_silu", impl::SiluPass<T>{gate, silu}, silu);
              launch("katt::swiglu::naive_multiply",
                     impl::MultiplyPass<T>{readable(silu), matrix<T>(args.up), out}, out);
            });
          },
  };
}

template <class Exec>
Variant<Exec, ForwardArgs> fused_forward() {
  return {
      .name = "fused",
      .description = "one pass",
      .rank = 1,
      .run =
          [](const Exec& exec, const ForwardArgs& args) {
            visit_dtype(args.gate.dtype, [&]<class T>() {
              const Launcher launch(exec, args.gate, args.up, args.out);
              const auto out = matrix<T>(args.out);
              launch("katt::swiglu::forward",
                     impl::Activate<T>{matrix<T>(args.gate), matrix<T>(args.up), out}, out);
            });
          },
  };
}

template <class Exec>
Variant<Exec, BackwardArgs> naive_backward() {
  return {
      .name = "naive",
      .description = "four passes: silu, dup, dout · up, dgate from it",
      .workspace_bytes = buffer_bytes<BackwardArgs>,
      .run =
          [](const Exec& exec, const BackwardArgs& args, Workspace workspace) {
            visit_dtype(args.gate.dtype, [&]<class T>() {
              const Launcher launch(exec, args.gate, args.up, args.dout, args.dgate, args.dup);
              const auto gate = matrix<T>(args.gate);
              const auto dout = matrix<T>(args.dout);
              // silu(gate) first, then dout · up.
              const auto stored = buffer<T>(workspace, 0, args.intermediate());
              const auto dgate = matrix<T>(args.dgate);
              const auto dup = matrix<T>(args.dup);
              launch("katt::swiglu::naive_silu", impl::SiluPass<T>{gate, stored}, stored);
              launch("katt::swiglu::naive_dup", impl::MultiplyPass<T>{dout, readable(stored), dup},
                     dup);
              launch("katt::swiglu::naive_dsilu",
                     impl::MultiplyPass<T>{dout, matrix<T>(args.up), stored}, stored);
              launch("katt::swiglu::naive_dgate",
                     impl::SiluSlopePass<T>{gate, readable(stored), dgate}, dgate);
            });
          },
  };
}

template <class Exec>
Variant<Exec, BackwardArgs> fused_backward() {
  return {
      .name = "fused",
      .description = "one pass",
      .rank = 1,
      .run =
          [](const Exec& exec, const BackwardArgs& args) {
            visit_dtype(args.gate.dtype, [&]<class T>() {
              const Launcher launch(exec, args.gate, args.up, args.dout, args.dgate, args.dup);
              const auto dgate = matrix<T>(args.dgate);
              const auto dup = matrix<T>(args.dup);
              launch("katt::swiglu::backward",
                     impl::ActivateBackward<T>{matrix<T>(args.gate),
                                               matrix<T>(args.up),
                                               matrix<T>(args.dout),
                                               dgate,
                                               dup,
                                               {nullptr, 0}},
                     dgate, dup);
            });
          },
  };
}

}  // namespace

KATT_DEFINE_VARIANTS(forward, ForwardArgs, {naive_forward<Exec>(), fused_forward<Exec>()})
KATT_DEFINE_VARIANTS(backward, BackwardArgs, {naive_backward<Exec>(), fused_backward<Exec>()})
KATT_DEFINE_PASS(forward, ForwardArgs)
KATT_DEFINE_PASS(backward, BackwardArgs)

}  // namespace katt::swiglu
