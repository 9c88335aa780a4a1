#include "ops/attention/bench/case.hpp"

#include <algorithm>
#include <cmath>
#include <set>
#include <string>

#include "core/error.hpp"
#include "testing/expected.hpp"
#include "testing/fill.hpp"

namespace katt::attention {

void ProblemData::link() {
  shape.q = q;
  shape.k = k;
  shape.v = v;
  shape.bias = bias;
  shape.dout = dout;
  shape.score.alibi_slopes = alibi_slopes.empty() ? nullptr : alibi_slopes.data();
  shape.kv_len = kv_len;
  shape.block_mask = block_mask;
}

ForwardArgs shape_args(const HostProblem& problem, Dtype dtype) {
  ForwardArgs args;
  const std::array<std::int64_t, 4> q{problem.batch, problem.heads, problem.seq_q,
                                      problem.head_dim};
  const std::array<std::int64_t, 4> kv{problem.batch, problem.kv_heads, problem.seq_kv,
                                       problem.head_dim};
  args.q = {nullptr, dtype, q};
  args.k = {nullptr, dtype, kv};
  args.v = {nullptr, dtype, kv};
  args.out = {nullptr, dtype, q};
  args.scale = static_cast<float>(problem.scale);
  args.score = problem.score;
  args.mask.causal = problem.causal;
  args.mask.window_left = problem.window_left;
  args.mask.window_right = problem.window_right;
  args.mask.block_size = problem.block_size;
  return args;
}

DeviceProblem::DeviceProblem(const ProblemData& data, Backend backend, bench::HeadLayout layout)
    : shape_(data.shape) {
  const ForwardArgs args = shape_args(shape_, data.dtype);
  q_ = {"katt::attention::q", backend, data.dtype, args.q.extent, layout};
  k_ = {"katt::attention::k", backend, data.dtype, args.k.extent, layout};
  v_ = {"katt::attention::v", backend, data.dtype, args.v.extent, layout};
  q_.upload(data.q);
  k_.upload(data.k);
  v_.upload(data.v);
  if (!data.bias.empty()) {
    bias_ = {"katt::attention::bias",
             backend,
             data.dtype,
             {shape_.bias_batch, shape_.bias_heads, shape_.seq_q, shape_.seq_kv}};
    bias_.upload(data.bias);
  }
  const auto copied = [&](const char* label, const auto& values) {
    const auto bytes = std::as_bytes(std::span(values));
    bench::Buffer buffer(label, backend, bytes.size());
    buffer.upload(bytes);
    return buffer;
  };
  if (!data.alibi_slopes.empty()) {
    alibi_slopes_ = copied("katt::attention::alibi_slopes", data.alibi_slopes);
  }
  if (!data.kv_len.empty()) kv_len_ = copied("katt::attention::kv_len", data.kv_len);
  if (!data.block_mask.empty()) {
    block_mask_ = copied("katt::attention::block_mask", data.block_mask);
  }
}

ForwardArgs DeviceProblem::args() const {
  ForwardArgs args = shape_args(shape_, q_.ref().dtype);
  args.q = q_.ref();
  args.k = k_.ref();
  args.v = v_.ref();
  args.mask.bias = bias_.ref();
  if (alibi_slopes_.size() > 0) {
    args.score.alibi_slopes = reinterpret_cast<const float*>(alibi_slopes_.data());
  }
  if (kv_len_.size() > 0) {
    args.mask.kv_len = reinterpret_cast<const std::int64_t*>(kv_len_.data());
  }
  if (block_mask_.size() > 0) {
    args.mask.block_mask = reinterpret_cast<const std::uint8_t*>(block_mask_.data());
  }
  return args;
}

DeviceOutput::DeviceOutput(const HostProblem& shape, Dtype dtype, Backend backend,
                           bench::HeadLayout layout)
    : out("katt::attention::out", backend, dtype,
          {shape.batch, shape.heads, shape.seq_q, shape.head_dim}, layout),
      lse("katt::attention::lse", backend, Dtype::f32, {shape.batch, shape.heads, shape.seq_q}) {}

void DeviceOutput::poison() const {
  out.poison();
  lse.poison();
}

DeviceGradients::DeviceGradients(const HostProblem& shape, Dtype dtype, Backend backend,
                                 bench::HeadLayout layout)
    : dq("katt::attention::dq", backend, dtype,
         {shape.batch, shape.heads, shape.seq_q, shape.head_dim}, layout),
      dk("katt::attention::dk", backend, dtype,
         {shape.batch, shape.kv_heads, shape.seq_kv, shape.head_dim}, layout),
      dv("katt::attention::dv", backend, dtype,
         {shape.batch, shape.kv_heads, shape.seq_kv, shape.head_dim}, layout) {}

void DeviceGradients::poison() const {
  dq.poison();
  dk.poison();
  dv.poison();
}

ForwardArgs host_masks(const ProblemData& data, ForwardArgs args) {
  args.mask.kv_len = data.kv_len.empty() ? nullptr : data.kv_len.data();
  args.mask.block_mask = data.block_mask.empty() ? nullptr : data.block_mask.data();
  return args;
}

ForwardArgs forward_args(ForwardArgs inputs, const DeviceOutput& outputs) {
  inputs.out = outputs.out.ref();
  inputs.lse = outputs.lse.ref();
  return inputs;
}

BackwardArgs backward_args(const ForwardArgs& inputs, const DeviceOutput& forward,
                           const bench::Tensor<4>& dout, const DeviceGradients& gradients) {
  BackwardArgs args;
  args.q = inputs.q;
  args.k = inputs.k;
  args.v = inputs.v;
  args.out = forward.out.ref();
  args.lse = forward.lse.ref();
  args.dout = dout.ref();
  args.dq = gradients.dq.ref();
  args.dk = gradients.dk.ref();
  args.dv = gradients.dv.ref();
  args.scale = inputs.scale;
  args.score = inputs.score;
  args.mask = inputs.mask;
  return args;
}

namespace {

/// What P may be wrong by, relative to itself, because a score of this size is an f32: a rounding
/// of the score. Where scores are large and few keys compete, the unfused values can be exact by
/// chance though no f32 score is.
double score_rounding(double largest_lse) { return 0x1p-24 * std::max(1.0, largest_lse); }

/// Every query of a small problem; of a large one the first and last of the corners and a hashed
/// choice, so many that the reference costs about 2·10^8 multiplications.
std::vector<QueryIndex> sample_queries(const HostProblem& p) {
  const std::int64_t total = p.batch * p.heads * p.seq_q;
  const double cost = static_cast<double>(std::max<std::int64_t>(1, p.seq_kv * p.head_dim));
  const auto wanted = static_cast<std::int64_t>(std::clamp(1e8 / cost, 16.0, 4096.0));
  const auto at = [&](std::int64_t flat) {
    return QueryIndex{flat / p.seq_q / p.heads, flat / p.seq_q % p.heads, flat % p.seq_q};
  };
  std::set<QueryIndex> chosen;
  if (total <= wanted) {
    for (std::int64_t i = 0; i < total; ++i) chosen.insert(at(i));
  } else {
    chosen.insert(at(0));
    chosen.insert(at(p.seq_q - 1));
    chosen.insert(at(total - p.seq_q));
    chosen.insert(at(total - 1));
    for (std::uint64_t i = 0; static_cast<std::int64_t>(chosen.size()) < wanted; ++i) {
      chosen.insert(
          at(static_cast<std::int64_t>(testing::hash(7, i) % static_cast<std::uint64_t>(total))));
    }
  }
  return {chosen.begin(), chosen.end()};
}

}  // namespace

Reference::Reference(const ProblemData& data)
    : shape_(data.shape), sample_(sample_queries(shape_)) {
  testing::ErrorRule out(data.dtype);
  testing::ErrorRule lse(data.dtype);
  for (const QueryIndex& index : sample_) {
    ReferenceRow exact = reference_row(shape_, index);
    const ReferenceRow unfused = unfused_row(shape_, index, data.dtype);
    for (std::size_t c = 0; c < exact.out.size(); ++c) out.add(exact.out[c], unfused.out[c]);
    if (std::isfinite(exact.lse)) lse.add(exact.lse, unfused.lse);
    rows_.push_back(std::move(exact));
  }
  limit_ = out.limit() + score_rounding(lse.scale()) * out.scale();
  // Of scores that an unfused variant stores in the dtype; its terms may cancel.
  lse_limit_ = lse.limit() + score_rounding(lse.scale());
}

bench::Errors Reference::compare(std::span<const float> out, std::span<const float> lse) const {
  testing::Comparison comparison;
  testing::Comparison lse_comparison;
  for (std::size_t r = 0; r < sample_.size(); ++r) {
    const QueryIndex& at = sample_[r];
    const auto row =
        static_cast<std::size_t>((at.batch * shape_.heads + at.head) * shape_.seq_q + at.query);
    const std::size_t d = rows_[r].out.size();
    for (std::size_t c = 0; c < d; ++c) {
      comparison.add("out", {at.batch, at.head, at.query, static_cast<std::int64_t>(c)},
                     out[row * d + c], rows_[r].out[c], limit_);
    }
    if (lse.empty()) continue;
    lse_comparison.add("lse", {at.batch, at.head, at.query}, lse[row], rows_[r].lse, lse_limit_);
  }
  bench::Errors errors = comparison.result();
  if (errors.status.is_ok()) errors.status = lse_comparison.result().status;
  return errors;
}

GradientReference::GradientReference(const ProblemData& data) : shape_(data.shape) {
  const HostProblem& p = shape_;
  const double cost = static_cast<double>(p.heads / p.kv_heads) * static_cast<double>(p.seq_q) *
                      static_cast<double>(p.seq_kv) * static_cast<double>(p.head_dim);
  const std::int64_t total = p.batch * p.kv_heads;
  const auto wanted = static_cast<std::int64_t>(std::clamp(2e8 / std::max(1.0, cost), 1.0, 64.0));
  std::set<std::int64_t> chosen;
  for (std::uint64_t i = 0; static_cast<std::int64_t>(chosen.size()) < std::min(wanted, total);
       ++i) {
    chosen.insert(total <= wanted ? static_cast<std::int64_t>(i)
                                  : static_cast<std::int64_t>(testing::hash(8, i) %
                                                              static_cast<std::uint64_t>(total)));
  }
  testing::ErrorRule dq(data.dtype), dk(data.dtype), dv(data.dtype);
  double largest_lse = 0, dq_terms = 0, dk_terms = 0;
  for (const std::int64_t index : chosen) {
    const std::int64_t b = index / p.kv_heads;
    const std::int64_t h = index % p.kv_heads;
    ReferenceGradients exact = reference_gradients(p, b, h);
    const ReferenceGradients unfused = unfused_gradients(p, b, h, data.dtype);
    const auto add = [](testing::ErrorRule& rule, const std::vector<double>& a,
                        const std::vector<double>& u) {
      for (std::size_t i = 0; i < a.size(); ++i) rule.add(a[i], u[i]);
    };
    add(dq, exact.dq, unfused.dq);
    add(dk, exact.dk, unfused.dk);
    add(dv, exact.dv, unfused.dv);
    largest_lse = std::max(largest_lse, exact.largest_lse);
    dq_terms = std::max(dq_terms, exact.dq_terms);
    dk_terms = std::max(dk_terms, exact.dk_terms);
    heads_.push_back({b, h, std::move(exact)});
  }
  const bool bent = std::ranges::any_of(score_parameters, [&](const ScoreParameter& parameter) {
    return p.score.*parameter.value != parameter.minimum;
  });
  const double factor = p.heads > p.kv_heads || bent ? 3 : 2;
  const auto limit = [&](const testing::ErrorRule& rule) {
    return rule.limit(factor) + score_rounding(largest_lse) * rule.scale();
  };
  dq_limit_ = limit(dq) + 2 * 0x1p-23 * dq_terms;
  dk_limit_ = limit(dk) + 2 * 0x1p-23 * dk_terms;
  dv_limit_ = limit(dv);
}

bench::Errors GradientReference::compare(std::span<const float> dq, std::span<const float> dk,
                                         std::span<const float> dv) const {
  testing::Comparison comparison;
  const HostProblem& p = shape_;
  const std::int64_t group = p.heads / p.kv_heads;
  for (const Head& head : heads_) {
    const std::int64_t q_rows = group * p.seq_q;  // of all query heads of the group, contiguous
    const auto q_base =
        static_cast<std::size_t>((head.batch * p.kv_heads + head.kv_head) * q_rows * p.head_dim);
    const auto k_base =
        static_cast<std::size_t>((head.batch * p.kv_heads + head.kv_head) * p.seq_kv * p.head_dim);
    const auto add = [&](const char* name, std::span<const float> got, std::size_t base,
                         const std::vector<double>& expected, double limit, std::int64_t seq) {
      for (std::size_t i = 0; i < expected.size(); ++i) {
        const auto row = static_cast<std::int64_t>(i) / p.head_dim;
        const std::int64_t first = name[1] == 'q' ? head.kv_head * group : head.kv_head;
        comparison.add(
            name,
            {head.batch, first + row / seq, row % seq, static_cast<std::int64_t>(i) % p.head_dim},
            got[base + i], expected[i], limit);
      }
    };
    add("dq", dq, q_base, head.exact.dq, dq_limit_, p.seq_q);
    add("dk", dk, k_base, head.exact.dk, dk_limit_, p.seq_kv);
    add("dv", dv, k_base, head.exact.dv, dv_limit_, p.seq_kv);
  }
  return comparison.result();
}

}  // namespace katt::attention
