#include "nn/context/ring_attention/bench/inputs.hpp"

#include <algorithm>
#include <cmath>

#include "core/error.hpp"
#include "io/hdf5/case_file.hpp"
#include "op/reference/fill.hpp"
#include "op/reference/new_values.hpp"
#include "ops/attention/reference/expected.hpp"
#include "ops/attention/reference/lengths.hpp"

namespace katt::ring_attention {

Inputs::Inputs(const bench::Point& point)
    : backward(point.pass == "backward"),
      dtype(point.dtype),
      batch(point.integer("batch")),
      heads(point.integer("heads")),
      kv_heads(point.integer("kv_heads")),
      seq_q(point.integer("seq_q")),
      seq_kv(seq_q),
      head_dim(point.integer("head_dim")),
      scale(1.0 / std::sqrt(static_cast<double>(head_dim))),
      causal(point.integer("causal") != 0),
      window_left(point.integer("window_left")) {
  for (const attention::ScoreParameter& parameter : attention::score_parameters) {
    score.*parameter.value = static_cast<float>(point.real(parameter.name));
  }
  std::uint64_t stream = point.seed * 16;
  const auto fill = [&](std::vector<float>& values, std::int64_t of_heads) {
    values.resize(static_cast<std::size_t>(batch * of_heads * seq_q * head_dim));
    testing::fill(values, ++stream, dtype);
  };
  fill(q, heads);
  fill(k, kv_heads);
  fill(v, kv_heads);
  fill(dout, heads);
  if (point.integer("alibi") != 0) slopes = attention::alibi_slopes(heads);
}

Inputs::Inputs(const io::CaseFile& file) : dtype(file.dtype()) {
  const auto q_shape = file.shape("q", 4, "(B, Hq, Sq, D)");
  const auto k_shape = file.shape("k", 4, "(B, Hkv, Skv, D)");
  batch = q_shape[0];
  heads = q_shape[1];
  seq_q = q_shape[2];
  head_dim = q_shape[3];
  kv_heads = k_shape[1];
  seq_kv = k_shape[2];
  if (batch <= 0 || heads <= 0 || seq_q <= 0 || seq_kv <= 0) {
    file.reject("q", "holds no query or no key, expected some");
  }
  if (head_dim <= 0 || head_dim > attention::max_head_dim || head_dim % 8 != 0) {
    file.reject("q", "holds head_dim " + std::to_string(head_dim) +
                         ", expected a multiple of 8 up to " +
                         std::to_string(attention::max_head_dim));
  }
  if (kv_heads <= 0 || heads % kv_heads != 0) {
    file.reject("k", "holds " + std::to_string(kv_heads) + " heads, expected a divisor of the " +
                         std::to_string(heads) + " of q");
  }
  q = file.floats("q", q_shape, "(B, Hq, Sq, D)").values;
  const std::vector<std::int64_t> keys{batch, kv_heads, seq_kv, head_dim};
  k = file.floats("k", keys, "(B, Hkv, Skv, D)").values;
  v = file.floats("v", keys, "(B, Hkv, Skv, D)").values;
  backward = file.has("dout");
  if (backward) dout = file.floats("dout", q_shape, "(B, Hq, Sq, D)").values;
  scale = file.real("scale", 1.0 / std::sqrt(static_cast<double>(head_dim)));
  causal = file.integer("causal", 0) != 0;
  window_left = file.integer("window_left", -1);
  window_right = file.integer("window_right", -1);
  for (const attention::ScoreParameter& parameter : attention::score_parameters) {
    score.*parameter.value = static_cast<float>(file.real(parameter.name, parameter.minimum));
  }
  if (file.has("alibi_slopes")) slopes = file.floats("alibi_slopes", {heads}, "(Hq)").values;
  if (file.has("kv_len")) {
    kv_len = file.integers("kv_len", {batch}, "(B)").values;
    for (std::int64_t& length : kv_len) {
      if (!attention::is_key_length(length, seq_q, seq_kv, window_left >= 0 || !slopes.empty())) {
        file.reject("kv_len", attention::key_length_problem(length, seq_kv));
      }
      length = std::min(length, seq_kv);
    }
  }
  if (file.has("mask")) {
    const auto shape = file.shape("mask", 4, "(B or 1, Hq or 1, Sq, Skv)");
    bias_batch = shape[0];
    bias_heads = shape[1];
    if ((bias_batch != 1 && bias_batch != batch) || (bias_heads != 1 && bias_heads != heads)) {
      file.reject("mask", "holds shape (" + std::to_string(bias_batch) + ", " +
                              std::to_string(bias_heads) + ", …), expected (" +
                              std::to_string(batch) + " or 1, " + std::to_string(heads) +
                              " or 1, Sq, Skv)");
    }
    bias =
        file.floats("mask", {bias_batch, bias_heads, seq_q, seq_kv}, "(B or 1, Hq or 1, Sq, Skv)")
            .values;
  }
  if (!file.has("block_mask")) return;
  block_size = file.integer("block_size");
  if (block_size <= 0) {
    file.reject("block_size",
                "holds " + std::to_string(block_size) + ", expected a positive number");
  }
  const auto blocks = [&](std::int64_t n) { return (n + block_size - 1) / block_size; };
  block_mask = file.integers("block_mask", {blocks(seq_q), blocks(seq_kv)},
                             "(ceil(Sq/block_size), ceil(Skv/block_size))")
                   .values;
}

attention::HostProblem Inputs::host_problem() const {
  attention::HostProblem host{.batch = batch,
                              .heads = heads,
                              .kv_heads = kv_heads,
                              .seq_q = seq_q,
                              .seq_kv = seq_kv,
                              .head_dim = head_dim,
                              .q = q,
                              .k = k,
                              .v = v,
                              .scale = scale,
                              .causal = causal,
                              .window_left = window_left,
                              .window_right = window_right,
                              .bias = bias,
                              .bias_batch = bias_batch,
                              .bias_heads = bias_heads,
                              .kv_len = kv_len,
                              .block_mask = block_mask,
                              .block_size = block_size,
                              .dout = dout};
  host.score = score;
  host.score.alibi_slopes = slopes.empty() ? nullptr : slopes.data();
  return host;
}

double Inputs::flops() const {
  const std::vector<std::uint8_t> live(block_mask.begin(), block_mask.end());
  attention::ForwardArgs args;
  args.q = TensorRef<4>(nullptr, dtype, {batch, heads, seq_q, head_dim});
  args.k = TensorRef<4>(nullptr, dtype, {batch, kv_heads, seq_kv, head_dim});
  args.mask = {.causal = causal,
               .window_left = window_left,
               .window_right = window_right,
               .kv_len = kv_len.empty() ? nullptr : kv_len.data(),
               .block_mask = live.empty() ? nullptr : live.data(),
               .block_size = block_size};
  return attention::forward_flops(args) * (backward ? 2.5 : 1.0);
}

std::vector<bench::InputChange> Inputs::change(std::uint64_t random, bool all) {
  std::vector<testing::RandomInput> changing;
  const auto add = [&](const char* name, std::vector<float>& values) {
    changing.push_back({.name = name, .values = values, .row = head_dim});
  };
  if (all || !backward) {
    add("q", q);
    add("k", k);
    add("v", v);
  }
  if (backward) add("dout", dout);
  expected_.reset();
  return testing::change_values(changing, random, all);
}

const testing::Expected& Inputs::expected() {
  if (!expected_) {
    const attention::HostProblem problem = host_problem();
    expected_ = backward ? attention::expected_gradients(problem, dtype)
                         : attention::expected_rows(problem, dtype);
  }
  return *expected_;
}

testing::Errors compare(Inputs& inputs, const std::vector<Output>& outputs) {
  testing::Comparison reported, unreported;
  for (const testing::ExpectedPart& part : inputs.expected()) {
    const auto made = std::ranges::find(outputs, part.output, &Output::name);
    testing::add_all(part.unreported ? unreported : reported, part, made->values, made->shape,
                     inputs.dtype);
  }
  testing::Errors errors = reported.result();
  if (errors.status.is_ok()) errors.status = unreported.result().status;
  return errors;
}

}  // namespace katt::ring_attention
