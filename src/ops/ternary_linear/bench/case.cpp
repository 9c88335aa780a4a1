#include "ops/ternary_linear/bench/case.hpp"

#include <algorithm>
#include <cmath>

#include "op/reference/expected.hpp"
#include "op/reference/sample.hpp"

namespace katt::ternary_linear {

namespace {

PackFormat format_of(const std::string& variant) {
  return variant == "packed5" ? PackFormat::five_per_byte : PackFormat::two_bit;
}

/// One element of an output by its row-major index: exact, and as the unfused form gives it.
struct Value {
  double exact, unfused;
};

/// Compares a sample of a (rows, columns) output, each of whose elements costs `terms` products,
/// by testing::ErrorRule.
template <class F>
bench::Errors compare(const char* name, std::span<const float> got, std::int64_t columns,
                      std::int64_t terms, Dtype dtype, const F& value_at) {
  const auto sample = testing::sample(static_cast<std::int64_t>(got.size()),
                                      4e6 / static_cast<double>(std::max<std::int64_t>(1, terms)));
  std::vector<Value> values;
  testing::ErrorRule rule(dtype);
  for (const std::int64_t index : sample) {
    values.push_back(value_at(index / columns, index % columns));
    rule.add(values.back().exact, values.back().unfused);
  }
  testing::Comparison comparison;
  for (std::size_t i = 0; i < sample.size(); ++i) {
    comparison.add(name, {sample[i] / columns, sample[i] % columns},
                   got[static_cast<std::size_t>(sample[i])], values[i].exact, rule.limit());
  }
  return comparison.result();
}

}  // namespace

void ProblemData::link() {
  shape.x = x;
  shape.weight = weight;
  shape.dout = dout;
}

ForwardArgs forward_shape(const HostProblem& problem, Dtype dtype) {
  ForwardArgs args;
  args.x = {nullptr, dtype, {problem.tokens, problem.in_features}};
  args.dense = {nullptr, dtype, {problem.out_features, problem.in_features}};
  args.out = {nullptr, dtype, {problem.tokens, problem.out_features}};
  return args;
}

BackwardArgs backward_shape(const HostProblem& problem, Dtype dtype) {
  const ForwardArgs forward = forward_shape(problem, dtype);
  BackwardArgs args;
  args.x = forward.x;
  args.dense = forward.dense;
  args.dout = forward.out;
  args.dx = {nullptr, dtype, forward.x.extent};
  args.dweight = {nullptr, dtype, forward.dense.extent};
  return args;
}

std::size_t weight_bytes(const HostProblem& problem, Dtype dtype, const std::string& variant) {
  if (variant == "naive") {
    return static_cast<std::size_t>(problem.out_features * problem.in_features) * size_of(dtype);
  }
  return packed_bytes(format_of(variant), problem.out_features, problem.in_features);
}

PreparedWeight::PreparedWeight(const ProblemData& data, Backend backend, int threads)
    : shape_(data.shape), dtype_(data.dtype) {
  const std::int64_t out = shape_.out_features;
  const std::int64_t in = shape_.in_features;
  const bench::Tensor<2> weight("katt::ternary_linear::weight", backend, dtype_, {out, in});
  weight.upload(data.weight);
  visit_backend(backend, threads, [&]<class Exec>(const Exec& exec) {
    const bench::Buffer workspace("katt::ternary_linear::workspace", backend,
                                  pack_workspace_bytes(out));
    for (const PackFormat format : {PackFormat::two_bit, PackFormat::five_per_byte}) {
      const bench::Buffer bytes("katt::ternary_linear::packed", backend,
                                packed_bytes(format, out, in));
      const PackedTernary packed{bytes.data(), format, out, in};
      pack(exec, weight.ref(), packed, workspace.workspace());
      if (format == PackFormat::two_bit) dequantise(exec, packed, 0, weight.ref());
      exec.fence("katt::ternary_linear::prepare");
      auto& host = format == PackFormat::two_bit ? two_bit_ : five_per_byte_;
      host.resize(bytes.size());
      bytes.download(host);
      if (format == PackFormat::two_bit) {
        dense_ = weight.download();
        weight.upload(data.weight);
      }
    }
  });
}

PreparedWeight::OnDevice PreparedWeight::upload(const std::string& variant, Backend backend) const {
  OnDevice weight;
  const std::int64_t out = shape_.out_features;
  const std::int64_t in = shape_.in_features;
  if (variant == "naive") {
    weight.dense = {"katt::ternary_linear::dense", backend, dtype_, {out, in}};
    weight.dense.upload(dense_);
    return weight;
  }
  const auto& bytes = format_of(variant) == PackFormat::two_bit ? two_bit_ : five_per_byte_;
  weight.bytes = {"katt::ternary_linear::packed", backend, bytes.size()};
  weight.bytes.upload(bytes);
  weight.packed = {weight.bytes.data(), format_of(variant), out, in};
  return weight;
}

Checks::Checks(const ProblemData& data)
    : shape_(data.shape), dtype_(data.dtype), reference_(data.shape) {}

bench::Errors Checks::forward(std::span<const float> out) const {
  return compare(
      "out", out, shape_.out_features, shape_.in_features, dtype_,
      [&](std::int64_t row, std::int64_t column) {
        return Value{reference_.out(row, column), reference_.unfused_out(row, column, dtype_)};
      });
}

bench::Errors Checks::backward(std::span<const float> dx, std::span<const float> dweight) const {
  bench::Errors errors = compare(
      "dx", dx, shape_.in_features, shape_.out_features, dtype_,
      [&](std::int64_t row, std::int64_t column) {
        return Value{reference_.dx(row, column), reference_.unfused_dx(row, column, dtype_)};
      });
  const bench::Errors weights =
      compare("dweight", dweight, shape_.in_features, shape_.tokens, dtype_,
              [&](std::int64_t row, std::int64_t column) {
                return Value{reference_.dweight(row, column),
                             reference_.unfused_dweight(row, column, dtype_)};
              });
  errors.max_abs = std::max(errors.max_abs, weights.max_abs);
  errors.mean_abs = std::max(errors.mean_abs, weights.mean_abs);
  if (errors.status.is_ok()) errors.status = weights.status;
  return errors;
}

}  // namespace katt::ternary_linear
