#include <memory>
#include <span>
#include <string>
#include <vector>

#include "bench/matrix_operator.hpp"
#include "ops/softmax/softmax.hpp"
#include "ops/softmax/softmax_ref.hpp"
#include "testing/sample.hpp"

namespace katt::softmax {

namespace {

using bench::MatrixSpec;

MatrixSpec matrix(const char* name, float scale = 1.0F) {
  return {.name = name, .axes = {"tokens", "vocab"}, .letters = "(T, V)", .scale = scale};
}

struct Description {
  static constexpr const char* name = "softmax";
  static constexpr const char* summary = "softmax of the rows of a matrix";

  static std::vector<bench::AxisSpec> axes() {
    return {bench::integer_axis("tokens", 1024, 1, "rows"),
            bench::integer_axis("vocab", 32000, 1, "columns")};
  }
  static std::vector<MatrixSpec> inputs() { return {matrix("x", 3.0F)}; }
  static std::vector<MatrixSpec> outputs() { return {matrix("out")}; }
  static std::vector<MatrixSpec> gradients() { return {matrix("dx")}; }

  static ForwardArgs forward_args(const bench::MatrixRefs& refs) {
    return {.x = refs.matrix("x"), .out = refs.matrix("out")};
  }
  static BackwardArgs backward_args(const bench::MatrixRefs& refs) {
    return {.x = refs.matrix("x"), .dout = refs.matrix("dout"), .dx = refs.matrix("dx")};
  }
  template <class Exec>
  static auto& forward_variants() {
    return softmax::forward_variants<Exec>();
  }
  template <class Exec>
  static auto& backward_variants() {
    return softmax::backward_variants<Exec>();
  }

  static bench::Work work(const ForwardArgs& args, Backend /*backend*/) {
    return {forward_flops(args), forward_bytes(args), "", "copy"};
  }
  static bench::Work work(const BackwardArgs& args, Backend /*backend*/) {
    return {backward_flops(args), backward_bytes(args), "", "copy"};
  }

  static bench::Expected expected(const bench::HostValues& values, const bench::Extents& extents,
                                  Dtype dtype, bool backward) {
    const std::int64_t rows = extents.find("tokens")->second;
    const std::int64_t columns = extents.find("vocab")->second;
    bench::Expected result;
    auto& list = result[backward ? "dx" : "out"];
    for (const std::int64_t row : testing::sample(rows, 2e6 / static_cast<double>(columns))) {
      const auto part = [&](const char* tensor) {
        return std::span<const float>(values.find(tensor)->second)
            .subspan(static_cast<std::size_t>(row * columns), static_cast<std::size_t>(columns));
      };
      const auto exact =
          backward ? reference_gradient(part("x"), part("dout")) : reference_row(part("x"));
      const auto unfused = backward ? unfused_gradient(part("x"), part("dout"), dtype)
                                    : unfused_row(part("x"), dtype);
      for (std::size_t c = 0; c < exact.size(); ++c) {
        list.push_back({row * columns + static_cast<std::int64_t>(c), exact[c], unfused[c]});
      }
    }
    return result;
  }
};

}  // namespace

void register_op(bench::Registry& registry) {
  registry.add(std::make_unique<bench::MatrixOperator<Description>>());
}

}  // namespace katt::softmax
