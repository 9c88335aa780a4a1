#include <memory>
#include <string>
#include <vector>

#include "bench/matrix_operator.hpp"
#include "ops/swiglu/swiglu.hpp"
#include "ops/swiglu/swiglu_ref.hpp"
#include "testing/sample.hpp"

namespace katt::swiglu {

namespace {

using bench::MatrixSpec;

struct Description {
  static constexpr const char* name = "swiglu";
  static constexpr const char* summary = "silu(gate) · up";

  static std::vector<bench::AxisSpec> axes() {
    return {bench::integer_axis("tokens", 1024, 1, "rows"),
            bench::integer_axis("intermediate", 4096, 1, "columns")};
  }

  static MatrixSpec tensor(const char* name) {
    return {.name = name, .axes = {"tokens", "intermediate"}, .letters = "(T, F)"};
  }
  static std::vector<MatrixSpec> inputs() { return {tensor("gate"), tensor("up")}; }
  static std::vector<MatrixSpec> outputs() { return {tensor("out")}; }
  static std::vector<MatrixSpec> gradients() { return {tensor("dgate"), tensor("dup")}; }

  static ForwardArgs forward_args(const bench::MatrixRefs& refs) {
    return {.gate = refs.matrix("gate"), .up = refs.matrix("up"), .out = refs.matrix("out")};
  }
  static BackwardArgs backward_args(const bench::MatrixRefs& refs) {
    return {.gate = refs.matrix("gate"),
            .up = refs.matrix("up"),
            .dout = refs.matrix("dout"),
            .dgate = refs.matrix("dgate"),
            .dup = refs.matrix("dup")};
  }
  template <class Exec>
  static auto& forward_variants() {
    return swiglu::forward_variants<Exec>();
  }
  template <class Exec>
  static auto& backward_variants() {
    return swiglu::backward_variants<Exec>();
  }

  static bench::Work work(const ForwardArgs& args, Backend /*backend*/) {
    return {forward_flops(args), forward_bytes(args), "", "copy"};
  }
  static bench::Work work(const BackwardArgs& args, Backend /*backend*/) {
    return {backward_flops(args), backward_bytes(args), "", "copy"};
  }

  static bench::Expected expected(const bench::HostValues& values, const bench::Extents& extents,
                                  Dtype dtype, bool backward) {
    const std::vector<float>& gate = values.find("gate")->second;
    const std::vector<float>& up = values.find("up")->second;
    const auto dout = values.find("dout");
    const std::int64_t columns = extents.find("intermediate")->second;
    bench::Expected result;
    for (const std::int64_t row :
         testing::sample(extents.find("tokens")->second, 1e6 / static_cast<double>(columns))) {
      for (std::int64_t i = row * columns; i < (row + 1) * columns; ++i) {
        const auto at = static_cast<std::size_t>(i);
        const float d = backward ? dout->second[at] : 0.0F;
        const ReferenceElement exact = reference_element(gate[at], up[at], d);
        const ReferenceElement unfused = unfused_element(gate[at], up[at], d, dtype);
        if (backward) {
          result["dgate"].push_back({i, exact.dgate, unfused.dgate});
          result["dup"].push_back({i, exact.dup, unfused.dup});
        } else {
          result["out"].push_back({i, exact.out, unfused.out});
        }
      }
    }
    return result;
  }
};

}  // namespace

void register_op(bench::Registry& registry) {
  registry.add(std::make_unique<bench::MatrixOperator<Description>>());
}

}  // namespace katt::swiglu
