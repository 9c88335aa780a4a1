#pragma once

#include <vector>

#include "op/tensors.hpp"
#include "ops/layernorm/layernorm.hpp"
#include "ops/layernorm/layernorm_ref.hpp"
#include "ops/layernorm/schema.hpp"

namespace katt::layernorm {

/// The operator as sweeps, `katt run` and the tests see it (op/description/describe.hpp).
struct Description {
  KATT_PASSES_OF(layernorm)
  static constexpr const char* summary =
      "(x − mean) / sqrt(variance + eps) · weight + bias over rows";

  static std::vector<bench::AxisSpec> axes() {
    return {bench::integer_axis("tokens", 2048, 1, "rows"),
            bench::integer_axis("hidden", 4096, 1, "elements of a row"),
            bench::real_axis("eps", 1e-5, 0, 1, "added to the variance")};
  }

  static testing::Expected expected(const bench::Problem& p) { return layernorm::expected(p); }
};

}  // namespace katt::layernorm
