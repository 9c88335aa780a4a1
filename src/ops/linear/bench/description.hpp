#pragma once

#include <cstdint>
#include <vector>

#include "op/reference/expected.hpp"
#include "op/reference/sample.hpp"
#include "op/tensors.hpp"
#include "ops/linear/linear.hpp"
#include "ops/linear/linear_ref.hpp"
#include "ops/linear/schema.hpp"

namespace katt::linear {

/// The operator as sweeps, `katt run` and the tests see it (op/description/describe.hpp).
struct Description {
  KATT_PASSES_OF(linear)
  static constexpr const char* summary = "x · weightᵀ + bias";
  static constexpr bool is_product = true;

  static std::vector<bench::AxisSpec> axes() {
    return {bench::integer_axis("tokens", 1024, 1, "rows of x"),
            bench::integer_axis("in_features", 1024, 1, "columns of x"),
            bench::integer_axis("out_features", 1024, 1, "columns of out"),
            bench::flag_axis("bias", "1: with a bias", true)};
  }

  static testing::Expected expected(const bench::Problem& problem) {
    const HostProblem p{.tokens = problem.extent("tokens"),
                        .in_features = problem.extent("in_features"),
                        .out_features = problem.extent("out_features"),
                        .x = problem.floats("x"),
                        .weight = problem.floats("weight"),
                        .bias = problem.floats("bias"),
                        .dout = problem.floats("dout")};
    const Dtype dtype = problem.dtype;
    testing::Expected result;
    // Elements of a rows × columns output, each a sum over `terms`.
    const auto add = [&](const char* output, std::int64_t rows, std::int64_t columns,
                         std::int64_t terms, const auto& reference) {
      testing::ExpectedPart& part = result.emplace_back(testing::ExpectedPart{output});
      for (const std::int64_t index :
           testing::sample(rows * columns, 1e7 / static_cast<double>(terms + 1))) {
        const ReferenceValue value = reference(index / columns, index % columns);
        part.values.push_back({index, value.exact, value.unfused});
      }
    };
    if (!problem.backward) {
      add("out", p.tokens, p.out_features, p.in_features,
          [&](std::int64_t t, std::int64_t o) { return reference_out(p, t, o, dtype); });
      return result;
    }
    add("dx", p.tokens, p.in_features, p.out_features,
        [&](std::int64_t t, std::int64_t i) { return reference_dx(p, t, i, dtype); });
    add("dweight", p.out_features, p.in_features, p.tokens,
        [&](std::int64_t o, std::int64_t i) { return reference_dweight(p, o, i, dtype); });
    if (p.bias.empty()) return result;
    add("dbias", 1, p.out_features, p.tokens,
        [&](std::int64_t, std::int64_t o) { return reference_dbias(p, o, dtype); });
    return result;
  }
};

}  // namespace katt::linear
