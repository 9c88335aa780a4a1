#pragma once

#include <rapidcheck.h>

#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "ops/attention/attention_case.hpp"
#include "testing/fill.hpp"

/// Attention problems that the tests of both passes share.
namespace katt::attention {

using bench::HeadLayout;

struct Shape {
  std::int64_t batch, heads, kv_heads, seq_q, seq_kv, head_dim;
};

// A power of two, a prime, length 1, more queries than keys, ragged tails, GQA and MQA, every kind
// of head_dim.
inline const std::vector<Shape> shapes{
    {1, 2, 2, 64, 64, 64}, {2, 4, 2, 67, 67, 40},  {1, 3, 1, 1, 131, 128},  {1, 2, 1, 1, 1, 8},
    {1, 2, 2, 97, 31, 72}, {1, 4, 1, 5, 300, 256}, {2, 1, 1, 130, 200, 96}, {1, 6, 2, 33, 65, 16},
};

inline std::unique_ptr<ProblemData> make_problem(const Shape& s, Dtype dtype,
                                                 std::uint64_t seed = 1, float scale = 1.0F) {
  auto data = std::make_unique<ProblemData>();
  data->dtype = dtype;
  HostProblem& p = data->shape;
  p.batch = s.batch;
  p.heads = s.heads;
  p.kv_heads = s.kv_heads;
  p.seq_q = s.seq_q;
  p.seq_kv = s.seq_kv;
  p.head_dim = s.head_dim;
  p.scale = 1.0 / std::sqrt(static_cast<double>(s.head_dim));
  data->q.resize(static_cast<std::size_t>(s.batch * s.heads * s.seq_q * s.head_dim));
  data->k.resize(static_cast<std::size_t>(s.batch * s.kv_heads * s.seq_kv * s.head_dim));
  data->v.resize(data->k.size());
  testing::fill(data->q, seed, dtype, scale);
  testing::fill(data->k, seed + 1, dtype, scale);
  testing::fill(data->v, seed + 2, dtype);
  data->link();
  return data;
}

inline std::string describe(const Shape& s) {
  return "B" + std::to_string(s.batch) + " H" + std::to_string(s.heads) + "/" +
         std::to_string(s.kv_heads) + " S" + std::to_string(s.seq_q) + "x" +
         std::to_string(s.seq_kv) + " D" + std::to_string(s.head_dim);
}

struct MaskCase {
  std::string name;
  std::function<void(ProblemData&)> apply;
};

inline std::vector<float> random_bias(std::int64_t count, Dtype dtype) {
  std::vector<float> bias(static_cast<std::size_t>(count));
  testing::fill(bias, 9, dtype);
  for (std::size_t i = 0; i < bias.size(); i += 7) {
    bias[i] = -std::numeric_limits<float>::infinity();
  }
  return bias;
}

inline const std::vector<MaskCase> masks{
    {"full", [](ProblemData&) {}},
    {"causal", [](ProblemData& d) { d.shape.causal = true; }},
    {"window left 5 right 3",
     [](ProblemData& d) {
       d.shape.window_left = 5;
       d.shape.window_right = 3;
     }},
    {"causal window 0",
     [](ProblemData& d) {
       d.shape.causal = true;
       d.shape.window_left = 0;
     }},
    {"softcap", [](ProblemData& d) { d.shape.softcap = 1.5; }},
    {"bias per batch and head, causal",
     [](ProblemData& d) {
       HostProblem& p = d.shape;
       p.causal = true;
       p.bias_batch = p.batch;
       p.bias_heads = p.heads;
       d.bias = random_bias(p.batch * p.heads * p.seq_q * p.seq_kv, d.dtype);
     }},
    {"bias broadcast, softcap",
     [](ProblemData& d) {
       d.shape.softcap = 2.0;
       d.bias = random_bias(d.shape.seq_q * d.shape.seq_kv, d.dtype);
     }},
    {"key lengths",
     [](ProblemData& d) {
       for (std::int64_t b = 0; b < d.shape.batch; ++b) {
         d.kv_len.push_back(b == 0 ? (d.shape.seq_kv + 1) / 2 : 0);
       }
     }},
    {"key lengths, causal, window",
     [](ProblemData& d) {
       d.shape.causal = true;
       d.shape.window_left = 9;
       d.kv_len.assign(static_cast<std::size_t>(d.shape.batch),
                       d.shape.seq_kv - d.shape.seq_kv / 3);
     }},
    {"key lengths beyond the keys, causal",
     [](ProblemData& d) {
       d.shape.causal = true;
       d.kv_len.assign(static_cast<std::size_t>(d.shape.batch), 2 * d.shape.seq_kv + 3);
     }},
    {"blocks of 16, causal",
     [](ProblemData& d) {
       HostProblem& p = d.shape;
       p.causal = true;
       p.block_size = 16;
       const std::int64_t count = ((p.seq_q + 15) / 16) * ((p.seq_kv + 15) / 16);
       for (std::int64_t i = 0; i < count; ++i) d.block_mask.push_back(i % 3 != 1 ? 1 : 0);
     }},
};

inline Shape arbitrary_shape() {
  const auto kv_heads = *rc::gen::inRange<std::int64_t>(1, 4);
  return {*rc::gen::inRange<std::int64_t>(1, 3),
          kv_heads * *rc::gen::inRange<std::int64_t>(1, 4),
          kv_heads,
          *rc::gen::inRange<std::int64_t>(1, 140),
          *rc::gen::inRange<std::int64_t>(1, 200),
          8 * *rc::gen::inRange<std::int64_t>(1, 33)};
}

}  // namespace katt::attention
