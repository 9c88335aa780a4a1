#pragma once

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "op/adapter.hpp"
#include "op/reference/fill.hpp"
#include "tests/device.hpp"
#include "tests/ops/attention_case.hpp"
#include "tests/ops/matrix.hpp"

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

inline void add_dout(ProblemData& data, std::uint64_t seed = 11) {
  data.dout.resize(data.q.size());
  testing::fill(data.dout, seed, data.dtype);
  data.link();
}

/// Runs the forward pass to its end.
inline void run_forward(const DeviceProblem& problem, const DeviceOutput& output,
                        const Config& config, Backend backend, bool for_backward = false) {
  visit_backend(backend, 0, [&]<class Exec>(const Exec& exec) {
    ForwardArgs args = forward_args(problem.args(), output);
    args.for_backward = for_backward;
    bench::run_variant("attention", exec, forward_variants<Exec>(), args, config);
  });
}

/// Runs a pass to its end by its public function.
template <class Exec, class Args>
void run_pass(const Exec& exec, const Args& args, const Config& config) {
  const bench::Buffer workspace =
      testing::poisoned_workspace(backend_of<Exec>(), workspace_bytes(exec, args, config));
  const Status status = [&] {
    if constexpr (std::is_same_v<Args, ForwardArgs>) {
      return forward(exec, args, config, workspace.workspace());
    } else if constexpr (std::is_same_v<Args, BackwardArgs>) {
      return backward(exec, args, config, workspace.workspace());
    } else {
      return decode(exec, args, config, workspace.workspace());
    }
  }();
  ASSERT_TRUE(status.is_ok()) << config.variant << ": " << status.reason();
  exec.fence();
}

/// Outputs of the forward pass that run(args) is.
template <class Run>
Outputs run_problem(const ProblemData& data, Backend backend, HeadLayout layout, const Run& run) {
  const DeviceProblem problem(data, backend, layout);
  const DeviceOutput output(data, backend, layout);
  run(forward_args(problem.args(), output));
  return output.download();
}

/// Outputs of a forward pass by the variant `before`, and of the backward pass that run(args) is.
template <class Run>
Outputs run_problem(const ProblemData& data, Backend backend, HeadLayout layout,
                    const Config& before, const Run& run) {
  const DeviceProblem problem(data, backend, layout);
  const DeviceOutput output(data, backend, layout);
  run_forward(problem, output, before, backend, true);
  const bench::Tensor<4> dout("dout", backend, data.dtype, output.out.ref().extent, layout);
  dout.upload(data.dout);
  const DeviceGradients gradients(problem.args(), backend, layout);
  run(backward_args(problem.args(), output, dout, gradients));
  return gradients.download(output.download());
}

/// Outputs of a variant of the forward pass.
template <class Exec>
Outputs run_forward(const Exec& exec, const ProblemData& data, const Config& config,
                    HeadLayout layout = HeadLayout::bhsd) {
  return run_problem(data, backend_of<Exec>(), layout,
                     [&](const ForwardArgs& args) { run_pass(exec, args, config); });
}

/// Outputs of a variant of the backward pass.
template <class Exec>
Outputs run_backward(const Exec& exec, const ProblemData& data, const Config& config,
                     HeadLayout layout = HeadLayout::bhsd, const Config& before = {}) {
  return run_problem(data, backend_of<Exec>(), layout, before,
                     [&](const BackwardArgs& args) { run_pass(exec, args, config); });
}

/// Every variant of a pass with every tile that takes the arguments.
template <class Exec, class Args>
std::vector<Config> configs_of(const VariantTable<Exec, Args>& table, const Args& args) {
  std::vector<Config> configs;
  const auto add = [&](const Config& config) {
    if (table.supports(Exec(), args, config).is_ok()) configs.push_back(config);
  };
  for (const auto& variant : table.all()) {
    if (variant.settings.empty()) add({variant.name, {}});
    for (const Setting& tile : variant.settings) add({variant.name, tile});
  }
  return configs;
}

/// Every variant of a pass that takes the arguments, with its default tile.
template <class Exec, class Args>
std::vector<Config> variants_of(const VariantTable<Exec, Args>& table, const Args& args) {
  std::vector<Config> configs = configs_of(table, args);
  for (Config& config : configs) config.setting = {};
  const auto same = [](const Config& a, const Config& b) { return a.variant == b.variant; };
  configs.erase(std::unique(configs.begin(), configs.end(), same), configs.end());
  return configs;
}

/// Multiplies the queries so that the largest |scale · q·k| is about this.
inline void stretch_scores(ProblemData& data, double largest) {
  const HostProblem& p = data.shape;
  const auto d = static_cast<std::size_t>(p.head_dim);
  const auto rows = [d](const std::vector<float>& values) { return values.size() / d; };
  double now = 0;
  for (std::size_t i = 0; i < rows(data.q); ++i) {
    // The keys of the query's batch entry and group.
    const std::size_t head = i / static_cast<std::size_t>(p.seq_q);
    const std::size_t kv_head = head / static_cast<std::size_t>(p.heads / p.kv_heads);
    for (std::size_t j = 0; j < static_cast<std::size_t>(p.seq_kv); ++j) {
      const float* q = data.q.data() + i * d;
      const float* k = data.k.data() + (kv_head * static_cast<std::size_t>(p.seq_kv) + j) * d;
      double sum = 0;
      for (std::size_t c = 0; c < d; ++c) sum += double{q[c]} * double{k[c]};
      now = std::max(now, std::abs(sum * p.scale));
    }
  }
  const auto factor = static_cast<float>(std::min(largest / std::max(now, 1e-3), 1e3));
  for (float& value : data.q) value = round_to(data.dtype, value * factor);
}

inline std::string describe(const Shape& s) {
  return "B" + std::to_string(s.batch) + " H" + std::to_string(s.heads) + "/" +
         std::to_string(s.kv_heads) + " S" + std::to_string(s.seq_q) + "x" +
         std::to_string(s.seq_kv) + " D" + std::to_string(s.head_dim);
}

inline std::string describe(const Config& config) {
  return config.variant + " " + to_text(config.setting);
}

/// Fails where the outputs of a pass are not those of the reference.
inline void expect_reference(const ProblemData& data, const Outputs& made, const std::string& what,
                             bool backward = false) {
  const bench::Errors errors = Reference(data, backward).compare(made);
  EXPECT_TRUE(errors.status.is_ok())
      << what << ", " << name_of(data.dtype) << ": " << errors.status.reason();
}

inline void expect_finite(const Outputs& made) {
  for (const float value : made.out) ASSERT_TRUE(std::isfinite(value));
  for (const float value : made.lse) ASSERT_TRUE(std::isfinite(value));
}

struct MaskCase {
  std::string name;
  std::function<void(ProblemData&)> apply;
};

/// A problem with a mask.
inline std::unique_ptr<ProblemData> make_problem(const Shape& shape, Dtype dtype,
                                                 const MaskCase& mask) {
  auto data = make_problem(shape, dtype);
  mask.apply(*data);
  data->link();
  return data;
}

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
    {"softcap", [](ProblemData& d) { d.shape.score.softcap = 1.5; }},
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
       d.shape.score.softcap = 2.0;
       d.bias = random_bias(d.shape.seq_q * d.shape.seq_kv, d.dtype);
     }},
    {"ALiBi, causal",
     [](ProblemData& d) {
       d.shape.causal = true;
       d.alibi_slopes = alibi_slopes(d.shape.heads);
     }},
    {"ALiBi, softcap, bias, key lengths",
     [](ProblemData& d) {
       d.shape.score.softcap = 2.5;
       d.alibi_slopes = alibi_slopes(d.shape.heads);
       d.bias = random_bias(d.shape.seq_q * d.shape.seq_kv, d.dtype);
       d.kv_len.assign(static_cast<std::size_t>(d.shape.batch), (d.shape.seq_kv + 2) / 3);
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
    {"bias of large finite values in whole rows and in parts, causal",
     [](ProblemData& d) {
       const HostProblem& p = d.shape;
       d.shape.causal = true;
       d.bias = random_bias(p.seq_q * p.seq_kv, d.dtype);
       const bool narrow = d.dtype == Dtype::f16;
       const float values[] = {narrow ? -6e4F : -1e9F, narrow ? -65504.0F : -1e30F,
                               narrow ? -65504.0F : std::numeric_limits<float>::lowest()};
       for (std::int64_t i = 0; i < p.seq_q; ++i) {
         const float value = std::max(round_to(d.dtype, values[i % 3]),
                                      d.dtype == Dtype::bf16 ? -0x1.FEp127F : values[2]);
         const std::int64_t hidden = i % 4 == 0 ? p.seq_kv : i % 4 == 1 ? p.seq_kv / 2 : 0;
         std::fill_n(d.bias.end() - (i + 1) * p.seq_kv, hidden, value);
       }
     }},
};

/// The pairs of one of these shapes, the j-th, and the i-th mask for which tried(i, j) is true.
template <class F>
std::vector<std::pair<Shape, MaskCase>> shapes_and_masks(const std::vector<Shape>& of_shapes,
                                                         const F& tried) {
  std::vector<std::pair<Shape, MaskCase>> made;
  for (std::size_t j = 0; j < of_shapes.size(); ++j) {
    for (std::size_t i = 0; i < masks.size(); ++i) {
      if (tried(i, j)) made.emplace_back(of_shapes[j], masks[i]);
    }
  }
  return made;
}

/// Every shape with every mask; on an emulated device every mask with one shape, and every shape.
inline auto with_masks(const std::vector<Shape>& of_shapes) {
  return shapes_and_masks(of_shapes, [&](std::size_t i, std::size_t j) {
    return test::is_tried(i, j, of_shapes.size());
  });
}

/// The same for kernels whose instructions are emulated one by one: each shape with a third of the masks, with all of
/// them in all_cases().
inline auto with_some_masks(const std::vector<Shape>& of_shapes) {
  return shapes_and_masks(of_shapes, [](std::size_t i, std::size_t j) {
    return test::all_cases() || (i + j) % 3 == 0;
  });
}

/// The largest scores that property tests draw: in 16 bits, where they are stored in the dtype by
/// an unfused implementation, a rounding is a quarter.
inline double largest_score(Dtype dtype) { return dtype == Dtype::f32 ? 300.0 : 80.0; }

inline Shape arbitrary_shape() {
  const auto kv_heads = *rc::gen::inRange<std::int64_t>(1, 4);
  return {*rc::gen::inRange<std::int64_t>(1, 3),
          kv_heads * *rc::gen::inRange<std::int64_t>(1, 4),
          kv_heads,
          *rc::gen::inRange<std::int64_t>(1, 140),
          *rc::gen::inRange<std::int64_t>(1, 200),
          8 * *rc::gen::inRange<std::int64_t>(1, 33)};
}

/// A problem of any dtype, mask and size of scores; half of them have few enough rows for decode,
/// unless `fewest` requests more queries and keys. A problem has some rows at least: the yardstick
/// is the largest of the unfused errors, which may be zero by chance for one or two rows.
inline std::unique_ptr<ProblemData> arbitrary_problem(std::int64_t fewest = 1) {
  Shape shape = arbitrary_shape();
  if (*rc::gen::arbitrary<bool>()) shape.seq_q = 1 + shape.seq_q % 8;
  shape.seq_q = std::max(shape.seq_q, fewest);
  shape.seq_kv = std::max(shape.seq_kv, fewest);
  constexpr std::int64_t fewest_rows = 24;
  const std::int64_t copies = (fewest_rows - 1) / (shape.heads * shape.seq_q) + 1;
  shape.kv_heads *= copies;
  shape.heads *= copies;
  const Dtype dtype = *rc::gen::elementOf(std::vector<Dtype>(all_dtypes.begin(), all_dtypes.end()));
  auto data = make_problem(shape, dtype, *rc::gen::arbitrary<std::uint16_t>());
  (*rc::gen::elementOf(masks)).apply(*data);
  stretch_scores(*data, *rc::gen::inRange(1, static_cast<int>(largest_score(dtype)) + 1));
  data->link();
  return data;
}

/// One configuration of every variant: those of a list that has all tiles of a variant side by
/// side.
inline std::vector<Config> one_of_each_variant(const std::vector<Config>& configs) {
  std::vector<Config> chosen;
  for (auto first = configs.begin(); first != configs.end();) {
    const auto last = std::find_if(first, configs.end(),
                                   [&](const Config& c) { return c.variant != first->variant; });
    chosen.push_back(*rc::gen::elementOf(std::vector<Config>(first, last)));
    first = last;
  }
  return chosen;
}

}  // namespace katt::attention
