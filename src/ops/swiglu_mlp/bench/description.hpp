#pragma once

#include <cstdint>
#include <vector>

#include "op/reference/expected.hpp"
#include "op/reference/of_each.hpp"
#include "op/reference/sample.hpp"
#include "op/tensors.hpp"
#include "ops/swiglu_mlp/schema.hpp"
#include "ops/swiglu_mlp/swiglu_mlp.hpp"
#include "ops/swiglu_mlp/swiglu_mlp_ref.hpp"

namespace katt::swiglu_mlp {

/// The operator as sweeps, `katt run` and the tests see it (op/description/describe.hpp).
struct Description {
  KATT_PASSES_OF(swiglu_mlp)
  static constexpr const char* summary = "(silu(x · w_gateᵀ) · (x · w_upᵀ)) · w_downᵀ";
  static constexpr bool is_product = true;

  static std::vector<bench::AxisSpec> axes() {
    return {bench::integer_axis("tokens", 1024, 1, "rows of x"),
            bench::integer_axis("hidden", 1024, 1, "columns of x and out"),
            bench::integer_axis("intermediate", 2816, 1, "columns of gate and up")};
  }

  static testing::Expected expected(const bench::Problem& problem) {
    const HostProblem p{.tokens = problem.extent("tokens"),
                        .hidden = problem.extent("hidden"),
                        .intermediate = problem.extent("intermediate"),
                        .x = problem.floats("x"),
                        .w_gate = problem.floats("w_gate"),
                        .w_up = problem.floats("w_up"),
                        .w_down = problem.floats("w_down"),
                        .dout = problem.floats("dout")};
    const Dtype dtype = problem.dtype;
    const double budget = 3e7;  // multiplications
    const double row_cost = static_cast<double>(p.hidden) * static_cast<double>(p.intermediate);
    testing::ExpectedPart rows{problem.backward ? "dx" : "out"};
    const auto tokens = testing::sample(p.tokens, budget / row_cost);
    const auto of_tokens = testing::of_each(tokens, [&](std::int64_t t) {
      return problem.backward ? reference_dx(p, t, dtype) : reference_out(p, t, dtype);
    });
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      rows.add(tokens[i] * p.hidden, of_tokens[i].exact, of_tokens[i].unfused);
    }
    if (!problem.backward) return {rows};
    testing::ExpectedPart dw_gate{"dw_gate"};
    testing::ExpectedPart dw_up{"dw_up"};
    testing::ExpectedPart dw_down{"dw_down"};
    const double column_cost = static_cast<double>(p.hidden) * static_cast<double>(p.tokens);
    const auto columns = testing::sample(p.intermediate, budget / column_cost);
    const auto of_columns =
        testing::of_each(columns, [&](std::int64_t f) { return reference_weights(p, f, dtype); });
    for (std::size_t i = 0; i < columns.size(); ++i) {
      const std::int64_t f = columns[i];
      const ReferenceWeights& weights = of_columns[i];
      dw_gate.add(f * p.hidden, weights.dw_gate.exact, weights.dw_gate.unfused);
      dw_up.add(f * p.hidden, weights.dw_up.exact, weights.dw_up.unfused);
      dw_down.add(f, weights.dw_down.exact, weights.dw_down.unfused, p.intermediate);
    }
    return {rows, dw_gate, dw_up, dw_down};
  }
};

}  // namespace katt::swiglu_mlp
