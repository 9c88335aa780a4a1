// The memory that attention is said to need against the memory that Kokkos reports.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "memory/tracker.hpp"
#include "ops/attention/memory.hpp"
#include "tests/ops/attention_case.hpp"
#include "tests/ops/attention_problems.hpp"

namespace katt::attention {
namespace {

using Exec = Kokkos::DefaultExecutionSpace;
constexpr Backend backend = backend_of<Exec>();

void expect_close(std::size_t estimate, std::size_t measured, const std::string& what) {
  EXPECT_NEAR(static_cast<double>(estimate), static_cast<double>(measured),
              0.05 * static_cast<double>(measured))
      << what;
}

/// Peak bytes of everything that one forward pass allocates.
std::size_t measured_forward(const ProblemData& data, const Config& config) {
  const memory::Scope scope;
  const DeviceProblem problem(data, backend, HeadLayout::bhsd);
  const DeviceOutput output(data.shape, data.dtype, backend, HeadLayout::bhsd);
  run_forward(problem, output, config, backend);
  return scope.peak_bytes();
}

std::size_t measured_backward(const ProblemData& data, const Config& config) {
  const memory::Scope scope;
  const Exec exec;
  const DeviceProblem problem(data, backend, HeadLayout::bhsd);
  const DeviceOutput forward(data.shape, data.dtype, backend, HeadLayout::bhsd);
  const bench::Tensor<4> dout("dout", backend, data.dtype, forward.out.ref().extent,
                              HeadLayout::bhsd);
  const DeviceGradients gradients(data.shape, data.dtype, backend, HeadLayout::bhsd);
  const BackwardArgs args = backward_args(problem.args(), forward, dout, gradients);
  const bench::Buffer workspace("workspace", backend, workspace_bytes(exec, args, config));
  return scope.peak_bytes();
}

class AttentionMemory : public ::testing::TestWithParam<Dtype> {
 protected:
  static void SetUpTestSuite() { memory::install(); }
};

TEST_P(AttentionMemory, EstimateIsWithinFivePercentOfThePeak) {
  const std::vector<Shape> large{
      {1, 8, 2, 509, 509, 64}, {2, 4, 4, 128, 700, 128}, {1, 2, 1, 1, 4099, 72}};
  const std::vector<Shape> small{
      {1, 8, 2, 125, 125, 64}, {2, 4, 4, 40, 180, 128}, {1, 2, 1, 1, 1031, 72}};
  for (const auto& [shape, mask] : with_masks(test::device_is_emulated() ? small : large)) {
    auto data = make_problem(shape, GetParam());
    mask.apply(*data);
    data->link();
    const DeviceProblem problem(*data, backend, HeadLayout::bhsd);
    const DeviceOutput output(data->shape, data->dtype, backend, HeadLayout::bhsd);
    const DeviceGradients gradients(data->shape, data->dtype, backend, HeadLayout::bhsd);
    const bench::Tensor<4> dout("dout", backend, data->dtype, output.out.ref().extent,
                                HeadLayout::bhsd);
    ForwardArgs args = problem.args();
    args.out = output.out.ref();
    args.lse = output.lse.ref();
    for (const std::string variant : {"naive", "flash", "auto"}) {
      expect_close(estimate_memory(Exec(), args, {variant, {}}).total(),
                   measured_forward(*data, {variant, {}}),
                   describe(shape) + ", " + mask.name + ", " + variant + " forward");
    }
    const BackwardArgs back = backward_args(problem.args(), output, dout, gradients);
    for (const std::string variant : {"naive", "flash", "auto"}) {
      expect_close(estimate_memory(Exec(), back, {variant, {}}).total(),
                   measured_backward(*data, {variant, {}}),
                   describe(shape) + ", " + mask.name + ", " + variant + " backward");
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Dtypes, AttentionMemory,
                         ::testing::Values(Dtype::f32, Dtype::f16, Dtype::bf16),
                         [](const ::testing::TestParamInfo<Dtype>& info) {
                           return std::string(name_of(info.param));
                         });

}  // namespace
}  // namespace katt::attention
