#include "ops/rmsnorm/bench/case.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>

#include "testing/expected.hpp"
#include "testing/fill.hpp"

namespace katt::rmsnorm {

void ProblemData::link() {
  shape.x = x;
  shape.weight = weight;
  shape.residual = residual;
  shape.dout = dout;
  shape.dresidual_out = dresidual_out;
}

template <>
ForwardArgs shape_args<ForwardArgs>(const HostProblem& problem, const Options& options) {
  const std::array<std::int64_t, 2> shape{problem.tokens, problem.hidden};
  static std::int8_t quantised;  // these two only say that there is an out_q
  static float scale;
  ForwardArgs args;
  args.x = {nullptr, problem.dtype, shape};
  args.weight = {nullptr, problem.dtype, {problem.hidden}};
  if (options.residual) {
    args.residual = args.x;
    args.residual_out = {nullptr, problem.dtype, shape};
  }
  if (options.quantise) {
    args.out_q = &quantised;
    args.out_q_scale = &scale;
  } else {
    args.out = {nullptr, problem.dtype, shape};
  }
  args.eps = static_cast<float>(problem.eps);
  return args;
}

template <>
BackwardArgs shape_args<BackwardArgs>(const HostProblem& problem, const Options& options) {
  const std::array<std::int64_t, 2> shape{problem.tokens, problem.hidden};
  BackwardArgs args;
  args.x = args.dout = {nullptr, problem.dtype, shape};
  args.dx = {nullptr, problem.dtype, shape};
  args.weight = {nullptr, problem.dtype, {problem.hidden}};
  args.dweight = {nullptr, problem.dtype, {problem.hidden}};
  if (options.residual) args.dresidual_out = args.x;
  args.eps = static_cast<float>(problem.eps);
  return args;
}

DeviceProblem::DeviceProblem(const ProblemData& data, Backend backend)
    : shape_(data.shape), options_(data.options) {
  const std::array<std::int64_t, 2> shape{shape_.tokens, shape_.hidden};
  const auto matrix = [&](const char* label, const std::vector<float>& values) {
    bench::Tensor<2> tensor(label, backend, shape_.dtype, shape);
    tensor.upload(values);
    return tensor;
  };
  weight_ = {"katt::rmsnorm::weight", backend, shape_.dtype, {shape_.hidden}};
  weight_.upload(data.weight);
  if (options_.backward && !data.residual.empty()) {  // the backward pass reads h
    std::vector<float> sum(data.x.size());
    for (std::size_t i = 0; i < sum.size(); ++i) {
      sum[i] = round_to(shape_.dtype, data.x[i] + data.residual[i]);
    }
    x_ = matrix("katt::rmsnorm::x", sum);
  } else {
    x_ = matrix("katt::rmsnorm::x", data.x);
  }
  if (options_.backward) dout_ = matrix("katt::rmsnorm::dout", data.dout);
  if (options_.residual) {
    residual_ = options_.backward ? matrix("katt::rmsnorm::dresidual_out", data.dresidual_out)
                                  : matrix("katt::rmsnorm::residual", data.residual);
  }
}

template <>
ForwardArgs DeviceProblem::args<ForwardArgs>() const {
  ForwardArgs args = shape_args<ForwardArgs>(shape_, options_);
  args.x = x_.ref();
  args.weight = weight_.ref();
  args.residual = residual_.ref();
  return args;
}

template <>
BackwardArgs DeviceProblem::args<BackwardArgs>() const {
  BackwardArgs args = shape_args<BackwardArgs>(shape_, options_);
  args.x = x_.ref();
  args.weight = weight_.ref();
  args.dout = dout_.ref();
  args.dresidual_out = residual_.ref();
  return args;
}

DeviceOutput::DeviceOutput(const HostProblem& shape, const Options& options, Backend backend) {
  const std::array<std::int64_t, 2> extents{shape.tokens, shape.hidden};
  if (options.backward) {
    out = {"katt::rmsnorm::dx", backend, shape.dtype, extents};
    dweight = {"katt::rmsnorm::dweight", backend, shape.dtype, {shape.hidden}};
    return;
  }
  if (options.residual) {
    residual_out = {"katt::rmsnorm::residual_out", backend, shape.dtype, extents};
  }
  if (options.quantise) {
    out_q = {"katt::rmsnorm::out_q", backend,
             static_cast<std::size_t>(shape.tokens * shape.hidden)};
    scale = {"katt::rmsnorm::out_q_scale", backend, Dtype::f32, {shape.tokens}};
  } else {
    out = {"katt::rmsnorm::out", backend, shape.dtype, extents};
  }
}

template <>
void DeviceOutput::link<ForwardArgs>(ForwardArgs& args) const {
  args.out = out.ref();
  args.residual_out = residual_out.ref();
  args.out_q = reinterpret_cast<std::int8_t*>(out_q.data());
  args.out_q_scale = static_cast<float*>(scale.ref().data);
}

template <>
void DeviceOutput::link<BackwardArgs>(BackwardArgs& args) const {
  args.dx = out.ref();
  args.dweight = dweight.ref();
}

void DeviceOutput::poison() const {
  const auto poison_one = [](const auto& tensor) {
    if (tensor.bytes() > 0) tensor.poison();
  };
  poison_one(out);
  poison_one(residual_out);
  poison_one(dweight);
  poison_one(scale);
  const std::vector<std::byte> ones(out_q.size(), std::byte{0x81});
  if (!ones.empty()) out_q.upload(ones);
}

namespace {

/// Everything of a short axis; of a long one its ends and a hashed choice.
std::vector<std::int64_t> sample(std::int64_t count, std::int64_t wanted, std::uint64_t seed) {
  std::set<std::int64_t> chosen;
  if (count <= wanted) {
    for (std::int64_t i = 0; i < count; ++i) chosen.insert(i);
  } else {
    chosen.insert(0);
    chosen.insert(count - 1);
    for (std::uint64_t i = 0; static_cast<std::int64_t>(chosen.size()) < wanted; ++i) {
      chosen.insert(
          static_cast<std::int64_t>(testing::hash(seed, i) % static_cast<std::uint64_t>(count)));
    }
  }
  return {chosen.begin(), chosen.end()};
}

void add_all(testing::ErrorRule& rule, const std::vector<double>& exact,
             const std::vector<double>& unfused) {
  for (std::size_t i = 0; i < exact.size(); ++i) rule.add(exact[i], unfused[i]);
}

}  // namespace

Reference::Reference(const ProblemData& data)
    : shape_(data.shape),
      options_(data.options),
      rows_(sample(
          shape_.tokens,
          std::clamp<std::int64_t>((1 << 22) / std::max<std::int64_t>(1, shape_.hidden), 4, 1024),
          7)),
      columns_(options_.backward ? sample(shape_.hidden, 64, 8) : std::vector<std::int64_t>()) {
  testing::ErrorRule rule(shape_.dtype);
  if (!options_.backward) {
    for (const std::int64_t row : rows_) {
      forward_.push_back(reference_forward(shape_, row));
      add_all(rule, forward_.back().out, unfused_forward(shape_, row).out);
    }
    limit_ = rule.limit();
    return;
  }
  gradients_ = reference_backward(shape_, rows_, columns_);
  const Gradients unfused = unfused_backward(shape_, rows_, columns_);
  for (std::size_t r = 0; r < rows_.size(); ++r) add_all(rule, gradients_.dx[r], unfused.dx[r]);
  // dx may be a small difference of terms that f32 rounds.
  limit_ = rule.limit() + 2 * 0x1p-23 * gradients_.largest_term;
  testing::ErrorRule dweight(shape_.dtype);
  add_all(dweight, gradients_.dweight, unfused.dweight);
  dweight_limit_ = dweight.limit();
}

bench::Errors Reference::compare(const DeviceOutput& output) const {
  return options_.backward ? compare_backward(output) : compare_forward(output);
}

bench::Errors Reference::compare_forward(const DeviceOutput& output) const {
  testing::Comparison comparison;
  testing::Comparison sums;
  const auto hidden = static_cast<std::size_t>(shape_.hidden);
  const auto at = [&](std::size_t r, std::size_t j) {
    return static_cast<std::size_t>(rows_[r]) * hidden + j;
  };
  if (options_.quantise) {
    std::vector<std::int8_t> quantised(output.out_q.size());
    output.out_q.download(std::as_writable_bytes(std::span(quantised)));
    const std::vector<float> scale = output.scale.download();
    for (std::size_t r = 0; r < rows_.size(); ++r) {
      const auto s = static_cast<double>(scale[static_cast<std::size_t>(rows_[r])]);
      double largest = 1e-5;
      for (const double y : forward_[r].out) largest = std::max(largest, std::abs(y));
      sums.add("127 / out_q_scale", {rows_[r]}, 127.0 / s, largest, limit_ + 0x1p-22 * largest);
      for (std::size_t j = 0; j < hidden; ++j) {
        comparison.add("out_q / scale", {rows_[r], static_cast<std::int64_t>(j)},
                       static_cast<double>(quantised[at(r, j)]) / s, forward_[r].out[j],
                       limit_ + 0.5000001 / s);
      }
    }
  } else {
    const std::vector<float> out = output.out.download();
    for (std::size_t r = 0; r < rows_.size(); ++r) {
      for (std::size_t j = 0; j < hidden; ++j) {
        comparison.add("out", {rows_[r], static_cast<std::int64_t>(j)}, out[at(r, j)],
                       forward_[r].out[j], limit_);
      }
    }
  }
  if (options_.residual) {
    const std::vector<float> sum = output.residual_out.download();
    for (std::size_t r = 0; r < rows_.size(); ++r) {
      for (std::size_t j = 0; j < hidden; ++j) {
        sums.add("residual_out", {rows_[r], static_cast<std::int64_t>(j)}, sum[at(r, j)],
                 forward_[r].sum[j], 0.0);
      }
    }
  }
  bench::Errors errors = comparison.result();
  if (errors.status.is_ok()) errors.status = sums.result().status;
  return errors;
}

bench::Errors Reference::compare_backward(const DeviceOutput& output) const {
  testing::Comparison comparison;
  testing::Comparison weights;
  const std::vector<float> dx = output.out.download();
  const std::vector<float> dweight = output.dweight.download();
  const auto hidden = static_cast<std::size_t>(shape_.hidden);
  for (std::size_t r = 0; r < rows_.size(); ++r) {
    for (std::size_t j = 0; j < hidden; ++j) {
      comparison.add("dx", {rows_[r], static_cast<std::int64_t>(j)},
                     dx[static_cast<std::size_t>(rows_[r]) * hidden + j], gradients_.dx[r][j],
                     limit_);
    }
  }
  for (std::size_t c = 0; c < columns_.size(); ++c) {
    weights.add("dweight", {columns_[c]}, dweight[static_cast<std::size_t>(columns_[c])],
                gradients_.dweight[c], dweight_limit_);
  }
  bench::Errors errors = comparison.result();
  if (errors.status.is_ok()) errors.status = weights.result().status;
  return errors;
}

}  // namespace katt::rmsnorm
