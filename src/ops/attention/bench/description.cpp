#include "ops/attention/bench/description.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>

#include "ops/attention/bench/rule_file.hpp"
#include "ops/attention/reference/lengths.hpp"

namespace katt::attention {

HostProblem Description::host_problem(const bench::Problem& p) {
  HostProblem host{.batch = p.extent("batch"),
                   .heads = p.extent("heads"),
                   .kv_heads = p.extent("kv_heads"),
                   .seq_q = p.extent("seq_q"),
                   .seq_kv = p.extent("seq_kv"),
                   .head_dim = p.extent("head_dim"),
                   .q = p.floats("q"),
                   .k = p.floats("k"),
                   .v = p.floats("v"),
                   .scale = p.parameter("scale"),
                   .causal = p.extent("causal") != 0,
                   .window_left = p.extent("window_left"),
                   .window_right = p.extent("window_right"),
                   .bias = p.floats("mask"),
                   .bias_batch = p.extent("mask_batch"),
                   .bias_heads = p.extent("mask_heads"),
                   .kv_len = p.indices("kv_len"),
                   .block_mask = p.indices("block_mask"),
                   .block_size = p.extent("has_block_mask") != 0 ? p.extent("block_size") : 0,
                   .mask_gradient = p.extent("mask_gradient") != 0,
                   .dout = p.floats("dout")};
  for (const ScoreParameter& parameter : score_parameters) {
    host.score.*parameter.value = static_cast<float>(p.parameter(parameter.name));
  }
  const auto slopes = p.floats("alibi_slopes");
  host.score.alibi_slopes = slopes.empty() ? nullptr : slopes.data();
  if (const NamedRule* rule = rule_of(p)) host.rule = rule->exact(host.heads);
  return host;
}

void Description::read(const io::CaseFile& file, bench::Problem& p) {
  const std::int64_t batch = p.extent("batch"), heads = p.extent("heads"), d = p.extent("head_dim");
  if (d <= 0 || d > max_head_dim || d % 8 != 0) {
    file.reject("q", "holds head_dim " + std::to_string(d) + ", expected a multiple of 8 up to " +
                         std::to_string(max_head_dim));
  }
  if (const std::int64_t kv_heads = p.extent("kv_heads"); kv_heads == 0 || heads % kv_heads != 0) {
    file.reject("k", "holds " + std::to_string(kv_heads) + " heads, expected a divisor of the " +
                         std::to_string(heads) + " of q");
  }
  p.parameters["scale"] = file.real("scale", 1.0 / std::sqrt(static_cast<double>(d)));
  if (!std::isfinite(p.parameter("scale")))
    file.reject("scale", "holds a value that is not finite");
  p.extents["causal"] = file.flag("causal");
  p.extents["window_left"] = file.integer("window_left", -1);
  p.extents["window_right"] = file.integer("window_right", -1);
  p.extents["mask_gradient"] = file.flag("mask_gradient");
  if (p.extent("mask_gradient") != 0 && !p.has("mask")) {
    throw InputError(file.path().string() +
                     ": attribute mask_gradient: holds 1, expected 0 where there is no mask");
  }
  if (p.has("mask")) {
    const std::int64_t mask_batch = p.extent("mask_batch"), mask_heads = p.extent("mask_heads");
    if ((mask_batch != 1 && mask_batch != batch) || (mask_heads != 1 && mask_heads != heads)) {
      file.reject("mask", "holds shape (" + std::to_string(mask_batch) + ", " +
                              std::to_string(mask_heads) + ", …), expected (" +
                              std::to_string(batch) + " or 1, " + std::to_string(heads) +
                              " or 1, Sq, Skv)");
    }
    // Only -inf hides a key: in a narrower dtype, too, a finite value stays finite.
    const float most = p.dtype == Dtype::f32   ? std::numeric_limits<float>::max()
                       : p.dtype == Dtype::f16 ? 65504.0F
                                               : 0x1.FEp127F;
    for (float& value : p.values["mask"]) {
      if (std::isfinite(value)) value = std::clamp(value, -most, most);
    }
  }
  const std::int64_t seq_kv = p.extent("seq_kv");
  const bool moves = p.extent("window_left") >= 0 || p.has("alibi_slopes");
  if (p.has("kv_len")) {
    for (std::int64_t& length : p.integers["kv_len"]) {
      if (!is_key_length(length, p.extent("seq_q"), seq_kv, moves)) {
        file.reject("kv_len", key_length_problem(length, seq_kv));
      }
      length = std::min(length, seq_kv);
    }
  }
  if (!p.has("block_mask")) return;
  const std::int64_t size = file.integer("block_size");
  if (size <= 0) {
    file.reject("block_size", "holds " + std::to_string(size) + ", expected a positive number");
  }
  p.extents["block_size"] = size;
  const std::int64_t rows = blocks(p.extent("seq_q"), size);
  const std::int64_t columns = blocks(p.extent("seq_kv"), size);
  if (p.extent("block_rows") != rows || p.extent("block_columns") != columns) {
    file.reject("block_mask",
                "holds " + std::to_string(p.extent("block_rows")) + " x " +
                    std::to_string(p.extent("block_columns")) +
                    " blocks, expected (ceil(Sq/block_size), ceil(Skv/block_size)): " +
                    std::to_string(rows) + " x " + std::to_string(columns));
  }
  for (std::int64_t& live : p.integers["block_mask"]) live = live != 0 ? 1 : 0;
}

std::optional<std::filesystem::path> Description::rule_file(const bench::Problem& p) {
  const NamedRule* rule = rule_of(p);
  if (rule == nullptr) return std::nullopt;
  return rule_file_of(rule->name);
}

void Description::add_rule(const std::filesystem::path& path) { add_rule_file(path); }

}  // namespace katt::attention
