#include "nn/multi_head_attention.hpp"

#include <algorithm>
#include <string>

#include "core/check.hpp"
#include "core/execution.hpp"
#include "core/parts.hpp"
#include "ops/attention/backward.hpp"
#include "ops/linear/linear.hpp"
#include "ops/rope/rope.hpp"

namespace katt::nn {

namespace {

constexpr const char* layer = "multi-head attention";

using Args = MultiHeadAttentionArgs;
using Layer = MultiHeadAttentionConfig;

void must_run(const Status& status) {
  if (!status.is_ok()) throw InputError(std::string(layer) + ": " + status.reason());
}

/// `heads` heads from column `first` on of a matrix (tokens, features): (batch, heads, seq,
/// head_dim).
template <bool Const>
BasicTensorRef<4, Const> heads_of(const MultiHeadAttentionShape& s,
                                  const BasicTensorRef<2, Const>& matrix, std::int64_t first,
                                  std::int64_t heads) {
  using Byte = std::conditional_t<Const, const std::byte, std::byte>;
  BasicTensorRef<4, Const> view;
  view.data = matrix.data;
  if (view.data != nullptr) {
    view.data = static_cast<Byte*>(view.data) + first * static_cast<std::int64_t>(size_of(s.dtype));
  }
  view.dtype = s.dtype;
  view.extent = {s.batch, heads, s.seq, s.head_dim};
  view.stride = {s.seq * matrix.stride[0], s.head_dim, matrix.stride[0], 1};
  return view;
}

/// Q, K and V within a matrix (tokens, qkv_features).
struct Split {
  TensorRef<4> q, k, v;
  Split(const MultiHeadAttentionShape& s, const TensorRef<2>& qkv)
      : q(heads_of(s, qkv, 0, s.heads)),
        k(heads_of(s, qkv, s.heads * s.head_dim, s.kv_heads)),
        v(heads_of(s, qkv, (s.heads + s.kv_heads) * s.head_dim, s.kv_heads)) {}
};

linear::ForwardArgs qkv_projection(const Args& args) {
  return {
      .x = args.x, .weight = args.weights.w_qkv, .bias = args.weights.b_qkv, .out = args.state.qkv};
}

linear::ForwardArgs out_projection(const Args& args, const TensorRef<2>& out) {
  return {.x = args.state.attended,
          .weight = args.weights.w_out,
          .bias = args.weights.b_out,
          .out = out};
}

rope::ForwardArgs rotation(const Args& args) {
  const Split split(args.shape, args.state.qkv);
  return {.x = split.q,
          .out = split.q,
          .x2 = split.k,
          .out2 = split.k,
          .cache = args.rope_cache,
          .positions = args.positions,
          .interleaved = args.rope_interleaved};
}

rope::BackwardArgs rotation_back(const Args& args, const Split& gradient) {
  return {.dout = gradient.q,
          .dx = gradient.q,
          .dout2 = gradient.k,
          .dx2 = gradient.k,
          .cache = args.rope_cache,
          .positions = args.positions,
          .interleaved = args.rope_interleaved};
}

attention::ForwardArgs attention_args(const Args& args) {
  const Split split(args.shape, args.state.qkv);
  attention::ForwardArgs a;
  a.q = split.q;
  a.k = split.k;
  a.v = split.v;
  a.out = heads_of(args.shape, args.state.attended, 0, args.shape.heads);
  a.lse = args.state.lse;
  a.scale = args.scale;
  a.mask = args.mask;
  return a;
}

attention::BackwardArgs attention_back(const Args& args, const TensorRef<2>& dattended,
                                       const Split& gradient) {
  const attention::ForwardArgs forward = attention_args(args);
  attention::BackwardArgs a;
  a.q = forward.q;
  a.k = forward.k;
  a.v = forward.v;
  a.out = forward.out;
  a.lse = forward.lse;
  a.dout = heads_of(args.shape, dattended, 0, args.shape.heads);
  a.dq = gradient.q;
  a.dk = gradient.k;
  a.dv = gradient.v;
  a.scale = args.scale;
  a.mask = args.mask;
  return a;
}

/// The products of the backward pass: of the output projection, then of the QKV projection.
linear::BackwardArgs out_projection_back(const Args& args, const ConstTensorRef<2>& dout,
                                         const TensorRef<2>& dattended,
                                         const MultiHeadAttentionWeights<false>& gradients) {
  return {.x = args.state.attended,
          .weight = args.weights.w_out,
          .dout = dout,
          .dx = dattended,
          .dweight = gradients.w_out,
          .dbias = gradients.b_out};
}

linear::BackwardArgs qkv_projection_back(const Args& args, const TensorRef<2>& dqkv,
                                         const TensorRef<2>& dx,
                                         const MultiHeadAttentionWeights<false>& gradients) {
  return {.x = args.x,
          .weight = args.weights.w_qkv,
          .dout = dqkv,
          .dx = dx,
          .dweight = gradients.w_qkv,
          .dbias = gradients.b_qkv};
}

/// The gradients of what the layer stores, at the start of the workspace; the parts' own workspace
/// follows.
struct BackwardSpace {
  TensorRef<2> dattended, dqkv;
  std::size_t parts;  ///< offset in bytes

  BackwardSpace(const MultiHeadAttentionShape& s, void* workspace) {
    auto* base = static_cast<std::byte*>(workspace);
    const auto bytes = [&](std::int64_t features) {
      return aligned_bytes(static_cast<std::size_t>(s.tokens() * features) * size_of(s.dtype));
    };
    const std::size_t first = bytes(s.attended_features());
    parts = first + bytes(s.qkv_features());
    dattended = {base, s.dtype, {s.tokens(), s.attended_features()}};
    dqkv = {base == nullptr ? nullptr : base + first, s.dtype, {s.tokens(), s.qkv_features()}};
  }
};

/// Gradients of every weight that there is, without memory, for the largest workspace.
MultiHeadAttentionWeights<false> all_gradients(const Args& args) {
  const auto like = [&]<int Rank>(const ConstTensorRef<Rank>& weight) {
    return TensorRef<Rank>(nullptr, args.shape.dtype, weight.extent);
  };
  return {.w_qkv = like(args.weights.w_qkv),
          .b_qkv = like(args.weights.b_qkv),
          .w_out = like(args.weights.w_out),
          .b_out = like(args.weights.b_out)};
}

void check(const Args& args) {
  const MultiHeadAttentionShape& s = args.shape;
  check_tensor<2>(layer, "x", args.x, s.dtype, {s.tokens(), s.hidden});
  check_tensor<2>(layer, "w_qkv", args.weights.w_qkv, s.dtype, {s.qkv_features(), s.hidden});
  check_tensor<2>(layer, "w_out", args.weights.w_out, s.dtype, {s.hidden, s.attended_features()});
  check_tensor<2>(layer, "qkv", args.state.qkv, s.dtype, {s.tokens(), s.qkv_features()});
  check_tensor<2>(layer, "attended", args.state.attended, s.dtype,
                  {s.tokens(), s.attended_features()});
  check_tensor<3>(layer, "lse", args.state.lse, Dtype::f32, {s.batch, s.heads, s.seq});
}

}  // namespace

template <class Exec>
std::size_t forward_workspace_bytes(const Exec& exec, const Args& args, const Layer& config) {
  const TensorRef<2> out(nullptr, args.shape.dtype, {args.shape.tokens(), args.shape.hidden});
  const auto& products = linear::forward_variants<Exec>();
  std::size_t bytes =
      std::max({products.workspace_bytes(exec, qkv_projection(args), config.linear),
                products.workspace_bytes(exec, out_projection(args, out), config.linear),
                attention::forward_variants<Exec>().workspace_bytes(exec, attention_args(args),
                                                                    config.attention)});
  if (args.rope_cache) {
    bytes = std::max(
        bytes, rope::forward_variants<Exec>().workspace_bytes(exec, rotation(args), config.rope));
  }
  return bytes;
}

template <class Exec>
std::size_t backward_workspace_bytes(const Exec& exec, const Args& args, const Layer& config) {
  const BackwardSpace space(args.shape, nullptr);
  const Split gradient(args.shape, space.dqkv);
  const MultiHeadAttentionWeights<false> gradients = all_gradients(args);
  const ConstTensorRef<2> dout(nullptr, args.shape.dtype, args.x.extent);
  const TensorRef<2> dx(nullptr, args.shape.dtype, args.x.extent);
  const auto& products = linear::backward_variants<Exec>();
  std::size_t parts = std::max(
      {products.workspace_bytes(exec, out_projection_back(args, dout, space.dattended, gradients),
                                config.linear),
       products.workspace_bytes(exec, qkv_projection_back(args, space.dqkv, dx, gradients),
                                config.linear),
       attention::backward_variants<Exec>().workspace_bytes(
           exec, attention_back(args, space.dattended, gradient), config.attention)});
  if (args.rope_cache) {
    parts = std::max(parts, rope::backward_variants<Exec>().workspace_bytes(
                                exec, rotation_back(args, gradient), config.rope));
  }
  return space.parts + parts;
}

template <class Exec>
void forward(const Exec& exec, const Args& args, const TensorRef<2>& out, const Layer& config,
             Workspace workspace) {
  check(args);
  must_run(linear::forward(exec, qkv_projection(args), config.linear, workspace));
  if (args.rope_cache) must_run(rope::forward(exec, rotation(args), config.rope, workspace));
  must_run(attention::forward(exec, attention_args(args), config.attention, workspace));
  must_run(linear::forward(exec, out_projection(args, out), config.linear, workspace));
}

template <class Exec>
void backward(const Exec& exec, const Args& args, const ConstTensorRef<2>& dout,
              const TensorRef<2>& dx, const MultiHeadAttentionWeights<false>& gradients,
              const Layer& config, Workspace workspace) {
  check(args);
  const std::size_t needed = backward_workspace_bytes(exec, args, config);
  if (workspace.bytes < needed) {
    throw InputError(std::string(layer) + ": workspace holds " + std::to_string(workspace.bytes) +
                     " bytes, expected " + std::to_string(needed));
  }
  const BackwardSpace space(args.shape, workspace.data);
  const Split gradient(args.shape, space.dqkv);
  const Workspace parts(static_cast<std::byte*>(workspace.data) + space.parts,
                        workspace.bytes - space.parts);
  must_run(linear::backward(exec, out_projection_back(args, dout, space.dattended, gradients),
                            config.linear, parts));
  must_run(attention::backward(exec, attention_back(args, space.dattended, gradient),
                               config.attention, parts));
  if (args.rope_cache) {
    must_run(rope::backward(exec, rotation_back(args, gradient), config.rope, parts));
  }
  must_run(linear::backward(exec, qkv_projection_back(args, space.dqkv, dx, gradients),
                            config.linear, parts));
}

#define KATT_INSTANTIATE_MULTI_HEAD_ATTENTION(Exec)                                            \
  template std::size_t forward_workspace_bytes<Exec>(const Exec&, const Args&, const Layer&);  \
  template std::size_t backward_workspace_bytes<Exec>(const Exec&, const Args&, const Layer&); \
  template void forward<Exec>(const Exec&, const Args&, const TensorRef<2>&, const Layer&,     \
                              Workspace);                                                      \
  template void backward<Exec>(const Exec&, const Args&, const ConstTensorRef<2>&,             \
                               const TensorRef<2>&, const MultiHeadAttentionWeights<false>&,   \
                               const Layer&, Workspace);

KATT_FOR_EACH_EXEC(KATT_INSTANTIATE_MULTI_HEAD_ATTENTION)

}  // namespace katt::nn
