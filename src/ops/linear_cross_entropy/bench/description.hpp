#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "io/hdf5/case_file.hpp"
#include "op/reference/expected.hpp"
#include "op/reference/of_each.hpp"
#include "op/reference/sample.hpp"
#include "op/tensors.hpp"
#include "ops/linear_cross_entropy/linear_cross_entropy.hpp"
#include "ops/linear_cross_entropy/linear_cross_entropy_ref.hpp"
#include "ops/linear_cross_entropy/schema.hpp"

namespace katt::linear_cross_entropy {

/// The operator as sweeps, `katt run` and the tests see it (op/description/describe.hpp).
struct Description {
  KATT_PASSES_OF(linear_cross_entropy)
  static constexpr const char* summary = "cross-entropy of hidden · weightᵀ without stored logits";
  static constexpr bool is_product = true;

  static std::vector<bench::AxisSpec> axes() {
    return {bench::integer_axis("tokens", 1024, 1, "rows of hidden"),
            bench::integer_axis("hidden", 1024, 1, "columns of hidden"),
            bench::integer_axis("vocab", 32000, 1, "rows of the weight")};
  }

  static void complete(bench::Problem& p) { p.extents["logits"] = p.backward ? 1 : 0; }

  template <class Exec>
  static void derive(const Exec& exec, const bench::Tensors& t) {
    const bench::Tensor<1> loss("katt::linear_cross_entropy::loss", backend_of<Exec>(), Dtype::f32,
                                {1});
    const TensorRef<2> of_reference = t.matrix("reference_statistics");
    auto args = bench::arguments<::katt::linear_cross_entropy::forward_schema, ForwardArgs>(t);
    args.loss = loss.ref();
    if (of_reference) args.statistics = of_reference;
    const std::string_view variant = args.logits ? "naive" : auto_variant;
    bench::run_variant(name, exec, forward_variants<Exec>(), args, {std::string(variant), {}});
  }

  static HostProblem host(const bench::Problem& p) {
    return {.tokens = p.extent("tokens"),
            .hidden_size = p.extent("hidden"),
            .vocab = p.extent("vocab"),
            .hidden = p.floats("hidden"),
            .weight = p.floats("weight"),
            .targets = p.indices("targets")};
  }

  /// Rows of the gradients; of the forward pass what compare() reads: lse and target's logit of some
  /// tokens.
  static testing::Expected expected(const bench::Problem& problem) {
    const HostProblem p = host(problem);
    const Precision unfused{false, problem.dtype};
    const double row = static_cast<double>(p.hidden_size);
    const auto tokens = testing::sample(p.tokens, 3e7 / (row * static_cast<double>(p.vocab)));
    // Rows `rows` of an output, each computed twice.
    const auto part_of = [&](const char* output, const std::vector<std::int64_t>& rows,
                             std::int64_t columns, const auto& reference) {
      testing::ExpectedPart part{output};
      const auto exact =
          testing::of_each(rows, [&](std::int64_t r) { return reference(r, Precision{}); });
      const auto rounded =
          testing::of_each(rows, [&](std::int64_t r) { return reference(r, unfused); });
      for (std::size_t i = 0; i < rows.size(); ++i)
        part.add(rows[i] * columns, exact[i], rounded[i]);
      return part;
    };
    if (!problem.backward) {
      const auto counted = [&](std::int64_t t) { return target_of(p, t) != p.ignore_index; };
      return {part_of("lse", tokens, 1,
                      [&](std::int64_t t, const Precision& precision) {
                        return std::vector{reference_lse(p, t, precision)};
                      }),
              part_of("logit", tokens, 1, [&](std::int64_t t, const Precision& precision) {
                return std::vector{counted(t) ? reference_logit(p, t, target_of(p, t), precision)
                                              : 0.0};
              })};
    }
    auto columns = testing::sample(p.vocab, 3e7 / (row * static_cast<double>(p.tokens)));
    // Rows of dweight that are targets differ from the others.
    for (std::int64_t t = 0; t < std::min<std::int64_t>(4, p.tokens); ++t) {
      if (target_of(p, t) != p.ignore_index) columns.push_back(target_of(p, t));
    }
    const std::vector<double> lse = lse_of(problem, problem.floats("reference_statistics"));
    return {
        part_of("dhidden", tokens, p.hidden_size,
                [&](std::int64_t t, const Precision& precision) {
                  return reference_dhidden(p, t, precision);
                }),
        part_of("dweight", columns, p.hidden_size, [&](std::int64_t v, const Precision& precision) {
          return reference_dweight(p, v, lse, precision);
        })};
  }

  /// The loss is the mean of all tokens, from statistics of which a sample vouches for the others.
  static void compare(const bench::Problem& problem, const testing::Expected& expected,
                      const bench::HostValues& made, testing::Comparison& reported,
                      testing::Comparison& unreported) {
    if (problem.backward) return;
    const HostProblem p = host(problem);
    double error = 0;
    double scale = 1;
    for (const testing::ExpectedPart& part : expected) {
      for (const auto& value : part.values) {
        error = std::max(error, std::abs(value.unfused - value.exact));
      }
    }
    for (const auto& value : expected[0].values) scale = std::max(scale, std::abs(value.exact));
    const double limit = 2 * error + 16 * 0x1p-23 * scale;
    const auto statistics = made.find("statistics");
    const auto lse =
        lse_of(problem, statistics != made.end() ? std::span<const float>(statistics->second)
                                                 : problem.floats("reference_statistics"));
    for (const auto& value : expected[0].values) {
      if (target_of(p, value.index) == p.ignore_index) continue;
      unreported.add("lse", {value.index}, lse[static_cast<std::size_t>(value.index)], value.exact,
                     limit);
    }
    double sum = 0;
    double count = 0;
    for (std::int64_t t = 0; t < p.tokens; ++t) {
      if (target_of(p, t) == p.ignore_index) continue;
      sum += lse[static_cast<std::size_t>(t)] - reference_logit(p, t, target_of(p, t));
      count += 1;
    }
    reported.add("loss", {0}, made.find("loss")->second[0], sum / count, 2 * limit);
  }

  static void read(const io::CaseFile& file, const bench::Problem& problem) {
    const HostProblem p = host(problem);
    if (p.vocab < 1) file.reject("weight", "holds no rows, expected at least 1");
    for (const std::int64_t target : p.targets) {
      if (target != p.ignore_index && (target < 0 || target >= p.vocab)) {
        file.reject("targets", "holds " + std::to_string(target) + ", expected 0 to " +
                                   std::to_string(p.vocab - 1) + " or " +
                                   std::to_string(p.ignore_index));
      }
    }
  }

 private:
  static std::int64_t target_of(const HostProblem& p, std::int64_t token) {
    return p.targets[static_cast<std::size_t>(token)];
  }
  /// log Σ exp of every token, from its max and log Σ; the reference computes it where there are none.
  static std::vector<double> lse_of(const bench::Problem& problem,
                                    std::span<const float> statistics) {
    std::vector<double> lse(static_cast<std::size_t>(problem.extent("tokens")));
    for (std::size_t t = 0; t < lse.size(); ++t) {
      lse[t] = statistics.empty() ? reference_lse(host(problem), static_cast<std::int64_t>(t))
                                  : static_cast<double>(statistics[2 * t]) + statistics[2 * t + 1];
    }
    return lse;
  }
};

}  // namespace katt::linear_cross_entropy
