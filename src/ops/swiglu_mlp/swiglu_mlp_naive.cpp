#include "ops/swiglu_mlp/swiglu_mlp_naive.hpp"

#include "core/execution.hpp"
#include "ops/swiglu/swiglu.hpp"
#include "ops/swiglu_mlp/swiglu_mlp_blocks.hpp"

namespace katt::swiglu_mlp::impl {

namespace {

TensorRef<2> whole(Arena& arena, const auto& args) {
  return arena.matrix(args.x.dtype, args.tokens(), args.intermediate());
}

struct ForwardBuffers {
  TensorRef<2> gate, up;
  ForwardBuffers(Arena& arena, const ForwardArgs& args)
      : gate(whole(arena, args)), up(whole(arena, args)) {}
};

struct BackwardBuffers {
  TensorRef<2> gate, up, h, dgate, dup;
  BackwardBuffers(Arena& arena, const BackwardArgs& args)
      : gate(whole(arena, args)),
        up(whole(arena, args)),
        h(whole(arena, args)),
        dgate(whole(arena, args)),
        dup(whole(arena, args)) {}
};

/// The unfused operations in order. `step` runs them, or finds the size of the workspace.
template <class Step>
void steps(Step& step, const ForwardArgs& args, const ForwardBuffers& b) {
  step.product({.a = args.x, .b = args.w_gate, .c = b.gate, .trans_b = true},
               "katt::swiglu_mlp::naive_gate");
  step.product({.a = args.x, .b = args.w_up, .c = b.up, .trans_b = true},
               "katt::swiglu_mlp::naive_up");
  step.activate({.gate = b.gate, .up = b.up, .out = b.gate});
  step.product({.a = b.gate, .b = args.w_down, .c = args.out, .trans_b = true},
               "katt::swiglu_mlp::naive_down");
}

template <class Step>
void steps(Step& step, const BackwardArgs& args, const BackwardBuffers& b) {
  step.product({.a = args.x, .b = args.w_gate, .c = b.gate, .trans_b = true},
               "katt::swiglu_mlp::naive_gate");
  step.product({.a = args.x, .b = args.w_up, .c = b.up, .trans_b = true},
               "katt::swiglu_mlp::naive_up");
  step.activate({.gate = b.gate, .up = b.up, .out = b.h});
  step.product({.a = args.dout, .b = b.h, .c = args.dw_down, .trans_a = true},
               "katt::swiglu_mlp::naive_dw_down");
  const TensorRef<2>& dh = b.h;  // h is not needed any more
  step.product({.a = args.dout, .b = args.w_down, .c = dh}, "katt::swiglu_mlp::naive_dh");
  step.activate_backward({.gate = b.gate, .up = b.up, .dout = dh, .dgate = b.dgate, .dup = b.dup});
  step.product({.a = b.dgate, .b = args.x, .c = args.dw_gate, .trans_a = true},
               "katt::swiglu_mlp::naive_dw_gate");
  step.product({.a = b.dup, .b = args.x, .c = args.dw_up, .trans_a = true},
               "katt::swiglu_mlp::naive_dw_up");
  step.product({.a = b.dgate, .b = args.w_gate, .c = args.dx}, "katt::swiglu_mlp::naive_dx");
  step.product({.a = b.dup, .b = args.w_up, .c = args.dx, .beta = 1.0F},
               "katt::swiglu_mlp::naive_dx");
}

const Config passes{"naive", {}};

/// Workspace of one operation after the other: that of the largest.
template <class Exec>
class Sizer : public ProductSizer<Exec> {
 public:
  explicit Sizer(const Exec& exec) : ProductSizer<Exec>(exec), exec_(exec) {}
  void activate(const swiglu::ForwardArgs& args) {
    add(swiglu::forward_variants<Exec>().workspace_bytes(exec_, args, passes));
  }
  void activate_backward(const swiglu::BackwardArgs& args) {
    add(swiglu::backward_variants<Exec>().workspace_bytes(exec_, args, passes));
  }
  std::size_t bytes() const { return std::max(bytes_, ProductSizer<Exec>::bytes()); }

 private:
  void add(std::size_t bytes) { bytes_ = std::max(bytes_, bytes); }
  const Exec& exec_;
  std::size_t bytes_ = 0;
};

/// Launches the operations.
template <class Exec>
class Launches {
 public:
  Launches(const Exec& exec, Workspace workspace) : exec_(exec), workspace_(workspace) {}
  void product(const linear::GemmArgs& args, const char* label) {
    linear::gemm(exec_, args, workspace_, label);
  }
  void activate(const swiglu::ForwardArgs& args) {
    (void)swiglu::forward_variants<Exec>().run(exec_, args, passes, workspace_);
  }
  void activate_backward(const swiglu::BackwardArgs& args) {
    (void)swiglu::backward_variants<Exec>().run(exec_, args, passes, workspace_);
  }

 private:
  const Exec& exec_;
  Workspace workspace_;
};

template <class Buffers, class Exec, class Args>
std::size_t workspace_bytes(const Exec& exec, const Args& args) {
  Arena arena;
  const Buffers buffers(arena, args);
  Sizer<Exec> sizer(exec);
  steps(sizer, args, buffers);
  return arena.used() + sizer.bytes();
}

template <class Buffers, class Exec, class Args>
void run(const Exec& exec, const Args& args, Workspace workspace) {
  Arena arena(workspace);
  const Buffers buffers(arena, args);
  Launches<Exec> runner(exec, arena.rest());
  steps(runner, args, buffers);
}

}  // namespace

template <class Exec>
std::size_t naive_workspace_bytes(const Exec& exec, const ForwardArgs& args) {
  return workspace_bytes<ForwardBuffers>(exec, args);
}
template <class Exec>
std::size_t naive_workspace_bytes(const Exec& exec, const BackwardArgs& args) {
  return workspace_bytes<BackwardBuffers>(exec, args);
}

template <class Exec>
void naive_forward(const Exec& exec, const ForwardArgs& args, Workspace workspace) {
  run<ForwardBuffers>(exec, args, workspace);
}
template <class Exec>
void naive_backward(const Exec& exec, const BackwardArgs& args, Workspace workspace) {
  run<BackwardBuffers>(exec, args, workspace);
}

#define KATT_INSTANTIATE_NAIVE_MLP(Exec)                                              \
  template std::size_t naive_workspace_bytes<Exec>(const Exec&, const ForwardArgs&);  \
  template std::size_t naive_workspace_bytes<Exec>(const Exec&, const BackwardArgs&); \
  template void naive_forward<Exec>(const Exec&, const ForwardArgs&, Workspace);      \
  template void naive_backward<Exec>(const Exec&, const BackwardArgs&, Workspace);

KATT_FOR_EACH_EXEC(KATT_INSTANTIATE_NAIVE_MLP)

}  // namespace katt::swiglu_mlp::impl
