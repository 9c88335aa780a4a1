#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "ops/attention/decode/paged.hpp"
#include "tests/ops/attention_pages.hpp"
#include "tests/ops/attention_problems.hpp"
#if defined(KATT_HAS_CUDA)
#include "nn/inference/cuda_graph.hpp"
#endif

namespace katt::attention {
namespace {

using DefaultExec = Kokkos::DefaultExecutionSpace;
constexpr Backend backend = backend_of<DefaultExec>();

Outputs run_paged(const ProblemData& data, std::int64_t page_size, const Config& config,
                  HeadLayout layout = HeadLayout::bhsd) {
  const Pages pages(data, backend, page_size, layout);
  return run_problem(data, backend, HeadLayout::bhsd, [&](const ForwardArgs& args) {
    run_pass(DefaultExec(), pages.args(args), config);
  });
}

class AttentionDecode : public ::testing::TestWithParam<Dtype> {};

TEST_P(AttentionDecode, MatchesReferenceForEveryShapeMaskTileAndLayout) {
  for (const auto& [shape, mask] : with_masks(decode_shapes)) {
    const auto data = make_problem(shape, GetParam(), mask);
    const std::string what = describe(shape) + ", " + mask.name;
    expect_reference(*data, run_forward(DefaultExec(), *data, {"decode", {64, 128}}), what);
    expect_reference(*data, run_forward(DefaultExec(), *data, {"decode", {}}, HeadLayout::bshd),
                     what + ", bshd");
  }
}

TEST_P(AttentionDecode, PagedMatchesReference) {
  for (std::size_t i = 0; i < decode_shapes.size(); ++i) {
    const Shape& shape = decode_shapes[i];
    for (const std::size_t mask : {0, 1, 2, 4, 7, 9, 10}) {
      if (!test::is_tried(mask, i, decode_shapes.size())) continue;
      const auto data = make_problem(shape, GetParam(), masks[mask]);
      for (const std::int64_t page_size : {1, 7, 16, 64}) {
        const std::string what =
            describe(shape) + ", " + masks[mask].name + ", pages of " + std::to_string(page_size);
        expect_reference(*data, run_paged(*data, page_size, {"decode", {64, 128}}), what);
      }
      expect_reference(*data, run_paged(*data, 16, {"decode", {}}, HeadLayout::bshd), "bshd pages");
    }
  }
}

TEST_P(AttentionDecode, HoldsForLargeScores) {
  // Scores of about ±10^4, in several splits.
  auto data = make_problem({1, 12, 2, 1, 300, 64}, GetParam(), 3, 40.0F);
  data->shape.scale = 1.0;
  const Outputs result = run_forward(DefaultExec(), *data, {"decode", {64, 128}});
  expect_finite(result);
  expect_reference(*data, result, "large scores");
}

INSTANTIATE_TEST_SUITE_P(Dtypes, AttentionDecode, ::testing::ValuesIn(all_dtypes),
                         [](const auto& info) { return std::string(name_of(info.param)); });

TEST(AttentionDecodeBits, DoNotDependOnTheThreads) {
  auto data = make_problem({2, 8, 2, 1, 1000, 64}, Dtype::bf16);
  const Config config{"decode", {64, 128}};
  const Outputs serial = run_forward(serial_host(), *data, config);
#if defined(KOKKOS_ENABLE_OPENMP)
  for (const int threads : {1, 2}) {
    EXPECT_TRUE(run_forward(Kokkos::OpenMP(threads), *data, config) == serial) << threads;
  }
#endif
  EXPECT_TRUE(run_forward(serial_host(), *data, config) == serial);
}

TEST(AttentionDecodePages, OfWholeTilesGiveTheBitsOfContiguousKeys) {
  auto data = make_problem({2, 8, 2, 3, 401, 96}, Dtype::f16);
  data->shape.causal = true;
  data->kv_len = {401, 77};
  data->link();
  const Config config{"decode", {64, 128}};
  EXPECT_TRUE(run_paged(*data, 64, config) == run_forward(DefaultExec(), *data, config));
}

/// A dense tensor between guards that nobody may write.
template <int Rank>
struct Guarded {
  static constexpr std::int64_t guard = 64;
  static constexpr float mark = 3.0F;
  bench::Tensor<1> memory;
  TensorRef<Rank> ref;

  Guarded(Backend backend, Dtype dtype, const std::array<std::int64_t, Rank>& extent) {
    std::int64_t size = 1;
    for (const std::int64_t n : extent) size *= n;
    memory = {"guarded", backend, dtype, {size + 2 * guard}};
    std::vector<float> values(static_cast<std::size_t>(size + 2 * guard), mark);
    std::fill_n(values.begin() + guard, size, std::numeric_limits<float>::quiet_NaN());
    memory.upload(values);
    ref = {static_cast<std::byte*>(memory.ref().data) + guard * size_of(dtype), dtype, extent};
  }
  /// The tensor; a changed guard is a failure of the test.
  std::vector<float> download() const {
    const std::vector<float> all = memory.download();
    const auto is_mark = [](float value) { return value == mark; };
    EXPECT_TRUE(std::all_of(all.begin(), all.begin() + guard, is_mark)) << "written before it";
    EXPECT_TRUE(std::all_of(all.end() - guard, all.end(), is_mark)) << "written behind it";
    return {all.begin() + guard, all.end() - guard};
  }
};

TEST(AttentionDecodePages, OfManySequencesAndHeadsLeaveTheMemoryBesideTheOutputsAlone) {
  auto data = make_problem({256, 32, 8, 1, 40, 128}, Dtype::bf16);
  for (std::int64_t b = 0; b < 256; ++b) data->kv_len.push_back(b * 29 % 41);
  data->link();
  const HostProblem& s = data->shape;
  const DeviceProblem problem(*data, backend);
  const Guarded<4> out(backend, data->dtype, {s.batch, s.heads, s.seq_q, s.head_dim});
  const Guarded<3> lse(backend, Dtype::f32, {s.batch, s.heads, s.seq_q});
  for (const std::int64_t page_size : {16, 40}) {
    const Pages pages(*data, backend, page_size, HeadLayout::bhsd);
    PagedArgs args = pages.args(problem.args());
    args.out = out.ref;
    args.lse = lse.ref;
    run_pass(DefaultExec(), args, {"decode", {}});
    expect_reference(*data, {out.download(), lse.download()}, std::to_string(page_size));
  }
}

/// A dense tensor one element behind a multiple of 16 bytes.
struct Shifted {
  bench::Tensor<1> memory;
  ConstTensorRef<4> ref;

  Shifted(std::vector<float> values, Backend backend, Dtype dtype,
          const std::array<std::int64_t, 4>& extent)
      : memory("shifted", backend, dtype, {static_cast<std::int64_t>(values.size()) + 1}) {
    values.insert(values.begin(), 0.0F);
    memory.upload(values);
    ref = {static_cast<const std::byte*>(memory.ref().data) + size_of(dtype), dtype, extent};
  }
};

/// The same bits, or on a device whose tensor cores take aligned rows alone, results within the
/// allowed error.
void expect_same(const ProblemData& data, const Outputs& result, const Outputs& aligned) {
  if (is_host_v<DefaultExec> || data.dtype == Dtype::f32) {
    EXPECT_TRUE(result == aligned) << name_of(data.dtype);
  } else {
    expect_reference(data, result, "shifted");
  }
}

TEST(AttentionDecodeBits, DoNotDependOnTheAlignment) {
  const DefaultExec exec;
  const Config config{"decode", {64, 128}};
  const Shape s{2, 3, 1, 5, 257, 40};
  const std::array<std::int64_t, 4> kv_extent{s.batch, s.kv_heads, s.seq_kv, s.head_dim};
  for (const Dtype dtype : all_dtypes) {
    const auto data = make_problem(s, dtype);
    const Outputs aligned = run_forward(exec, *data, config);
    const Shifted q(data->q, backend, dtype, {s.batch, s.heads, s.seq_q, s.head_dim});
    const Shifted k(data->k, backend, dtype, kv_extent);
    const Shifted v(data->v, backend, dtype, kv_extent);
    const auto shifted = [&](ForwardArgs args) {
      args.q = q.ref;
      args.k = k.ref;
      args.v = v.ref;
      run_pass(exec, args, config);
    };
    expect_same(*data, run_problem(*data, backend, HeadLayout::bhsd, shifted), aligned);

    // A sequence is a page.
    const std::vector<std::int64_t> order{0, 1};
    const std::vector<std::int64_t> counts{s.seq_kv, s.seq_kv};
    const bench::Buffer table("table", backend, order.size() * 8);
    table.upload(std::as_bytes(std::span(order)));
    const bench::Buffer lengths("lengths", backend, counts.size() * 8);
    lengths.upload(std::as_bytes(std::span(counts)));
    const auto shifted_pages = [&](const ForwardArgs& args) {
      PagedArgs paged;
      paged.q = q.ref;
      paged.k_pages = k.ref;
      paged.v_pages = v.ref;
      paged.block_table = reinterpret_cast<const std::int64_t*>(table.data());
      paged.pages_per_sequence = 1;
      paged.out = args.out;
      paged.lse = args.lse;
      paged.scale = args.scale;
      paged.mask.kv_len = reinterpret_cast<const std::int64_t*>(lengths.data());
      run_pass(exec, paged, config);
    };
    expect_same(*data, run_problem(*data, backend, HeadLayout::bhsd, shifted_pages), aligned);
  }
}

TEST(AttentionDecodeBits, AreTheSameInEveryRun) {
  auto data = make_problem({3, 8, 2, 1, 700, 64}, Dtype::bf16);
  data->kv_len = {700, 1, 333};
  data->link();
  const Outputs first = run_paged(*data, 16, {"decode", {}});
  for (int repetition = 0; repetition < 3; ++repetition) {
    EXPECT_TRUE(run_paged(*data, 16, {"decode", {}}) == first);
  }
}

#if defined(KATT_HAS_CUDA)
TEST(AttentionDecodeGraph, OneCapturedLaunchFitsAllLengths) {
  if (const std::string reason = CudaGraph::refusal(); !reason.empty()) GTEST_SKIP() << reason;
  auto data = make_problem({3, 8, 2, 1, 300, 128}, Dtype::bf16);
  const Kokkos::Cuda exec;
  const DeviceProblem problem(*data, Backend::cuda);
  const Pages pages(*data, Backend::cuda, 16, HeadLayout::bhsd);
  const DeviceOutput output(*data, Backend::cuda);
  const PagedArgs args = pages.args(forward_args(problem.args(), output));
  const Config config{"decode", {64, 128}};
  const bench::Buffer workspace =
      testing::poisoned_workspace(Backend::cuda, workspace_bytes(exec, args, config));
  const auto graph = CudaGraph::capture(exec.cuda_stream(), [&] {
    EXPECT_TRUE(decode(exec, args, config, workspace.workspace()).is_ok());
  });
  const std::vector<std::vector<std::int64_t>> steps{{300, 1, 17}, {0, 299, 128}, {129, 33, 300}};
  for (const auto& lengths : steps) {
    output.poison();
    pages.lengths.upload(std::as_bytes(std::span(lengths)));
    graph.launch(exec.cuda_stream());
    exec.fence();
    data->kv_len = lengths;
    data->link();
    expect_reference(*data, output.download(), "graph");
  }
}
#endif

TEST(AttentionDecodeRefusal, NamesTheReason) {
  const Host exec = serial_host();
  const auto refusal = [&](const Shape& s, const Setting& tile) {
    const auto data = make_problem(s, Dtype::f32);
    return forward_variants<Host>().supports(exec, shape_args(*data), {"decode", tile});
  };
  EXPECT_TRUE(refusal({1, 4, 1, 16, 9, 8}, {}).is_ok());
  const Status rows = refusal({1, 4, 1, 17, 9, 8}, {});
  EXPECT_EQ(rows.code(), Status::Code::skipped);
  EXPECT_NE(rows.reason().find("68"), std::string::npos) << rows.reason();
  const Status tile = refusal({1, 4, 1, 1, 9, 8}, {64, 100});
  EXPECT_EQ(tile.code(), Status::Code::skipped);
  EXPECT_NE(tile.reason().find("64x100"), std::string::npos) << tile.reason();

  PagedArgs args;
  const std::vector<float> q(8);
  args.q = ConstTensorRef<4>(q.data(), Dtype::f32, {1, 1, 1, 8});
  args.k_pages = args.v_pages = ConstTensorRef<4>(q.data(), Dtype::f32, {1, 1, 1, 8});
  std::vector<float> out(8);
  args.out = TensorRef<4>(out.data(), Dtype::f32, {1, 1, 1, 8});
  const std::int64_t page = 0;
  args.pages_per_sequence = 1;
  EXPECT_THROW(check(args), InputError);  // no block table
  args.block_table = &page;
  EXPECT_THROW(check(args), InputError);  // no lengths
  args.mask.kv_len = &page;
  check(args);
  args.v_pages.extent[2] = 2;
  EXPECT_THROW(check(args), InputError);
}

}  // namespace
}  // namespace katt::attention
