#pragma once

#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "op/buffer.hpp"
#include "op/tensor_operator.hpp"
#include "op/tensor_pass.hpp"
#include "ops/attention/bench/description.hpp"
#include "tile/bf16/bf16_units.hpp"

/// Attention problems of tests: host values that a test may change, on a backend, and what outputs
/// are held against, all of it by the operator's description.
namespace katt::attention {

/// Owns the host values of a problem.
struct ProblemData {
  HostProblem shape;  ///< its spans point into the vectors below
  Dtype dtype = Dtype::f32;
  std::vector<float> q, k, v, bias, alibi_slopes, dout;
  std::vector<std::int64_t> kv_len, block_mask;

  ProblemData() = default;
  ProblemData(const ProblemData&) = delete;
  ProblemData& operator=(const ProblemData&) = delete;

  /// Points the spans of `shape` at the vectors.
  void link() {
    shape.q = q;
    shape.k = k;
    shape.v = v;
    shape.bias = bias;
    shape.dout = dout;
    shape.score.alibi_slopes = alibi_slopes.empty() ? nullptr : alibi_slopes.data();
    shape.kv_len = kv_len;
    shape.block_mask = block_mask;
  }
};

/// The problem by the names of the description.
inline testing::Problem named(const ProblemData& data, bool backward = false,
                              bench::HeadLayout layout = bench::HeadLayout::bhsd) {
  const HostProblem& s = data.shape;
  testing::Problem p;
  p.dtype = data.dtype;
  p.backward = backward;
  p.extents = {{"batch", s.batch},
               {"heads", s.heads},
               {"kv_heads", s.kv_heads},
               {"seq_q", s.seq_q},
               {"seq_kv", s.seq_kv},
               {"head_dim", s.head_dim},
               {"causal", s.causal ? 1 : 0},
               {"window_left", s.window_left},
               {"window_right", s.window_right},
               {"layout", layout == bench::HeadLayout::bshd ? 1 : 0},
               {"block_size", s.block_size},
               {"mask_batch", s.bias_batch},
               {"mask_heads", s.bias_heads},
               {"bias", data.bias.empty() ? 0 : 1},
               {"mask_gradient", s.mask_gradient ? 1 : 0},
               {"alibi", data.alibi_slopes.empty() ? 0 : 1},
               {"has_kv_len", data.kv_len.empty() ? 0 : 1},
               {"has_block_mask", data.block_mask.empty() ? 0 : 1}};
  p.parameters = {{"scale", s.scale}, {"block_density", 1}};
  for (const ScoreParameter& parameter : score_parameters) {
    p.parameters[parameter.name] = s.score.*parameter.value;
  }
  p.values = {{"q", data.q},
              {"k", data.k},
              {"v", data.v},
              {"mask", data.bias},
              {"alibi_slopes", data.alibi_slopes},
              {"dout", data.dout}};
  p.integers = {{"kv_len", data.kv_len}, {"block_mask", data.block_mask}};
  std::erase_if(p.values, [](const auto& entry) { return entry.second.empty(); });
  std::erase_if(p.integers, [](const auto& entry) { return entry.second.empty(); });
  Description::complete(p);
  return p;
}

/// Arguments of a problem that no kernel runs on.
inline ForwardArgs shape_args(const ProblemData& data) {
  const testing::Problem problem = named(data);
  return bench::arguments<forward_schema, ForwardArgs>(
      bench::shapes_of(bench::data_of<Description>().forward, problem));
}
inline BackwardArgs backward_shape_args(const ProblemData& data) {
  const testing::Problem problem = named(data, true);
  return bench::arguments<backward_schema, BackwardArgs>(
      bench::shapes_of(bench::data_of<Description>().backward, problem));
}

/// Results of passes on the host.
struct Outputs {
  std::vector<float> out{}, lse{}, dq{}, dk{}, dv{}, dmask{};
  bool operator==(const Outputs&) const = default;
};

/// The inputs of a problem in the memory of a backend.
class DeviceProblem {
 public:
  DeviceProblem(const ProblemData& data, Backend backend,
                bench::HeadLayout layout = bench::HeadLayout::bhsd)
      : problem_(std::make_unique<testing::Problem>(named(data, false, layout))),
        inputs_("attention", bench::data_of<Description>().forward, *problem_, backend, {}) {}

  /// Arguments that read these inputs; out and lse are left empty.
  [[nodiscard]] ForwardArgs args() const {
    bench::Tensors refs(*problem_);
    inputs_.add_to(refs);
    return bench::arguments<forward_schema, ForwardArgs>(refs);
  }

 private:
  std::unique_ptr<testing::Problem> problem_;
  bench::DeviceInputs inputs_;
};

/// out and lse of one variant in the memory of a backend, NaN at first.
struct DeviceOutput {
  bench::Tensor<4> out;
  bench::Tensor<3> lse;

  DeviceOutput(const ProblemData& data, Backend backend,
               bench::HeadLayout layout = bench::HeadLayout::bhsd)
      : out("katt::attention::out", backend, data.dtype,
            {data.shape.batch, data.shape.heads, data.shape.seq_q, data.shape.head_dim}, layout),
        lse("katt::attention::lse", backend, Dtype::f32,
            {data.shape.batch, data.shape.heads, data.shape.seq_q}) {
    poison();
  }
  void poison() const {
    out.poison();
    lse.poison();
  }
  [[nodiscard]] Outputs download() const { return {out.download(), lse.download()}; }
};

/// dq, dk and dv of one variant in the memory of a backend, NaN at first.
struct DeviceGradients {
  bench::Tensor<4> dq, dk, dv;

  DeviceGradients(const ForwardArgs& inputs, Backend backend, bench::HeadLayout layout)
      : dq("katt::attention::dq", backend, inputs.q.dtype, inputs.q.extent, layout),
        dk("katt::attention::dk", backend, inputs.q.dtype, inputs.k.extent, layout),
        dv("katt::attention::dv", backend, inputs.q.dtype, inputs.v.extent, layout) {
    for (const bench::Tensor<4>* gradient : {&dq, &dk, &dv}) gradient->poison();
  }
  /// Adds the gradients to the results of the forward pass.
  [[nodiscard]] Outputs download(Outputs forward) const {
    forward.dq = dq.download();
    forward.dk = dk.download();
    forward.dv = dv.download();
    return forward;
  }
};

/// Arguments of the forward pass that write `outputs`.
inline ForwardArgs forward_args(ForwardArgs inputs, const DeviceOutput& outputs) {
  inputs.out = outputs.out.ref();
  inputs.lse = outputs.lse.ref();
  return inputs;
}

/// Arguments of the backward pass that read these inputs and results of the forward pass.
inline BackwardArgs backward_args(const ForwardArgs& inputs, const DeviceOutput& forward,
                                  const bench::Tensor<4>& dout, const DeviceGradients& gradients) {
  return {.q = inputs.q,
          .k = inputs.k,
          .v = inputs.v,
          .out = forward.out.ref(),
          .dout = dout.ref(),
          .lse = forward.lse.ref(),
          .dq = gradients.dq.ref(),
          .dk = gradients.dk.ref(),
          .dv = gradients.dv.ref(),
          .scale = inputs.scale,
          .score = inputs.score,
          .mask = inputs.mask};
}

/// The variant on packed panels that this machine's fastest bf16 unit has, in this build.
inline std::set<std::string> panels_of_this_machine() {
  using tile::bf16_panels::UnitName;
  switch (tile::bf16_panels::unit()) {
    case UnitName::amx: return {"flash_amx"};
    case UnitName::dot: return {"flash_avx512_bf16"};
    default: return {};
  }
}

/// The reference's sample of the outputs of a pass.
class Reference {
 public:
  explicit Reference(const ProblemData& data, bool backward = false)
      : problem_(named(data, backward)),
        expected_(backward ? expected_gradients(data.shape, data.dtype)
                           : expected_rows(data.shape, data.dtype)) {}
  [[nodiscard]] bench::Errors compare(const Outputs& made) const {
    return bench::compare(bench::data_of<Description>().pass(problem_.backward), problem_,
                          expected_,
                          {{"out", made.out},
                           {"lse", made.lse},
                           {"dq", made.dq},
                           {"dk", made.dk},
                           {"dv", made.dv},
                           {"dmask", made.dmask}});
  }
  [[nodiscard]] const testing::Expected& expected() const { return expected_; }

 private:
  testing::Problem problem_;
  testing::Expected expected_;
};

}  // namespace katt::attention
