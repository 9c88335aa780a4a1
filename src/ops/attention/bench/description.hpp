#pragma once

#include <cmath>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/error.hpp"
#include "io/hdf5/case_file.hpp"
#include "op/matrix_ceiling.hpp"
#include "op/tensors.hpp"
#include "ops/attention/attention.hpp"
#include "ops/attention/backward.hpp"
#include "ops/attention/reference/expected.hpp"
#include "ops/attention/reference/float64.hpp"
#include "ops/attention/rules/score_rules.hpp"
#include "ops/attention/schema.hpp"

namespace katt::attention {

/// The operator as sweeps, `katt run` and the tests see it (op/description/describe.hpp).
struct Description {
  static constexpr const char* name = "attention";
  using ForwardArgs = ::katt::attention::ForwardArgs;
  using BackwardArgs = ::katt::attention::BackwardArgs;
  static constexpr const auto& forward_schema = ::katt::attention::forward_schema;
  static constexpr const auto& backward_schema = ::katt::attention::backward_schema;
  static constexpr const char* summary = "softmax(scale · Q·Kᵀ + mask) · V over heads";

  static std::vector<bench::AxisSpec> axes() {
    std::vector<std::string> rules{"none"};
    for (const NamedRule& rule : named_rules()) rules.push_back(rule.name);
    std::vector<bench::AxisSpec> axes{
        bench::integer_axis("batch", 1, 1, "sequences"),
        bench::integer_axis("heads", 8, 1, "query heads"),
        bench::integer_axis("kv_heads", 8, 1, "key/value heads; a divisor of heads")
            .following("heads"),
        bench::integer_axis("seq_q", 1024, 1, "queries per sequence").also("seq"),
        bench::integer_axis("seq_kv", 1024, 1, "keys per sequence").following("seq_q"),
        bench::integer_axis("head_dim", 64, 8, "elements per head, a multiple of 8",
                            static_cast<double>(max_head_dim)),
        bench::flag_axis("causal", "1: key j is visible to query i if j <= i + seq_kv - seq_q"),
        bench::integer_axis("window_left", -1, -1, "keys visible to the left; -1: all")
            .also("window"),
        bench::integer_axis("window_right", -1, -1, "keys visible to the right; -1: all")};
    for (const ScoreParameter& parameter : score_parameters) {
      axes.push_back(bench::real_axis(parameter.name, 0.0, parameter.minimum, parameter.maximum,
                                      parameter.help));
    }
    for (bench::AxisSpec axis :
         {bench::flag_axis("bias", "1: an additive mask (1, 1, seq_q, seq_kv)"),
          bench::integer_axis("kv_len_min", -1, -1, "least of random key lengths; -1: all keys"),
          bench::integer_axis("block_size", 64, 1, "edge of a block of the block mask"),
          bench::real_axis("block_density", 1.0, 0, 1, "share of live blocks; 1: no block mask"),
          bench::AxisSpec{.name = "layout",
          .fallback = std::string("bhsd"),
          .choices = {"bhsd", "bshd"},
          .help = "storage order of q, k, v, out"},
          bench::flag_axis("alibi", "1: ALiBi, with the slopes of its paper"),
          bench::AxisSpec{.name = "score_rule",
          .fallback = std::string("none"),
          .choices = rules,
          .help = "a rule of the user's own for the scores"},
          bench::flag_axis("mask_gradient", "1: backward, dmask of the additive mask too")}) {
      axes.push_back(std::move(axis));
    }
    return axes;
  }

  static void complete(bench::Problem& p) {
    const auto add = [&](const char* axis, std::int64_t value) { p.extents.emplace(axis, value); };
    p.parameters.emplace("scale", 1.0 / std::sqrt(static_cast<double>(p.extent("head_dim"))));
    add("mask_batch", 1);
    add("mask_heads", 1);
    add("has_dmask", p.extent("mask_gradient") != 0 && p.extent("bias") != 0 ? 1 : 0);
    add("has_kv_len", p.extent("kv_len_min") >= 0 ? 1 : 0);
    add("has_block_mask", p.parameter("block_density") < 1.0 ? 1 : 0);
    if (const std::int64_t size = p.extent("block_size"); size > 0) {
      add("block_rows", blocks(p.extent("seq_q"), size));
      add("block_columns", blocks(p.extent("seq_kv"), size));
    }
  }

  template <class Exec>
  static const auto& forward_variants(const bench::Problem& p) {
    return variants_of<Exec, ForwardArgs>(rule_of(p), rule_extents(p));
  }
  template <class Exec>
  static const auto& backward_variants(const bench::Problem& p) {
    return variants_of<Exec, BackwardArgs>(rule_of(p), rule_extents(p));
  }
  template <class Exec>
  static void derive(const Exec& exec, const bench::Tensors& t) {
    auto args = bench::arguments<::katt::attention::forward_schema, ForwardArgs>(t);
    args.for_backward = true;
    bench::run_variant(name, exec, forward_variants<Exec>(t.problem()), args, {});
  }

  /// Work depends on what is visible, so on values.
  template <class Args>
  static bench::Work work(const bench::Problem& p, Args args, Backend backend) {
    const auto blocks = p.indices("block_mask");
    const std::vector<std::uint8_t> live(blocks.begin(), blocks.end());
    args.mask.kv_len = p.has("kv_len") ? p.indices("kv_len").data() : nullptr;
    args.mask.block_mask = live.empty() ? nullptr : live.data();
    const std::string ceiling = bench::matrix_ceiling(backend, p.dtype);
    if constexpr (std::is_same_v<Args, BackwardArgs>) {
      return {backward_flops(args), backward_bytes(args), ceiling};
    } else {
      return {forward_flops(args), forward_bytes(args), ceiling};
    }
  }

  static void validate(const bench::Problem& p) {
    const std::int64_t d = p.extent("head_dim"), heads = p.extent("heads");
    if (d % 8 != 0) {
      throw InputError("head_dim " + std::to_string(d) + ": expected a multiple of 8 up to " +
                       std::to_string(max_head_dim));
    }
    if (const std::int64_t kv_heads = p.extent("kv_heads"); heads % kv_heads != 0) {
      throw InputError("kv_heads " + std::to_string(kv_heads) + ": does not divide heads " +
                       std::to_string(heads));
    }
    if (p.extent("kv_len_min") > p.extent("seq_kv")) {
      throw InputError("kv_len_min " + std::to_string(p.extent("kv_len_min")) +
                       ": expected at most seq_kv " + std::to_string(p.extent("seq_kv")));
    }
  }
  static Status supports(const bench::Problem& p) {
    if (p.extent("mask_gradient") == 0) return Status::ok();
    if (!p.backward) return Status::skipped("mask_gradient: the forward pass has no gradients");
    if (p.extent("bias") != 0) return Status::ok();
    return Status::skipped("mask_gradient: there is no additive mask; it needs bias 1");
  }
  static bool is_foreign(const bench::Problem& p) {
    return p.extent("has_block_mask") == 0 && p.extent("mask_gradient") == 0;
  }
  static std::optional<std::filesystem::path> rule_file(const bench::Problem& p);
  static testing::Expected expected(const bench::Problem& p) {
    const HostProblem problem = host_problem(p);
    return p.backward ? expected_gradients(problem, p.dtype) : expected_rows(problem, p.dtype);
  }
  static void read(const io::CaseFile& file, bench::Problem& p);
  /// A score rule of Python (rule_file.hpp).
  static void add_rule(const std::filesystem::path& path);

  /// The problem as the reference reads it; spans of `p`.
  static HostProblem host_problem(const bench::Problem& p);

 private:
  static std::int64_t blocks(std::int64_t length, std::int64_t size) {
    return length / size + (length % size != 0 ? 1 : 0);
  }
  /// The axis holds the place of the rule among all, after "none".
  static RuleExtents rule_extents(const bench::Problem& p) {
    return {p.extent("batch"), p.extent("heads"), p.extent("seq_q"), p.extent("seq_kv")};
  }
  static const NamedRule* rule_of(const bench::Problem& p) {
    const std::int64_t choice = p.extent("score_rule");
    return choice == 0 ? nullptr : &named_rules()[static_cast<std::size_t>(choice - 1)];
  }
};

}  // namespace katt::attention
