#include "ops/swiglu_mlp/swiglu_mlp_fused.hpp"

#include <algorithm>
#include <string>
#include <utility>

#include "core/execution.hpp"
#include "ops/swiglu/swiglu_kernels.hpp"
#include "ops/swiglu_mlp/swiglu_mlp_blocks.hpp"

namespace katt::swiglu_mlp::impl {

namespace {

using swiglu::impl::Activate;
using swiglu::impl::ActivateBackward;
using swiglu::impl::Matrix;

/// target = source, rounded.
template <class T>
struct Round {
  static constexpr int chunks = 2;  ///< f32 and a narrower dtype
  Matrix<const float> source;
  Matrix<T> target;

  template <class Vec, class Lanes>
  KOKKOS_INLINE_FUNCTION void operator()(std::int64_t row, std::int64_t column, Lanes lanes) const {
    tile::store(target.at(row, column), tile::load<Vec>(source.at(row, column), lanes), lanes);
  }
};

template <class T>
Matrix<T> matrix(const TensorRef<2>& block) {
  return {static_cast<T*>(block.data), block.stride[0]};
}

/// Finds the workspace of the products; the other steps need none.
template <class Exec>
class Sizer : public ProductSizer<Exec> {
 public:
  using ProductSizer<Exec>::ProductSizer;
  void activate(const TensorRef<2>&, const TensorRef<2>&) {}
  void activate_backward(const TensorRef<2>&, const TensorRef<2>&, const TensorRef<2>&) {}
  void round(const TensorRef<2>&, const TensorRef<2>&, const char*) {}
};

/// True when gate, up and their activation are one product.
template <class Exec, class Args>
bool has_gated_product(const Args& args) {
  return is_host_v<Exec> && args.w_gate.stride[0] == args.w_up.stride[0];
}

/// Launches the steps.
template <class Exec>
class Launches {
 public:
  Launches(const Exec& exec, Workspace workspace) : exec_(exec), workspace_(workspace) {}

  void product(const linear::GemmArgs& args, const char* label) {
    linear::gemm(exec_, args, workspace_, label);
  }
  /// gate ← silu(gate) · up
  void activate(const TensorRef<2>& gate, const TensorRef<2>& up) {
    visit_dtype(gate.dtype, [&]<class T>() {
      for_each<Activate<T>::chunks>(
          "katt::swiglu_mlp::activate",
          Activate<T>{matrix<const T>(gate), matrix<const T>(up), matrix<T>(gate)}, gate, up);
    });
  }
  /// gate, up, dh ← dgate, dup, h
  void activate_backward(const TensorRef<2>& gate, const TensorRef<2>& up, const TensorRef<2>& dh) {
    visit_dtype(gate.dtype, [&]<class T>() {
      for_each<ActivateBackward<T>::chunks>(
          "katt::swiglu_mlp::activate_backward",
          ActivateBackward<T>{matrix<const T>(gate), matrix<const T>(up), matrix<const T>(dh),
                              matrix<T>(gate), matrix<T>(up), matrix<T>(dh)},
          gate, up, dh);
    });
  }
  void round(const TensorRef<2>& sum, const TensorRef<2>& target, const char* label) {
    visit_dtype(target.dtype, [&]<class T>() {
      for_each<Round<T>::chunks>(label, Round<T>{matrix<const float>(sum), matrix<T>(target)},
                                 target, sum);
    });
  }

 private:
  /// Launches a body for the elements of the tensors, which have one shape.
  template <int Chunks, class Body, class... Others>
  void for_each(const char* label, const Body& body, const TensorRef<2>& first,
                const Others&... others) {
    tile::for_each_wide_vector<Chunks>(exec_, label, first.extent[0], first.extent[1], body,
                                       tile::are_chunks(first, others...));
  }

  const Exec& exec_;
  Workspace workspace_;
};

/// A target that is added to in several products: the sum itself if it is f32, else an f32 buffer
/// that is rounded into it at the end.
struct Sum {
  TensorRef<2> target;
  TensorRef<2> buffer{};

  bool buffered() const { return buffer.size() > 0; }
  const TensorRef<2>& written() const { return buffered() ? buffer : target; }
  template <class Step>
  void finish(Step& step, const char* label) const {
    if (buffered()) step.round(buffer, target, label);
  }
};

/// 0 for the first addend of a sum, which overwrites what was there.
float beta_at(std::int64_t begin) { return begin == 0 ? 0.0F : 1.0F; }

bool is_wide(const TensorRef<2>& tensor) { return tensor.dtype == Dtype::f32; }

template <class Exec>
struct ForwardBuffers {
  std::int64_t tokens, columns;
  bool gated;     ///< up is not stored, nor gate: its place has h
  bool buffered;  ///< out needs an f32 sum
  TensorRef<2> gate, up, sum;

  ForwardBuffers(Arena& arena, const ForwardArgs& args, Tile tile)
      : tokens(std::min<std::int64_t>(tile.tokens, args.tokens())),
        columns(std::min<std::int64_t>(tile.columns, args.intermediate())),
        gated(has_gated_product<Exec>(args)),
        buffered(!is_wide(args.out) && columns < args.intermediate()),
        gate(arena.matrix(args.x.dtype, tokens, columns)),
        up(gated ? TensorRef<2>{} : arena.matrix(args.x.dtype, tokens, columns)),
        sum(buffered ? arena.matrix(Dtype::f32, tokens, args.hidden()) : TensorRef<2>{}) {}
};

template <class Step, class Exec>
void steps(Step& step, const ForwardArgs& args, const ForwardBuffers<Exec>& b) {
  for_each_block(args.tokens(), b.tokens, [&](Range t) {
    const Range local{0, t.count};
    const ConstTensorRef<2> x = rows_of(args.x, t);
    const Sum out{rows_of(args.out, t), b.buffered ? rows_of(b.sum, local) : TensorRef<2>{}};
    for_each_block(args.intermediate(), b.columns, [&](Range f) {
      const TensorRef<2> h = part(b.gate, local, {0, f.count});
      const ConstTensorRef<2> w_gate = rows_of(args.w_gate, f);
      const ConstTensorRef<2> w_up = rows_of(args.w_up, f);
      if (b.gated) {
        step.product({.a = x, .b = w_up, .c = h, .trans_b = true, .gate = w_gate},
                     "katt::swiglu_mlp::gate_up");
      } else {
        const TensorRef<2> up = part(b.up, local, {0, f.count});
        step.product({.a = x, .b = w_gate, .c = h, .trans_b = true}, "katt::swiglu_mlp::gate");
        step.product({.a = x, .b = w_up, .c = up, .trans_b = true}, "katt::swiglu_mlp::up");
        step.activate(h, up);
      }
      step.product({.a = h,
                    .b = columns_of(args.w_down, f),
                    .c = out.written(),
                    .trans_b = true,
                    .beta = beta_at(f.begin)},
                   "katt::swiglu_mlp::down");
    });
    out.finish(step, "katt::swiglu_mlp::round_out");
  });
}

struct BackwardBuffers {
  std::int64_t tokens, columns;
  bool at_once;                       ///< dx of a block of tokens takes one block of columns
  bool buffered_weights, buffered_x;  ///< the gradients that need f32 sums
  TensorRef<2> gate, up, dh, dw_gate, dw_up, dw_down, dx;

  BackwardBuffers(Arena& arena, const BackwardArgs& args, Tile tile)
      : tokens(std::min<std::int64_t>(tile.tokens, args.tokens())),
        columns(std::min<std::int64_t>(tile.columns, args.intermediate())),
        at_once(columns == args.intermediate()),
        buffered_weights(!is_wide(args.dw_gate) && tokens < args.tokens()),
        buffered_x(!is_wide(args.dx)),
        gate(arena.matrix(args.x.dtype, tokens, columns)),
        up(arena.matrix(args.x.dtype, tokens, columns)),
        dh(arena.matrix(args.x.dtype, tokens, columns)) {
    if (buffered_weights) {
      dw_gate = arena.matrix(Dtype::f32, columns, args.hidden());
      dw_up = arena.matrix(Dtype::f32, columns, args.hidden());
      dw_down = arena.matrix(Dtype::f32, args.hidden(), columns);
    }
    if (!buffered_x) return;
    const std::int64_t hidden = args.hidden();
    // h is not needed any more when dx is summed at once; it has 16 bits, the sums 32.
    if (at_once && columns >= 2 * hidden) dx = {dh.data, Dtype::f32, {tokens, hidden}};
    else dx = arena.matrix(Dtype::f32, at_once ? tokens : args.tokens(), hidden);
  }
};

template <class Step>
void steps(Step& step, const BackwardArgs& args, const BackwardBuffers& b) {
  const auto buffer = [&](const TensorRef<2>& sum, Range rows, Range columns) {
    return b.buffered_weights ? part(sum, rows, columns) : TensorRef<2>{};
  };
  const Range hidden{0, args.hidden()};
  for_each_block(args.intermediate(), b.columns, [&](Range f) {
    const Range local_f{0, f.count};
    const ConstTensorRef<2> w_gate = rows_of(args.w_gate, f);
    const ConstTensorRef<2> w_up = rows_of(args.w_up, f);
    const ConstTensorRef<2> w_down = columns_of(args.w_down, f);
    const Sum dw_gate{rows_of(args.dw_gate, f), buffer(b.dw_gate, local_f, hidden)};
    const Sum dw_up{rows_of(args.dw_up, f), buffer(b.dw_up, local_f, hidden)};
    const Sum dw_down{columns_of(args.dw_down, f), buffer(b.dw_down, hidden, local_f)};
    for_each_block(args.tokens(), b.tokens, [&](Range t) {
      const ConstTensorRef<2> x = rows_of(args.x, t);
      const ConstTensorRef<2> dout = rows_of(args.dout, t);
      const TensorRef<2> gate = part(b.gate, {0, t.count}, local_f);
      const TensorRef<2> up = part(b.up, {0, t.count}, local_f);
      const TensorRef<2> dh = part(b.dh, {0, t.count}, local_f);
      step.product({.a = x, .b = w_gate, .c = gate, .trans_b = true}, "katt::swiglu_mlp::gate");
      step.product({.a = x, .b = w_up, .c = up, .trans_b = true}, "katt::swiglu_mlp::up");
      step.product({.a = dout, .b = w_down, .c = dh}, "katt::swiglu_mlp::dh");
      step.activate_backward(gate, up, dh);
      const TensorRef<2>& h = dh;
      const float beta = beta_at(t.begin);
      step.product({.a = gate, .b = x, .c = dw_gate.written(), .trans_a = true, .beta = beta},
                   "katt::swiglu_mlp::dw_gate");
      step.product({.a = up, .b = x, .c = dw_up.written(), .trans_a = true, .beta = beta},
                   "katt::swiglu_mlp::dw_up");
      step.product({.a = dout, .b = h, .c = dw_down.written(), .trans_a = true, .beta = beta},
                   "katt::swiglu_mlp::dw_down");
      const Sum dx{rows_of(args.dx, t), b.buffered_x
                                            ? rows_of(b.dx, b.at_once ? Range{0, t.count} : t)
                                            : TensorRef<2>{}};
      step.product({.a = gate, .b = w_gate, .c = dx.written(), .beta = beta_at(f.begin)},
                   "katt::swiglu_mlp::dx");
      step.product({.a = up, .b = w_up, .c = dx.written(), .beta = 1.0F}, "katt::swiglu_mlp::dx");
      if (b.at_once) dx.finish(step, "katt::swiglu_mlp::round_dx");
    });
    dw_gate.finish(step, "katt::swiglu_mlp::round_dw_gate");
    dw_up.finish(step, "katt::swiglu_mlp::round_dw_up");
    dw_down.finish(step, "katt::swiglu_mlp::round_dw_down");
  });
  if (!b.at_once) Sum{args.dx, b.dx}.finish(step, "katt::swiglu_mlp::round_dx");
}

template <class Buffers, class Exec, class Args>
std::size_t workspace_bytes(const Exec& exec, const Args& args, Tile tile) {
  Arena arena;
  const Buffers buffers(arena, args, tile);
  Sizer<Exec> sizer(exec);
  steps(sizer, args, buffers);
  return arena.used() + sizer.bytes();
}

template <class Buffers, class Exec, class Args>
void run(const Exec& exec, const Args& args, Tile tile, Workspace workspace) {
  Arena arena(workspace);
  const Buffers buffers(arena, args, tile);
  Launches<Exec> runner(exec, arena.rest());
  steps(runner, args, buffers);
}

}  // namespace

const std::vector<Setting>& fused_tiles() {
  static const std::vector<Setting> tiles = [] {
    const Setting first{1024, 16384};  // the default of a host's forward pass
    std::vector<Setting> all{first};
    for (const int tokens : {256, 384, 512, 1024, 2048, 4096}) {
      for (const int columns : {256, 512, 1024, 2048, 4096, 16384}) {
        if (Setting tile{tokens, columns}; tile != first) all.push_back(std::move(tile));
      }
    }
    return all;
  }();
  return tiles;
}

template <class Exec>
std::size_t fused_workspace_bytes(const Exec& exec, const ForwardArgs& args, Tile tile) {
  return workspace_bytes<ForwardBuffers<Exec>>(exec, args, tile);
}
template <class Exec>
std::size_t fused_workspace_bytes(const Exec& exec, const BackwardArgs& args, Tile tile) {
  return workspace_bytes<BackwardBuffers>(exec, args, tile);
}

template <class Exec>
void fused_forward(const Exec& exec, const ForwardArgs& args, Tile tile, Workspace workspace) {
  run<ForwardBuffers<Exec>>(exec, args, tile, workspace);
}
template <class Exec>
void fused_backward(const Exec& exec, const BackwardArgs& args, Tile tile, Workspace workspace) {
  run<BackwardBuffers>(exec, args, tile, workspace);
}

#define KATT_INSTANTIATE_FUSED_MLP(Exec)                                                    \
  template std::size_t fused_workspace_bytes<Exec>(const Exec&, const ForwardArgs&, Tile);  \
  template std::size_t fused_workspace_bytes<Exec>(const Exec&, const BackwardArgs&, Tile); \
  template void fused_forward<Exec>(const Exec&, const ForwardArgs&, Tile, Workspace);      \
  template void fused_backward<Exec>(const Exec&, const BackwardArgs&, Tile, Workspace);

KATT_FOR_EACH_EXEC(KATT_INSTANTIATE_FUSED_MLP)

}  // namespace katt::swiglu_mlp::impl
