#include "ops/rope/bench/case.hpp"

#include <algorithm>
#include <numeric>
#include <set>

#include "testing/expected.hpp"
#include "testing/fill.hpp"

namespace katt::rope {

void ProblemData::link() {
  shape.x = x;
  shape.positions = positions;
}

HostProblem ProblemData::second() const {
  HostProblem problem = shape;
  problem.heads = kv_heads;
  problem.x = x2;
  return problem;
}

std::int64_t cache_rows(const HostProblem& problem, bool explicit_positions) {
  return explicit_positions ? problem.batch * problem.seq : problem.seq;
}

Tensors shapes_of(const HostProblem& problem, std::int64_t kv_heads, Dtype dtype,
                  bool explicit_positions) {
  Tensors t;
  t.in = {nullptr, dtype, {problem.batch, problem.heads, problem.seq, problem.head_dim}};
  t.out = {nullptr, dtype, t.in.extent};
  if (kv_heads > 0) {
    t.in2 = {nullptr, dtype, {problem.batch, kv_heads, problem.seq, problem.head_dim}};
    t.out2 = {nullptr, dtype, t.in2.extent};
  }
  t.cache = {nullptr, Dtype::f32, {cache_rows(problem, explicit_positions), problem.head_dim}};
  t.interleaved = problem.interleaved;
  return t;
}

DeviceProblem::DeviceProblem(const ProblemData& data, Backend backend, int threads,
                             bench::HeadLayout layout, bool inputs)
    : shapes_(shapes_of(data.shape, data.kv_heads, data.dtype, !data.positions.empty())),
      cache_("katt::rope::cache", backend, Dtype::f32, shapes_.cache.extent) {
  if (inputs) {
    x_ = {"katt::rope::x", backend, data.dtype, shapes_.in.extent, layout};
    x_.upload(data.x);
    if (data.kv_heads > 0) {
      x2_ = {"katt::rope::x2", backend, data.dtype, shapes_.in2.extent, layout};
      x2_.upload(data.x2);
    }
  }
  const auto upload = [&](const std::vector<std::int64_t>& values) {
    positions_.upload(std::as_bytes(std::span(values)));
  };
  if (!data.positions.empty()) {
    positions_ = {"katt::rope::positions", backend, data.positions.size() * sizeof(std::int64_t)};
    upload(data.positions);
  }
  visit_backend(backend, threads, [&](const auto& exec) {
    build_cache(exec, data.shape.frequencies, cache_.ref(),
                reinterpret_cast<const std::int64_t*>(positions_.data()));
    exec.fence("katt::rope::cache");
  });
  if (!data.positions.empty()) {  // the cache holds them in order
    std::vector<std::int64_t> rows(data.positions.size());
    std::iota(rows.begin(), rows.end(), 0);
    upload(rows);
  }
}

Tensors DeviceProblem::tensors() const {
  Tensors t = shapes_;
  t.in = x_.ref();
  t.in2 = x2_.ref();
  t.cache = cache_.ref();
  t.positions = reinterpret_cast<const std::int64_t*>(positions_.data());
  return t;
}

DeviceOutput::DeviceOutput(const ProblemData& data, Backend backend, bench::HeadLayout layout,
                           bool in_place)
    : source_(in_place ? &data : nullptr) {
  const HostProblem& p = data.shape;
  out = {"katt::rope::out", backend, data.dtype, {p.batch, p.heads, p.seq, p.head_dim}, layout};
  if (data.kv_heads > 0) {
    out2 = {"katt::rope::out2",
            backend,
            data.dtype,
            {p.batch, data.kv_heads, p.seq, p.head_dim},
            layout};
  }
}

void DeviceOutput::link(Tensors& tensors) const {
  tensors.out = out.ref();
  tensors.out2 = out2.ref();
  if (source_ == nullptr) return;
  tensors.in = out.ref();
  tensors.in2 = out2.ref();
}

void DeviceOutput::poison() const {
  const bool second = out2.bytes() > 0;
  if (source_ == nullptr) {
    out.poison();
    if (second) out2.poison();
    return;
  }
  out.upload(source_->x);
  if (second) out2.upload(source_->x2);
}

namespace {

/// Every row of a small problem; of a large one the corners and a hashed choice.
std::vector<RowIndex> sample_rows(const HostProblem& p) {
  constexpr std::int64_t wanted = 4096;
  const std::int64_t total = p.batch * p.heads * p.seq;
  const auto at = [&](std::int64_t flat) {
    return RowIndex{flat / p.seq / p.heads, flat / p.seq % p.heads, flat % p.seq};
  };
  std::set<RowIndex> chosen;
  if (total <= wanted) {
    for (std::int64_t i = 0; i < total; ++i) chosen.insert(at(i));
  } else {
    for (const std::int64_t i : {std::int64_t{0}, p.seq - 1, total - p.seq, total - 1})
      chosen.insert(at(i));
    for (std::uint64_t i = 0; static_cast<std::int64_t>(chosen.size()) < wanted; ++i) {
      chosen.insert(
          at(static_cast<std::int64_t>(testing::hash(7, i) % static_cast<std::uint64_t>(total))));
    }
  }
  return {chosen.begin(), chosen.end()};
}

}  // namespace

Reference::Reference(const ProblemData& data) {
  add(data.shape, data.dtype);
  if (data.kv_heads > 0) add(data.second(), data.dtype);
}

void Reference::add(const HostProblem& problem, Dtype dtype) {
  Sample sample{problem, sample_rows(problem), {}, 0};
  testing::ErrorRule rule(dtype);
  for (const RowIndex& index : sample.rows) {
    sample.expected.push_back(reference_row(problem, index));
    const std::vector<double>& exact = sample.expected.back();
    const std::vector<double> unfused = unfused_row(problem, index, dtype);
    for (std::size_t c = 0; c < exact.size(); ++c) rule.add(exact[c], unfused[c]);
  }
  sample.limit = rule.limit();
  samples_.push_back(std::move(sample));
}

bench::Errors Reference::compare(const DeviceOutput& output) const {
  testing::Comparison comparison;
  for (std::size_t t = 0; t < samples_.size(); ++t) {
    const Sample& sample = samples_[t];
    const std::vector<float> got = (t == 0 ? output.out : output.out2).download();
    for (std::size_t r = 0; r < sample.rows.size(); ++r) {
      const RowIndex& at = sample.rows[r];
      const auto first = static_cast<std::size_t>(
          ((at.batch * sample.shape.heads + at.head) * sample.shape.seq + at.seq) *
          sample.shape.head_dim);
      for (std::size_t c = 0; c < sample.expected[r].size(); ++c) {
        comparison.add(t == 0 ? "out" : "out2",
                       {at.batch, at.head, at.seq, static_cast<std::int64_t>(c)}, got[first + c],
                       sample.expected[r][c], sample.limit);
      }
    }
  }
  return comparison.result();
}

}  // namespace katt::rope
