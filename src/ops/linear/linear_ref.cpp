#include "ops/linear/linear_ref.hpp"

#include <cstddef>

namespace katt::linear {

namespace {

/// Σ_i a(i) · b(i) in both precisions, not yet rounded to the dtype.
template <class A, class B>
ReferenceValue dot(std::int64_t count, const A& a, const B& b) {
  double exact = 0;
  float single = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    exact += static_cast<double>(a(i)) * static_cast<double>(b(i));
    single += a(i) * b(i);
  }
  return {exact, static_cast<double>(single)};
}

/// Element (row, column) of a dense matrix.
float at(std::span<const float> matrix, std::int64_t columns, std::int64_t row,
         std::int64_t column) {
  return matrix[static_cast<std::size_t>(row * columns + column)];
}

ReferenceValue rounded(ReferenceValue value, Dtype dtype) {
  value.unfused = static_cast<double>(round_to(dtype, static_cast<float>(value.unfused)));
  return value;
}

}  // namespace

ReferenceValue reference_out(const HostProblem& p, std::int64_t token, std::int64_t out_feature,
                             Dtype dtype) {
  ReferenceValue value =
      rounded(dot(
                  p.in_features, [&](std::int64_t i) { return at(p.x, p.in_features, token, i); },
                  [&](std::int64_t i) { return at(p.weight, p.in_features, out_feature, i); }),
              dtype);
  if (p.bias.empty()) return value;
  const auto bias = static_cast<double>(p.bias[static_cast<std::size_t>(out_feature)]);
  return rounded({value.exact + bias, value.unfused + bias}, dtype);
}

ReferenceValue reference_dx(const HostProblem& p, std::int64_t token, std::int64_t in_feature,
                            Dtype dtype) {
  return rounded(
      dot(
          p.out_features, [&](std::int64_t o) { return at(p.dout, p.out_features, token, o); },
          [&](std::int64_t o) { return at(p.weight, p.in_features, o, in_feature); }),
      dtype);
}

ReferenceValue reference_dweight(const HostProblem& p, std::int64_t out_feature,
                                 std::int64_t in_feature, Dtype dtype) {
  return rounded(
      dot(
          p.tokens, [&](std::int64_t t) { return at(p.dout, p.out_features, t, out_feature); },
          [&](std::int64_t t) { return at(p.x, p.in_features, t, in_feature); }),
      dtype);
}

ReferenceValue reference_dbias(const HostProblem& p, std::int64_t out_feature, Dtype dtype) {
  return rounded(
      dot(
          p.tokens, [&](std::int64_t t) { return at(p.dout, p.out_features, t, out_feature); },
          [](std::int64_t) { return 1.0F; }),
      dtype);
}

}  // namespace katt::linear
