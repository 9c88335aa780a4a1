#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <Kokkos_Core.hpp>

#include "core/dtype.hpp"
#include "nn/arena.hpp"
#include "nn/config.hpp"
#include "nn/model/block.hpp"
#include "nn/products.hpp"
#include "nn/runner.hpp"
#include "ops/linear/linear.hpp"
#include "ops/rope/rope.hpp"

/// One block of a LLaMA as an operator of sweeps: nn::Block, composed of other variants of its
/// operators. In a model the first norm of the next block computes the sum that ends a block; so
/// here both residual sums stand before a norm:
///
///   x = stream + delta,   n₁ = rmsnorm(x),   h = x + attention(rope(n₁·W_qkvᵀ))·W_oᵀ
///   n₂ = rmsnorm(h),      delta_out = (silu(g) · u)·W_downᵀ with g, u = n₂·W_gate_upᵀ
///
/// The backward pass computes the gradient of x from that of h + delta_out, and the gradients of
/// the weights in f32, from the activations that a forward pass has kept. Attention is causal. q, k
/// and v are one product, and so are gate and up, in every composition.
namespace katt::llama_block {

struct Shape {
  std::int64_t batch = 0, seq = 0, hidden = 0, intermediate = 0, heads = 0, kv_heads = 0,
               head_dim = 0;

  [[nodiscard]] std::int64_t tokens() const { return batch * seq; }
  [[nodiscard]] std::int64_t q_size() const { return heads * head_dim; }
  [[nodiscard]] std::int64_t qkv_size() const { return (heads + 2 * kv_heads) * head_dim; }
  /// Elements of the weights.
  [[nodiscard]] std::int64_t parameters() const;
};

/// Throws InputError naming the axis, for heads that a block cannot have.
void check_heads(const Shape& shape);

/// With positions from 0, theta = 10000 and eps = 1e-5.
[[nodiscard]] nn::LlamaConfig config_of(const Shape& shape);

/// The variants of the operators in a block.
struct Composition {
  std::string name;
  std::string description;
  nn::Kernels kernels;
};

/// "naive": every operator as a user writes it without fused kernels. "fused": as the model runs
/// it. "naive_OP": fused except for one operator, to show the saving of its fusion.
[[nodiscard]] const std::vector<Composition>& compositions();

/// FLOPs of the products, and of attention over visible keys; twice, and 2.5 times, as many
/// backward.
[[nodiscard]] double flops(const Shape& shape, bool backward);

/// Least traffic in bytes: weights, inputs and outputs once. Activations between the operators do
/// not count; in the backward pass the kept activations do.
[[nodiscard]] double bytes(const Shape& shape, Dtype dtype, bool backward);

/// Tensors outside the block, in the memory of the backend.
struct Tensors {
  TensorRef<2> stream{}, delta{};  ///< (tokens, hidden)
  nn::BlockWeights weights{};      ///< without biases
  TensorRef<2> h{}, delta_out{};   ///< (tokens, hidden); outputs of the forward pass
  TensorRef<2> dx{};               ///< (tokens, hidden); output of the backward pass
  nn::BlockWeights gradients{};    ///< f32; outputs of the backward pass
};

/// A pass with its memory: the tensors between the operators, and their workspace. A dry pass
/// allocates nothing and counts the bytes. Throws InputError when a variant cannot run here. Ranks
/// of a tensor parallel group have parts of heads, columns and weights, as the shape says, and sum
/// their parts of a result. When they share rows (nn/stream_rows.hpp), stream, delta, h, delta_out
/// and dx have the rank's rows.
template <class Exec>
class Pass {
 public:
  Pass(const Exec& exec, const Shape& shape, Dtype dtype, nn::Kernels kernels, Tensors tensors,
       bool backward, bool dry = false, const ranks::Groups& groups = {})
      : config_(config_of(shape)),
        shape_{.batch = shape.batch, .seq = shape.seq},
        kernels_(std::move(kernels)),
        tensors_(std::move(tensors)),
        pool_("katt::llama_block::memory"),
        run_(exec, dry, pool_, groups) {
    nn::Arena sizes;
    lay_out(sizes, dtype, backward);
    tensor_bytes_ = sizes.bytes();
    if (!dry) {
      memory_ = pool_.allocate(exec, tensor_bytes_);
      nn::Arena arena(memory_.data());
      lay_out(arena, dtype, backward);
      if (at_.rows.all) nn::clear_rows(exec, at_.rows.all);
      rope::build_cache(exec, config_.rope, cos_sin_);
    }
    nn::Runner<Exec> rehearsal(exec, true, {}, groups);
    launch_forward(rehearsal);
    if (backward) launch_backward(rehearsal);
    run_.reserve(rehearsal.workspace_bytes());
  }
  Pass(const Pass&) = delete;
  Pass& operator=(const Pass&) = delete;

  /// Bytes that it holds.
  [[nodiscard]] std::size_t bytes() const {
    return memory::reserved_bytes(tensor_bytes_) + memory::reserved_bytes(run_.workspace_bytes());
  }

  void forward() { launch_forward(run_); }

  /// All tensors that backward() overwrites: the activations, dx, which holds the gradient of the
  /// stream after the block before the call, and the gradients of the weights, to which it adds.
  void restore(const ConstTensorRef<2>& dout) {
    launch_forward(run_);
    copy(dout, tensors_.dx);
    const nn::BlockWeights& d = tensors_.gradients;
    for (const TensorRef<2>& matrix : {d.qkv, d.o, d.gate_up, d.down}) clear(matrix);
    for (const TensorRef<1>& row : {d.input_norm, d.post_norm}) clear(row);
  }
  void backward() { launch_backward(run_); }

  /// The units that compute the products of a pass.
  [[nodiscard]] std::string engine(bool backward) const {
    const linear::ForwardArgs out{.x = at_.n1, .weight = tensors_.weights.qkv, .out = at_.qkv};
    const linear::BackwardArgs in{
        .x = at_.n1, .weight = tensors_.weights.qkv, .dout = at_.qkv, .dx = at_.n1};
    const Config config{.variant = kernels_.linear};
    return backward ? linear::backward_variants<Exec>().call(run_.exec(), in, config).engine()
                    : linear::forward_variants<Exec>().call(run_.exec(), out, config).engine();
  }

 private:
  using Bytes = Kokkos::View<std::byte*, typename Exec::memory_space,
                             Kokkos::MemoryTraits<Kokkos::Unmanaged>>;

  template <int Rank>
  static Bytes bytes_of(const TensorRef<Rank>& tensor) {
    return Bytes(static_cast<std::byte*>(tensor.data),
                 static_cast<std::size_t>(tensor.size()) * size_of(tensor.dtype));
  }
  void copy(const ConstTensorRef<2>& from, const TensorRef<2>& to) const {
    const TensorRef<2> source(const_cast<void*>(from.data), from.dtype, from.extent);  // NOLINT
    Kokkos::deep_copy(run_.exec(), bytes_of(to), bytes_of(source));
  }
  template <int Rank>
  void clear(const TensorRef<Rank>& tensor) const {
    Kokkos::deep_copy(run_.exec(), bytes_of(tensor), std::byte{0});
  }

  void lay_out(nn::Arena& arena, Dtype dtype, bool backward) {
    const std::int64_t tokens = shape_.tokens();
    const auto rows = [&](std::int64_t columns) {
      return arena.tensor<2>(dtype, {tokens, columns});
    };
    const ranks::Layout& layout = run_.groups().place.layout;
    const std::int64_t own = nn::StreamRows::rows_of_rank(tokens, layout);
    const std::int64_t hidden = config_.hidden_size;
    at_.rows.tokens = tokens;
    if (layout.shares_rows()) {
      at_.rows.all = arena.tensor<2>(dtype, {layout.tensor * own, hidden});
    }
    cos_sin_ = arena.tensor<2>(Dtype::f32, {shape_.seq, config_.head_dim});
    at_.x = arena.tensor<2>(dtype, {own, hidden});
    if (!backward) {
      using nn::Recompute;
      at_.attended = rows(config_.q_size());  // without lse
      const Recompute parts = nn::parts_of_forward<Exec>(config_, kernels_, tokens);
      nn::lay_out_block(arena, config_, dtype, shape_,
                        nn::without(parts, Recompute::attended | Recompute::h), at_, own);
      at_.h = tensors_.h;
      return;
    }
    nn::lay_out_block(arena, config_, dtype, shape_, nn::Recompute::all, at_, own);
    tensors_.delta_out = arena.tensor<2>(dtype, {own, hidden});
    const std::int64_t qkv = config_.q_size() + 2 * config_.kv_size();
    buffers_.g = tensors_.dx;
    buffers_.dqkv = rows(qkv);
    buffers_.dattended = rows(config_.q_size());
    if (kernels_.swiglu == "naive") buffers_.dgate_up = rows(2 * config_.intermediate_size);
    // Gradients of the norms, and of matrices when their products do not add.
    const std::int64_t widest = std::max({qkv, config_.q_size(), 2 * config_.intermediate_size});
    buffers_.staging = arena.tensor<2>(
        dtype, {kernels_.products_add ? std::int64_t{1} : widest, config_.hidden_size});
  }

  void launch_forward(nn::Runner<Exec>& run) const {
    const nn::Block<Exec> block(config_, kernels_, cos_sin_);
    block.norm_and_project(run, tensors_.weights, at_, shape_, {}, tensors_.stream, tensors_.delta);
    block.attention().attend_own(run, at_, shape_);
    block.finish(run, tensors_.weights, at_, tensors_.delta_out);
  }
  void launch_backward(nn::Runner<Exec>& run) const {
    const nn::Block<Exec> block(config_, kernels_, cos_sin_);
    block.backward(run, tensors_.weights, tensors_.gradients, at_, shape_, buffers_);
    if (!at_.rows.all) return;
    run.sum_over_tensor_ranks(tensors_.gradients.input_norm);
    run.sum_over_tensor_ranks(tensors_.gradients.post_norm);
  }

  nn::LlamaConfig config_;
  nn::BatchShape shape_;
  nn::Kernels kernels_;
  Tensors tensors_;
  nn::Pool<Exec> pool_;
  nn::Runner<Exec> run_;
  std::size_t tensor_bytes_ = 0;
  memory::PoolBlock memory_;
  TensorRef<2> cos_sin_;
  nn::BlockActivations at_;
  nn::BackwardBuffers buffers_;
};

}  // namespace katt::llama_block
