// Checks that hold for every operator of the program, found through the registry: kernels and
// allocations carry labels of an operator, a run allocates nothing, waits for nothing and launches
// on its own backend, and the check of its outputs fails for outputs that were not computed.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include <Kokkos_Core.hpp>

#include "op/code.hpp"
#include "op/collective.hpp"
#include "op/registry.hpp"
#include "tests/op/follows_inputs.hpp"
#include "tile/rows/stream.hpp"

namespace katt::bench {
namespace {

bool starts_with(const std::string& text, const std::string& start) {
  return text.compare(0, start.size(), start) == 0;
}

/// Kokkos' reports between start() and stop().
class Recorder {
 public:
  struct Kernel {
    std::string label;
    Kokkos::Tools::Experimental::DeviceType device;
  };
  std::vector<Kernel> kernels;
  std::vector<std::string> allocations;
  std::vector<std::string> fences;

  static void install() {
    using namespace Kokkos::Tools::Experimental;
    const auto kernel = [](const char* label, std::uint32_t device, std::uint64_t* /*id*/) {
      if (current == nullptr) return;
      current->kernels.push_back({label, identifier_from_devid(device).type});
    };
    set_begin_parallel_for_callback(kernel);
    set_begin_parallel_reduce_callback(kernel);
    set_begin_parallel_scan_callback(kernel);
    set_allocate_data_callback(
        [](Kokkos::Tools::SpaceHandle, const char* label, const void*, std::uint64_t bytes) {
          if (current != nullptr && bytes > 0) current->allocations.emplace_back(label);
        });
    set_begin_fence_callback([](const char* label, std::uint32_t, std::uint64_t*) {
      // Kokkos waits before it calls a tool.
      if (current != nullptr && !starts_with(label, "Kokkos::Tools::")) {
        current->fences.emplace_back(label);
      }
    });
  }
  void start() { current = this; }
  static void stop() { current = nullptr; }

 private:
  static inline Recorder* current = nullptr;
};

/// A point of the operator with every extent cut down to 40: a multiple of 8, as a head_dim must
/// be.
Point small_point(const Operator& op, const std::string& pass, Backend backend, Dtype dtype) {
  Point point;
  point.pass = pass;
  point.backend = backend;
  point.threads = 2;
  point.dtype = dtype;
  for (const AxisSpec& axis : op.axes()) {
    AxisValue value = axis.fallback;
    if (auto* integer = std::get_if<std::int64_t>(&value)) {
      const std::int64_t largest =
          std::max<std::int64_t>(40, static_cast<std::int64_t>(axis.minimum));
      *integer = std::min(*integer, largest);
    }
    point.values[axis.name] = value;
  }
  for (const AxisSpec& axis : op.axes()) {
    if (!axis.follows.empty()) point.values[axis.name] = point.values[axis.follows];
  }
  op.validate(point);
  return point;
}

Kokkos::Tools::Experimental::DeviceType device_of(Backend backend) {
  using Kokkos::Tools::Experimental::DeviceType;
  return backend == Backend::cuda ? DeviceType::Cuda : DeviceType::OpenMP;
}

/// "katt::OP::phase"
bool is_label(const std::string& label, const std::string& op) {
  const std::string start = "katt::" + op + "::";
  return starts_with(label, start) && label.size() > start.size();
}

using test::registry;

/// A label of this operator, of one of its parts, or of the code that composes them.
bool is_kernel_label(const std::string& label) {
  return is_label(label, "nn") || std::ranges::any_of(registry().all(), [&](const Operator* op) {
           return is_label(label, op->name());
         });
}

struct OnBackend {
  std::string op;
  Backend backend;
};

std::vector<OnBackend> parameters() {
  std::vector<OnBackend> all;
  for (const Operator* op : registry().all()) {
    if (is_collective(*op))
      continue;  // it waits for ranks; tests/ranks/test_changing_inputs.cpp has it
    for (const Backend backend : all_backends) {
      if (is_built(backend)) all.push_back({op->name(), backend});
    }
  }
  return all;
}

class RegisteredOperator : public ::testing::TestWithParam<OnBackend> {};

void expect_rules(Case& made, const Config& config, const std::string& op, Backend backend) {
  Recorder preparing;
  Recorder running;
  preparing.start();
  const auto candidate = made.prepare(config);
  Recorder::stop();
  for (const std::string& label : preparing.allocations) {
    EXPECT_TRUE(is_label(label, op)) << "allocation " << label;
  }

  candidate->restore();
  candidate->run();  // the first run of an instance also fills Kokkos' own scratch memory
  candidate->poison();
  candidate->fence();
  EXPECT_FALSE(candidate->verify().status.is_ok()) << "outputs of NaN pass the check";

  candidate->restore();
  candidate->fence();
  running.start();
  candidate->run();
  Recorder::stop();
  candidate->fence();
  const Errors errors = candidate->verify();
  EXPECT_TRUE(errors.status.is_ok()) << errors.status.reason();
  EXPECT_FALSE(running.kernels.empty());
  for (const Recorder::Kernel& kernel : running.kernels) {
    EXPECT_TRUE(is_kernel_label(kernel.label)) << "kernel " << kernel.label;
    EXPECT_EQ(kernel.device, device_of(backend)) << "kernel " << kernel.label;
  }
  for (const std::string& label : running.allocations) ADD_FAILURE() << "allocates " << label;
  for (const std::string& label : running.fences) ADD_FAILURE() << "waits: " << label;
}

/// Calls f(case, variant, config) for every variant of a small point of each pass and dtype.
template <class F>
void each_variant(const Operator& op, Backend backend, const F& f) {
  for (const std::string& pass : op.passes()) {
    for (const Dtype dtype : all_dtypes) {
      const Point point = small_point(op, pass, backend, dtype);
      const auto made = op.make_case(point);
      for (const VariantInfo& variant : op.variants(backend, pass)) {
        SCOPED_TRACE(pass + ", " + std::string(name_of(dtype)) + ", " + variant.name);
        f(*made, variant, op.resolve(point, {variant.name, {}}));
      }
    }
  }
}

TEST_P(RegisteredOperator, LabelsWhatItLaunchesAndAllocatesNothing) {
#if defined(KATT_HAS_CUDA)
  if (GetParam().backend == Backend::cuda && Kokkos::num_devices() < 1) {
    GTEST_SKIP() << "skipped: no device";
  }
#endif
  Recorder::install();
  const Operator& op = registry().find(GetParam().op);
  each_variant(op, GetParam().backend,
               [&](Case& made, const VariantInfo& variant, const Config& config) {
                 const Status supported = made.supports(config);
                 if (supported.is_ok()) {
                   expect_rules(made, config, op.name(), GetParam().backend);
                 } else {
                   EXPECT_FALSE(variant.baseline) << supported.reason();
                   EXPECT_FALSE(supported.reason().empty());
                 }
               });
}

TEST_P(RegisteredOperator, FollowsInputsThatChange) {
#if defined(KATT_HAS_CUDA)
  if (GetParam().backend == Backend::cuda && Kokkos::num_devices() < 1) {
    GTEST_SKIP() << "skipped: no device";
  }
#endif
  each_variant(registry().find(GetParam().op), GetParam().backend,
               [](Case& made, const VariantInfo&, const Config& config) {
                 if (!made.supports(config).is_ok()) return;
                 test::expect_to_follow_inputs(made, *made.prepare(config), 3);
               });
}

// A round in which all inputs change begins with them where the output is the input, too.
TEST(InPlace, NewInputsTakeThePlaceOfOutputs) {
  for (const Operator* op : registry().all()) {
    if (op->name() != "rope") continue;
    Point point = small_point(*op, "forward", Backend::openmp, Dtype::f32);
    point.values["in_place"] = std::int64_t{1};
    const auto made = op->make_case(point);
    ASSERT_TRUE(made->runs_in_place());
    const auto candidate = made->prepare({.variant = "fused"});
    candidate->poison();
    for (std::uint64_t round = 0; round < 3; ++round) {
      candidate->run();
      candidate->fence();
      const Errors errors = candidate->verify();
      EXPECT_TRUE(errors.status.is_ok()) << errors.status.reason();
      EXPECT_TRUE(made->change(round, false).empty())
          << "a part of them would be lost in the outputs";
      candidate->inputs_changed(made->change(round, true), true);
    }
  }
}

TEST_P(RegisteredOperator, AutoIsAVariantThatRuns) {
  const Operator& op = registry().find(GetParam().op);
  for (const std::string& pass : op.passes()) {
    for (const Dtype dtype : all_dtypes) {
      const Point point = small_point(op, pass, GetParam().backend, dtype);
      const Config config = op.resolve(point, {});
      const auto variants = op.variants(point.backend, pass);
      const auto chosen = std::ranges::find(variants, config.variant, &VariantInfo::name);
      ASSERT_NE(chosen, variants.end()) << config.variant;
      // Naive is the fastest of these: backward from stored logits, which it alone reads; a norm of few tokens
      // before their product, a launch less than statistics, packing and the product; attention in f32 on a device,
      // whose products are cuBLAS' there.
      const bool is_naive_fastest = (op.name() == "linear_cross_entropy" && pass == "backward") ||
                                    op.name() == "rmsnorm_linear" ||
                                    (op.name() == "attention" && pass == "forward" &&
                                     point.backend == Backend::cuda && dtype == Dtype::f32);
      EXPECT_EQ(chosen->baseline, is_naive_fastest) << pass << ": " << config.variant;
      EXPECT_EQ(config.setting.size(), chosen->parameters.size()) << config.variant;
    }
  }
}

// A row without it counts as stale for ever.
TEST(Code, EveryVariantHasIt) {
  if (impl::code_table().codes.empty()) GTEST_SKIP() << "no Python, no nm";
  for (const Operator* op : registry().all()) {
    for (const std::string& pass : op->passes()) {
      for (const VariantInfo& variant : op->variants(Backend::openmp, pass)) {
        EXPECT_NE(find_code(op->name(), pass, variant.name), nullptr)
            << op->name() << " " << pass << " " << variant.name;
      }
    }
  }
}

// Stores go past the caches where the output is larger than them and is not the input.
TEST(Auto, DependsOnSizeAndPlace) {
  for (const Operator* op : registry().all()) {
    if (op->name() != "rope") continue;
    const auto chosen = [&](std::int64_t seq, std::int64_t in_place) {
      Point point = small_point(*op, "forward", Backend::serial, Dtype::f32);
      point.values["seq_q"] = seq;
      point.values["in_place"] = in_place;
      return op->resolve(point, {}).variant;
    };
    EXPECT_EQ(chosen(16, 0), "fused");
    EXPECT_EQ(chosen(std::int64_t{1} << 20, 1), "fused");
    EXPECT_EQ(chosen(std::int64_t{1} << 20, 0), tile::can_stream_v<Host> ? "stream" : "fused");
  }
}

INSTANTIATE_TEST_SUITE_P(All, RegisteredOperator, ::testing::ValuesIn(parameters()),
                         [](const ::testing::TestParamInfo<OnBackend>& info) {
                           return info.param.op + "_" + std::string(name_of(info.param.backend));
                         });

}  // namespace
}  // namespace katt::bench
