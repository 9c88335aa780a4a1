#include <memory>
#include <string>
#include <vector>

#include "bench/ceilings.hpp"
#include "bench/matrix_operator.hpp"
#include "ops/swiglu_mlp/swiglu_mlp.hpp"
#include "ops/swiglu_mlp/swiglu_mlp_ref.hpp"
#include "testing/sample.hpp"

namespace katt::swiglu_mlp {

namespace {

using bench::MatrixSpec;

struct Description {
  static constexpr const char* name = "swiglu_mlp";
  static constexpr const char* summary = "(silu(x · w_gateᵀ) · (x · w_upᵀ)) · w_downᵀ";

  static std::vector<bench::AxisSpec> axes() {
    return {bench::integer_axis("tokens", 1024, 1, "rows of x"),
            bench::integer_axis("hidden", 1024, 1, "columns of x and out"),
            bench::integer_axis("intermediate", 2816, 1, "columns of gate and up")};
  }

  static MatrixSpec tokens(const char* name) {
    return {.name = name, .axes = {"tokens", "hidden"}, .letters = "(T, H)"};
  }
  /// Weights are as small as those of a trained model, so that gate and up are of order one.
  static MatrixSpec in_weight(const char* name) {
    return {
        .name = name, .axes = {"intermediate", "hidden"}, .letters = "(F, H)", .scale = 0.03125F};
  }
  static MatrixSpec out_weight(const char* name) {
    return {
        .name = name, .axes = {"hidden", "intermediate"}, .letters = "(H, F)", .scale = 0.03125F};
  }
  static std::vector<MatrixSpec> inputs() {
    return {tokens("x"), in_weight("w_gate"), in_weight("w_up"), out_weight("w_down")};
  }
  static std::vector<MatrixSpec> outputs() { return {tokens("out")}; }
  static std::vector<MatrixSpec> gradients() {
    return {tokens("dx"), in_weight("dw_gate"), in_weight("dw_up"), out_weight("dw_down")};
  }

  static ForwardArgs forward_args(const bench::MatrixRefs& refs) {
    return {.x = refs.matrix("x"),
            .w_gate = refs.matrix("w_gate"),
            .w_up = refs.matrix("w_up"),
            .w_down = refs.matrix("w_down"),
            .out = refs.matrix("out")};
  }
  static BackwardArgs backward_args(const bench::MatrixRefs& refs) {
    return {.x = refs.matrix("x"),
            .w_gate = refs.matrix("w_gate"),
            .w_up = refs.matrix("w_up"),
            .w_down = refs.matrix("w_down"),
            .dout = refs.matrix("dout"),
            .dx = refs.matrix("dx"),
            .dw_gate = refs.matrix("dw_gate"),
            .dw_up = refs.matrix("dw_up"),
            .dw_down = refs.matrix("dw_down")};
  }
  template <class Exec>
  static auto& forward_variants() {
    return swiglu_mlp::forward_variants<Exec>();
  }
  template <class Exec>
  static auto& backward_variants() {
    return swiglu_mlp::backward_variants<Exec>();
  }

  static bench::Work work(const ForwardArgs& args, Backend backend) {
    return {forward_flops(args), forward_bytes(args), bench::matrix_ceiling(backend, args.x.dtype)};
  }
  static bench::Work work(const BackwardArgs& args, Backend backend) {
    return {backward_flops(args), backward_bytes(args),
            bench::matrix_ceiling(backend, args.x.dtype)};
  }

  static bench::Expected expected(const bench::HostValues& values, const bench::Extents& extents,
                                  Dtype dtype, bool backward) {
    const auto span = [&](const char* tensor) {
      const auto found = values.find(tensor);
      return found == values.end() ? std::span<const float>{}
                                   : std::span<const float>(found->second);
    };
    const HostProblem p{.tokens = extents.find("tokens")->second,
                        .hidden = extents.find("hidden")->second,
                        .intermediate = extents.find("intermediate")->second,
                        .x = span("x"),
                        .w_gate = span("w_gate"),
                        .w_up = span("w_up"),
                        .w_down = span("w_down"),
                        .dout = span("dout")};
    bench::Expected result;
    // `hidden` values of an output, `step` apart.
    const auto add = [&](const char* output, std::int64_t first, std::int64_t step,
                         const ReferenceValues& row) {
      for (std::size_t i = 0; i < row.exact.size(); ++i) {
        result[output].push_back(
            {first + static_cast<std::int64_t>(i) * step, row.exact[i], row.unfused[i]});
      }
    };
    const double budget = 3e7;  // multiplications
    const double row_cost = static_cast<double>(p.hidden) * static_cast<double>(p.intermediate);
    for (const std::int64_t t : testing::sample(p.tokens, budget / row_cost)) {
      add(backward ? "dx" : "out", t * p.hidden, 1,
          backward ? reference_dx(p, t, dtype) : reference_out(p, t, dtype));
    }
    if (!backward) return result;
    const double column_cost = static_cast<double>(p.hidden) * static_cast<double>(p.tokens);
    for (const std::int64_t f : testing::sample(p.intermediate, budget / column_cost)) {
      const ReferenceWeights weights = reference_weights(p, f, dtype);
      add("dw_gate", f * p.hidden, 1, weights.dw_gate);
      add("dw_up", f * p.hidden, 1, weights.dw_up);
      add("dw_down", f, p.intermediate, weights.dw_down);
    }
    return result;
  }
};

}  // namespace

void register_op(bench::Registry& registry) {
  registry.add(std::make_unique<bench::MatrixOperator<Description>>());
}

}  // namespace katt::swiglu_mlp
