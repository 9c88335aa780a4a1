#include <algorithm>
#include <cmath>
#include <memory>
#include <string>

#include "bench/adapter.hpp"
#include "core/error.hpp"
#include "io/case_file.hpp"
#include "ops/attention/bench/case.hpp"
#include "ops/attention/score_rules.hpp"

namespace katt::attention {

namespace {

/// Reads a problem from a case file.
std::unique_ptr<ProblemData> read(const io::CaseFile& file) {
  auto data = std::make_unique<ProblemData>();
  HostProblem& p = data->shape;
  data->dtype = file.dtype();
  const auto q = file.shape("q", 4, "(B, Hq, Sq, D)");
  const auto k = file.shape("k", 4, "(B, Hkv, Skv, D)");
  p.batch = q[0];
  p.heads = q[1];
  p.seq_q = q[2];
  p.head_dim = q[3];
  p.kv_heads = k[1];
  p.seq_kv = k[2];
  if (p.head_dim <= 0 || p.head_dim > max_head_dim || p.head_dim % 8 != 0) {
    file.reject("q", "holds head_dim " + std::to_string(p.head_dim) +
                         ", expected a multiple of 8 up to " + std::to_string(max_head_dim));
  }
  if (p.kv_heads == 0 || p.heads % p.kv_heads != 0) {
    file.reject("k", "holds " + std::to_string(p.kv_heads) + " heads, expected a divisor of the " +
                         std::to_string(p.heads) + " of q");
  }
  data->q = file.floats("q", q, "(B, Hq, Sq, D)").values;
  data->k =
      file.floats("k", {p.batch, p.kv_heads, p.seq_kv, p.head_dim}, "(B, Hkv, Skv, D)").values;
  data->v =
      file.floats("v", {p.batch, p.kv_heads, p.seq_kv, p.head_dim}, "(B, Hkv, Skv, D)").values;
  p.scale = file.real("scale", 1.0 / std::sqrt(static_cast<double>(p.head_dim)));
  p.causal = file.integer("causal", 0) != 0;
  p.window_left = file.integer("window_left", -1);
  p.window_right = file.integer("window_right", -1);
  for (const ScoreParameter& parameter : score_parameters) {
    const double value = file.real(parameter.name, p.score.*parameter.value);
    if (!(value >= parameter.minimum && value <= parameter.maximum)) {
      file.reject(parameter.name, "holds " + std::to_string(value) +
                                      ", expected 0 (none) or a number up to " +
                                      std::to_string(parameter.maximum));
    }
    p.score.*parameter.value = static_cast<float>(value);
  }
  if (!std::isfinite(p.scale)) file.reject("scale", "holds a value that is not finite");
  if (file.has("mask")) {
    const auto shape = file.shape("mask", 4, "(B or 1, Hq or 1, Sq, Skv)");
    p.bias_batch = shape[0] == 1 ? 1 : p.batch;
    p.bias_heads = shape[1] == 1 ? 1 : p.heads;
    data->bias = file.floats("mask", {p.bias_batch, p.bias_heads, p.seq_q, p.seq_kv},
                             "(B or 1, Hq or 1, Sq, Skv)")
                     .values;
  }
  if (file.has("alibi_slopes")) {
    data->alibi_slopes = file.floats("alibi_slopes", {p.heads}, "(Hq)").values;
  }
  if (file.has("dout")) data->dout = file.floats("dout", q, "(B, Hq, Sq, D)").values;
  if (file.has("kv_len")) {
    data->kv_len = file.integers("kv_len", {p.batch}, "(B)").values;
    for (const std::int64_t length : data->kv_len) {
      if (length < 0) {
        file.reject("kv_len", "holds " + std::to_string(length) + ", expected lengths from 0 on");
      }
    }
  }
  if (file.has("block_mask")) {
    p.block_size = file.integer("block_size");
    if (p.block_size <= 0) {
      file.reject("block_size",
                  "holds " + std::to_string(p.block_size) + ", expected a positive number");
    }
    const std::int64_t rows = p.seq_q / p.block_size + (p.seq_q % p.block_size != 0 ? 1 : 0);
    const std::int64_t columns = p.seq_kv / p.block_size + (p.seq_kv % p.block_size != 0 ? 1 : 0);
    const auto blocks =
        file.integers("block_mask", {rows, columns}, "(ceil(Sq/block_size), ceil(Skv/block_size))");
    data->block_mask.assign(blocks.values.size(), 0);
    for (std::size_t i = 0; i < blocks.values.size(); ++i)
      data->block_mask[i] = blocks.values[i] != 0 ? 1 : 0;
  }
  data->link();
  return data;
}

}  // namespace

void run_case_file(const io::CaseFile& in, const bench::RunOptions& options, io::TensorFile& out) {
  const std::unique_ptr<ProblemData> data = read(in);
  const HostProblem& p = data->shape;
  const DeviceProblem problem(*data, options.backend, bench::HeadLayout::bhsd);
  const DeviceOutput output(p, data->dtype, options.backend, bench::HeadLayout::bhsd);
  const auto run = [&](const auto& args, bool backward) {
    check(args);
    visit_backend(options.backend, options.threads, [&]<class Exec>(const Exec& exec) {
      const auto table = variants_of<Exec, std::decay_t<decltype(args)>>(nullptr, p.heads);
      const Config config = bench::run_variant("attention", exec, table, args, options.config);
      bench::record_variant(out, table, config, backward);
    });
  };
  run(forward_args(problem.args(), output), false);
  const auto& q = output.out.ref().extent;
  out.set("out", {{q.begin(), q.end()}, output.out.download()});
  out.set("lse", {{p.batch, p.heads, p.seq_q}, output.lse.download()});
  if (data->dout.empty()) return;

  const bench::Tensor<4> dout("katt::attention::dout", options.backend, data->dtype, q);
  dout.upload(data->dout);
  const DeviceGradients gradients(p, data->dtype, options.backend, bench::HeadLayout::bhsd);
  run(backward_args(problem.args(), output, dout, gradients), true);
  const auto& k = gradients.dk.ref().extent;
  out.set("dq", {{q.begin(), q.end()}, gradients.dq.download()});
  out.set("dk", {{k.begin(), k.end()}, gradients.dk.download()});
  out.set("dv", {{k.begin(), k.end()}, gradients.dv.download()});
}

}  // namespace katt::attention
