#pragma once

#include <vector>

#include "op/tensors.hpp"
#include "ops/layernorm/layernorm.hpp"
#include "ops/layernorm/layernorm_ref.hpp"

namespace katt::layernorm {

using bench::TensorSpec;
using bench::TensorSpecs;

/// The operator as sweeps, `katt run` and the tests see it (op/tensor_operator.hpp).
struct Description {
  KATT_PASSES_OF(layernorm)
  static constexpr const char* summary =
      "(x − mean) / sqrt(variance + eps) · weight + bias over rows";

  static std::vector<bench::AxisSpec> axes() {
    return {bench::integer_axis("tokens", 2048, 1, "rows"),
            bench::integer_axis("hidden", 4096, 1, "elements of a row"),
            bench::real_axis("eps", 1e-5, 0, 1, "added to the variance")};
  }

  static TensorSpec matrix(const char* name) {
    return {.name = name, .axes = {"tokens", "hidden"}, .letters = "(T, H)"};
  }
  static TensorSpec row(const char* name) {
    return {.name = name, .axes = {"hidden"}, .letters = "(H)"};
  }
  static TensorSpecs inputs() { return {matrix("x"), row("weight"), row("bias")}; }
  static TensorSpecs outputs() { return {matrix("out")}; }
  static TensorSpecs gradients() { return {matrix("dx"), row("dweight"), row("dbias")}; }

  static ForwardArgs forward_args(const bench::Tensors& t) {
    return {.x = t.matrix("x"),
            .weight = t.vector("weight"),
            .bias = t.vector("bias"),
            .out = t.matrix("out"),
            .eps = t.parameter("eps")};
  }
  static BackwardArgs backward_args(const bench::Tensors& t) {
    return {.x = t.matrix("x"),
            .weight = t.vector("weight"),
            .dout = t.matrix("dout"),
            .dx = t.matrix("dx"),
            .dweight = t.vector("dweight"),
            .dbias = t.vector("dbias"),
            .eps = t.parameter("eps")};
  }
  static testing::Expected expected(const bench::Problem& p) { return layernorm::expected(p); }
};

}  // namespace katt::layernorm
