#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "io/hdf5/case_file.hpp"
#include "op/reference/expected.hpp"
#include "op/reference/of_each.hpp"
#include "op/reference/sample.hpp"
#include "op/tensors.hpp"
#include "ops/rmsnorm_linear/rmsnorm_linear.hpp"
#include "ops/rmsnorm_linear/rmsnorm_linear_ref.hpp"
#include "ops/rmsnorm_linear/schema.hpp"

namespace katt::rmsnorm_linear {

/// The operator as sweeps, `katt run` and the tests see it (op/description/describe.hpp).
struct Description {
  KATT_PASSES_OF(rmsnorm_linear)
  static constexpr const char* summary = "rmsnorm(x) · weightᵀ";
  static constexpr bool is_product = true;

  static std::vector<bench::AxisSpec> axes() {
    return {bench::integer_axis("tokens", 1024, 1, "rows of x"),
            bench::integer_axis("hidden", 1024, 1, "columns of x"),
            bench::integer_axis("out_features", 1024, 1, "columns of out"),
            bench::flag_axis(
                "residual", "1: a residual is added first; backward: its gradient is added to dx")};
  }

  static testing::Expected expected(const bench::Problem& problem) {
    const std::int64_t token_count = problem.extent("tokens");
    const std::int64_t hidden = problem.extent("hidden");
    const std::int64_t out_features = problem.extent("out_features");
    const double budget = 2e7;  // multiplications
    const auto cost = [](std::int64_t a, std::int64_t b) {
      return static_cast<double>(a) * static_cast<double>(b);
    };
    const auto tokens = testing::sample(token_count, budget / cost(hidden, out_features));
    const auto rows = testing::of_each(tokens, [&](std::int64_t t) {
      return problem.backward ? reference_dx(problem, t) : reference_out(problem, t);
    });
    const std::int64_t width = problem.backward ? hidden : out_features;
    testing::ExpectedPart part{.output = problem.backward ? "dx" : "out"};
    testing::ExpectedPart sum{.output = "residual_out", .is_exact = true, .unreported = true};
    double largest_term = 0;
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      part.add(tokens[i] * width, rows[i].exact, rows[i].unfused);
      largest_term = std::max(largest_term, rows[i].largest_term);
      if (problem.backward) continue;
      const std::vector<double> h = reference_sum(problem, tokens[i]);
      sum.add(tokens[i] * hidden, h, h);
    }
    if (!problem.backward) return {part, sum};
    // dx may be a small difference of terms that f32 rounds.
    part.slack = 2 * 0x1p-23 * largest_term;
    const auto add = [](testing::ExpectedPart& to, const std::vector<std::int64_t>& places,
                        const ReferenceValues& values) {
      for (std::size_t i = 0; i < places.size(); ++i) {
        to.values.push_back({places[i], values.exact[i], values.unfused[i]});
      }
    };
    testing::ExpectedPart dnorm_weight{"dnorm_weight"};
    const auto columns = testing::sample(hidden, budget / cost(token_count, out_features));
    add(dnorm_weight, columns, reference_dnorm_weight(problem, columns));
    testing::ExpectedPart dweight{"dweight"};
    const auto places =
        testing::sample(out_features * hidden, budget / static_cast<double>(token_count));
    add(dweight, places, reference_dweight(problem, places));
    return {part, dnorm_weight, dweight};
  }

  static void read(const io::CaseFile& file, const bench::Problem& p) {
    if (p.extent("hidden") == 0) {
      file.reject("x", "holds rows of no elements, expected (T, H) with H > 0");
    }
  }
};

}  // namespace katt::rmsnorm_linear
