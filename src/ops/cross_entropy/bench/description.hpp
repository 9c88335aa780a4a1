#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "io/hdf5/case_file.hpp"
#include "op/reference/expected.hpp"
#include "op/reference/sample.hpp"
#include "op/tensors.hpp"
#include "ops/cross_entropy/cross_entropy.hpp"
#include "ops/cross_entropy/cross_entropy_ref.hpp"
#include "ops/cross_entropy/schema.hpp"

namespace katt::cross_entropy {

/// The operator as sweeps, `katt run` and the tests see it (op/description/describe.hpp).
struct Description {
  KATT_PASSES_OF(cross_entropy)
  static constexpr const char* summary =
      "mean of log Σ exp(logits) − logits[target] over the tokens";

  static std::vector<bench::AxisSpec> axes() {
    return {bench::integer_axis("tokens", 1024, 1, "rows of the logits"),
            bench::integer_axis("vocab", 32000, 1, "classes")};
  }

  template <class Exec>
  static void derive(const Exec& exec, const bench::Tensors& t) {
    const bench::Tensor<1> loss("katt::cross_entropy::loss", backend_of<Exec>(), Dtype::f32, {1});
    auto args = bench::arguments<::katt::cross_entropy::forward_schema, ForwardArgs>(t);
    args.loss = loss.ref();
    bench::run_variant(name, exec, forward_variants<Exec>(), args, {});
  }
  static bench::Work work(const ForwardArgs& args, Backend /*backend*/) {
    return {forward_flops(args), forward_bytes(args), "", "read"};
  }
  static bench::Work work(const BackwardArgs& args, Backend /*backend*/) {
    return {backward_flops(args), backward_bytes(args), "", "copy"};
  }

  static HostProblem host(const bench::Problem& p) {
    return {.tokens = p.extent("tokens"),
            .vocab = p.extent("vocab"),
            .logits = p.floats("logits"),
            .targets = p.indices("targets")};
  }
  static double target_logit(const HostProblem& p, std::int64_t token) {
    return p.logits[static_cast<std::size_t>(token * p.vocab +
                                             p.targets[static_cast<std::size_t>(token)])];
  }

  /// dlogits; of the forward pass what compare() reads: lse and loss of some tokens.
  static testing::Expected expected(const bench::Problem& problem) {
    const HostProblem p = host(problem);
    testing::ExpectedPart dlogits{"dlogits"};
    testing::ExpectedPart lse{"lse"};
    testing::ExpectedPart losses{"losses"};
    for (const std::int64_t t : testing::sample(p.tokens, 4e6 / static_cast<double>(p.vocab))) {
      const UnfusedToken unfused = unfused_token(p, t, problem.dtype);
      if (problem.backward) {
        dlogits.add(t * p.vocab, reference_dlogits(p, t), unfused.dlogits);
      } else {
        lse.values.push_back({t, reference_lse(p, t), 0});
        losses.values.push_back({t, lse.values.back().exact - target_logit(p, t), unfused.loss});
      }
    }
    return problem.backward ? testing::Expected{dlogits} : testing::Expected{lse, losses};
  }

  /// The loss is the mean of all tokens: from statistics, of which a sample vouches for the others,
  /// or from the reference of every token where another program made it.
  static void compare(const bench::Problem& problem, const testing::Expected& expected,
                      const bench::HostValues& made, testing::Comparison& reported,
                      testing::Comparison& unreported) {
    if (problem.backward) return;
    const HostProblem p = host(problem);
    double scale = 1;
    double loss_error = 0;
    for (const auto& value : expected[0].values) scale = std::max(scale, std::abs(value.exact));
    for (const auto& value : expected[1].values) {
      loss_error = std::max(loss_error, std::abs(value.unfused - value.exact));
    }
    const double limit = 16 * 0x1p-23 * scale;
    const auto statistics = made.find("statistics");
    const auto lse = [&](std::int64_t t) {
      if (statistics == made.end()) return reference_lse(p, t);
      const auto at = static_cast<std::size_t>(2 * t);
      return static_cast<double>(statistics->second[at]) + statistics->second[at + 1];
    };
    for (const auto& value : expected[0].values) {
      unreported.add("lse", {value.index}, lse(value.index), value.exact, limit);
    }
    double sum = 0;
    for (std::int64_t t = 0; t < p.tokens; ++t) sum += lse(t) - target_logit(p, t);
    reported.add("loss", {0}, made.find("loss")->second[0], sum / static_cast<double>(p.tokens),
                 2 * loss_error + limit);
  }

  static void read(const io::CaseFile& file, const bench::Problem& problem) {
    const HostProblem p = host(problem);
    if (p.vocab < 1) file.reject("logits", "holds no classes, expected at least 1");
    for (const std::int64_t target : p.targets) {
      if (target != p.ignore_index && (target < 0 || target >= p.vocab)) {
        file.reject("targets", "holds " + std::to_string(target) + ", expected 0 to " +
                                   std::to_string(p.vocab - 1) + " or " +
                                   std::to_string(p.ignore_index));
      }
    }
  }
};

}  // namespace katt::cross_entropy
