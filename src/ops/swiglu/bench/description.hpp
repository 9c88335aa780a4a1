#pragma once

#include <cstdint>
#include <vector>

#include "op/reference/expected.hpp"
#include "op/reference/sample.hpp"
#include "op/tensors.hpp"
#include "ops/swiglu/schema.hpp"
#include "ops/swiglu/swiglu.hpp"
#include "ops/swiglu/swiglu_ref.hpp"

namespace katt::swiglu {

/// The operator as sweeps, `katt run` and the tests see it (op/description/describe.hpp).
struct Description {
  KATT_PASSES_OF(swiglu)
  static constexpr const char* summary = "silu(gate) · up";

  static std::vector<bench::AxisSpec> axes() {
    return {bench::integer_axis("tokens", 1024, 1, "rows"),
            bench::integer_axis("intermediate", 4096, 1, "columns")};
  }

  static testing::Expected expected(const bench::Problem& p) {
    const std::int64_t columns = p.extent("intermediate");
    testing::ExpectedPart out{"out"};
    testing::ExpectedPart dgate{"dgate"};
    testing::ExpectedPart dup{"dup"};
    for (const std::int64_t row :
         testing::sample(p.extent("tokens"), 1e6 / static_cast<double>(columns))) {
      for (std::int64_t i = row * columns; i < (row + 1) * columns; ++i) {
        const auto at = static_cast<std::size_t>(i);
        const float gate = p.floats("gate")[at];
        const float up = p.floats("up")[at];
        const float dout = p.backward ? p.floats("dout")[at] : 0.0F;
        const ReferenceElement exact = reference_element(gate, up, dout);
        const ReferenceElement unfused = unfused_element(gate, up, dout, p.dtype);
        out.values.push_back({i, exact.out, unfused.out});
        dgate.values.push_back({i, exact.dgate, unfused.dgate});
        dup.values.push_back({i, exact.dup, unfused.dup});
      }
    }
    return p.backward ? testing::Expected{dgate, dup} : testing::Expected{out};
  }
};

}  // namespace katt::swiglu
