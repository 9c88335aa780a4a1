#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "bench/ceilings.hpp"
#include "bench/matrix_operator.hpp"
#include "ops/linear/linear.hpp"
#include "ops/linear/linear_ref.hpp"
#include "testing/sample.hpp"

namespace katt::linear {

namespace {

using bench::MatrixSpec;

struct Description {
  static constexpr const char* name = "linear";
  static constexpr const char* summary = "x · weightᵀ + bias";

  static std::vector<bench::AxisSpec> axes() {
    return {bench::integer_axis("tokens", 1024, 1, "rows of x"),
            bench::integer_axis("in_features", 1024, 1, "columns of x"),
            bench::integer_axis("out_features", 1024, 1, "columns of out"),
            bench::integer_axis("bias", 1, 0, "1: with a bias", 1)};
  }

  static std::vector<MatrixSpec> inputs() {
    return {{.name = "x", .axes = {"tokens", "in_features"}, .letters = "(T, I)"},
            {.name = "weight",
             .axes = {"out_features", "in_features"},
             .letters = "(O, I)",
             .scale = 0.03125F},
            {.name = "bias", .axes = {"out_features"}, .letters = "(O)", .optional = true}};
  }
  static std::vector<MatrixSpec> outputs() {
    return {{.name = "out", .axes = {"tokens", "out_features"}, .letters = "(T, O)"}};
  }
  static std::vector<MatrixSpec> gradients() {
    return {{.name = "dx", .axes = {"tokens", "in_features"}, .letters = "(T, I)"},
            {.name = "dweight", .axes = {"out_features", "in_features"}, .letters = "(O, I)"},
            {.name = "dbias", .axes = {"out_features"}, .letters = "(O)"}};
  }

  static ForwardArgs forward_args(const bench::MatrixRefs& refs) {
    return {.x = refs.matrix("x"),
            .weight = refs.matrix("weight"),
            .bias = refs.vector("bias"),
            .out = refs.matrix("out")};
  }
  static BackwardArgs backward_args(const bench::MatrixRefs& refs) {
    return {.x = refs.matrix("x"),
            .weight = refs.matrix("weight"),
            .dout = refs.matrix("dout"),
            .dx = refs.matrix("dx"),
            .dweight = refs.matrix("dweight"),
            .dbias = refs.vector("dbias")};
  }
  template <class Exec>
  static auto& forward_variants() {
    return linear::forward_variants<Exec>();
  }
  template <class Exec>
  static auto& backward_variants() {
    return linear::backward_variants<Exec>();
  }

  static bench::Work work(const ForwardArgs& args, Backend backend) {
    return {forward_flops(args), forward_bytes(args), bench::matrix_ceiling(backend, args.x.dtype)};
  }
  static bench::Work work(const BackwardArgs& args, Backend backend) {
    return {backward_flops(args), backward_bytes(args),
            bench::matrix_ceiling(backend, args.x.dtype)};
  }

  static bench::Expected expected(const bench::HostValues& values, const bench::Extents& extents,
                                  Dtype dtype, bool backward) {
    const auto span = [&](const char* tensor) {
      const auto found = values.find(tensor);
      return found == values.end() ? std::span<const float>{}
                                   : std::span<const float>(found->second);
    };
    const HostProblem p{.tokens = extents.find("tokens")->second,
                        .in_features = extents.find("in_features")->second,
                        .out_features = extents.find("out_features")->second,
                        .x = span("x"),
                        .weight = span("weight"),
                        .bias = span("bias"),
                        .dout = span("dout")};
    bench::Expected result;
    // Elements of a rows × columns output, each a sum over `terms`.
    const auto add = [&](const char* output, std::int64_t rows, std::int64_t columns,
                         std::int64_t terms, const auto& reference) {
      for (const std::int64_t index :
           testing::sample(rows * columns, 1e7 / static_cast<double>(terms + 1))) {
        const ReferenceValue value = reference(index / columns, index % columns);
        result[output].push_back({index, value.exact, value.unfused});
      }
    };
    if (!backward) {
      add("out", p.tokens, p.out_features, p.in_features,
          [&](std::int64_t t, std::int64_t o) { return reference_out(p, t, o, dtype); });
      return result;
    }
    add("dx", p.tokens, p.in_features, p.out_features,
        [&](std::int64_t t, std::int64_t i) { return reference_dx(p, t, i, dtype); });
    add("dweight", p.out_features, p.in_features, p.tokens,
        [&](std::int64_t o, std::int64_t i) { return reference_dweight(p, o, i, dtype); });
    add("dbias", 1, p.out_features, p.tokens,
        [&](std::int64_t, std::int64_t o) { return reference_dbias(p, o, dtype); });
    return result;
  }
};

}  // namespace

void register_op(bench::Registry& registry) {
  registry.add(std::make_unique<bench::MatrixOperator<Description>>());
}

}  // namespace katt::linear
