#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "io/hdf5/case_file.hpp"
#include "op/reference/expected.hpp"
#include "op/reference/sample.hpp"
#include "op/tensors.hpp"
#include "ops/rmsnorm/rmsnorm.hpp"
#include "ops/rmsnorm/rmsnorm_ref.hpp"
#include "ops/rmsnorm/schema.hpp"

namespace katt::rmsnorm {

/// The operator as sweeps, `katt run` and the tests see it (op/description/describe.hpp).
struct Description {
  KATT_PASSES_OF(rmsnorm)
  static constexpr const char* summary = "x / sqrt(mean(x²) + eps) · weight over rows";

  static std::vector<bench::AxisSpec> axes() {
    return {bench::integer_axis("tokens", 2048, 1, "rows"),
            bench::integer_axis("hidden", 4096, 1, "elements of a row"),
            bench::flag_axis("residual",
                             "1: a residual is added first; backward: its gradient is added to dx"),
            bench::flag_axis("quantise",
                             "1: int8 output with a scale per row instead of out (forward)")};
  }
  static Status supports(const bench::Problem& p) {
    if (!p.backward || p.extent("quantise") == 0) return Status::ok();
    return Status::skipped("quantise: the backward pass quantises nothing");
  }
  static bool is_foreign(const bench::Problem& p) { return p.extent("quantise") == 0; }

  static testing::Expected expected(const bench::Problem& problem) {
    const std::int64_t hidden = problem.extent("hidden");
    const auto rows = testing::sample(problem.extent("tokens"), 4e6 / static_cast<double>(hidden));
    if (!problem.backward) {
      testing::ExpectedPart out{"out"};
      testing::ExpectedPart sum{.output = "residual_out", .is_exact = true, .unreported = true};
      for (const std::int64_t row : rows) {
        const ForwardRow exact = reference_forward(problem, row);
        out.add(row * hidden, exact.out, unfused_forward(problem, row).out);
        sum.add(row * hidden, exact.sum, exact.sum);
      }
      return {out, sum};
    }
    const auto columns = testing::sample(hidden, 64);
    const Gradients exact = reference_backward(problem, rows, columns);
    const Gradients unfused = unfused_backward(problem, rows, columns);
    // dx may be a small difference of terms that f32 rounds.
    testing::ExpectedPart dx{.output = "dx", .slack = 2 * 0x1p-23 * exact.largest_term};
    for (std::size_t r = 0; r < rows.size(); ++r) {
      dx.add(rows[r] * hidden, exact.dx[r], unfused.dx[r]);
    }
    testing::ExpectedPart dweight{.output = "dweight", .unreported = true};
    for (std::size_t c = 0; c < columns.size(); ++c) {
      dweight.values.push_back({columns[c], exact.dweight[c], unfused.dweight[c]});
    }
    return {dx, dweight};
  }

  /// Quantised values may be half a step from out, besides.
  static void compare(const bench::Problem& p, const testing::Expected& expected,
                      const bench::HostValues& made, testing::Comparison& reported,
                      testing::Comparison& unreported) {
    const auto quantised = made.find("out_q");
    if (quantised == made.end()) return;
    const std::vector<float>& scales = made.find("out_q_scale")->second;
    const double limit = expected.front().limit(p.dtype);
    const std::int64_t hidden = p.extent("hidden");
    std::map<std::int64_t, double> largest;  // |out| of every row
    for (const testing::ExpectedValue& value : expected.front().values) {
      const std::int64_t row = value.index / hidden;
      const auto scale = static_cast<double>(scales[static_cast<std::size_t>(row)]);
      double& most = largest.emplace(row, 1e-5).first->second;
      most = std::max(most, std::abs(value.exact));
      reported.add("out_q / scale", {row, value.index % hidden},
                   quantised->second[static_cast<std::size_t>(value.index)] / scale, value.exact,
                   limit + 0.5000001 / scale);
    }
    for (const auto& [row, most] : largest) {
      unreported.add("127 / out_q_scale", {row}, 127.0 / scales[static_cast<std::size_t>(row)],
                     most, limit + 0x1p-22 * most);
    }
  }

  static void read(const io::CaseFile& file, const bench::Problem& p) {
    if (p.extent("hidden") == 0) {
      file.reject("x", "holds rows of no elements, expected (T, H) with H > 0");
    }
  }
};

}  // namespace katt::rmsnorm
