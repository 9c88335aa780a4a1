#pragma once

#include <cstdint>
#include <vector>

#include "op/reference/expected.hpp"
#include "op/reference/sample.hpp"
#include "op/tensors.hpp"
#include "ops/softmax/schema.hpp"
#include "ops/softmax/softmax.hpp"
#include "ops/softmax/softmax_ref.hpp"

namespace katt::softmax {

/// The operator as sweeps, `katt run` and the tests see it (op/description/describe.hpp).
struct Description {
  KATT_PASSES_OF(softmax)
  static constexpr const char* summary = "softmax of the rows of a matrix";

  static std::vector<bench::AxisSpec> axes() {
    return {bench::integer_axis("tokens", 1024, 1, "rows"),
            bench::integer_axis("vocab", 32000, 1, "columns")};
  }
  static testing::Expected expected(const bench::Problem& p) {
    const std::int64_t columns = p.extent("vocab");
    testing::ExpectedPart part{p.backward ? "dx" : "out"};
    for (const std::int64_t row :
         testing::sample(p.extent("tokens"), 2e6 / static_cast<double>(columns))) {
      const auto x = p.row("x", columns, row);
      if (p.backward) {
        const auto dout = p.row("dout", columns, row);
        part.add(row * columns, reference_gradient(x, dout), unfused_gradient(x, dout, p.dtype));
      } else {
        part.add(row * columns, reference_row(x), unfused_row(x, p.dtype));
      }
    }
    return {part};
  }
};

}  // namespace katt::softmax
