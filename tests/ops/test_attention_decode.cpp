#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <limits>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "ops/attention/decode/paged.hpp"
#include "tests/ops/attention_problems.hpp"

namespace katt::attention {
namespace {

using DefaultExec = Kokkos::DefaultExecutionSpace;

struct Result {
  std::vector<float> out, lse;
};

// One query; a few; 64 packed rows, the most; keys around the split of 128 and the tile of 32;
// ragged head_dim; groups of 1, 3 to 7.
const std::vector<Shape> decode_shapes{
    {1, 8, 2, 1, 300, 128}, {2, 7, 1, 1, 131, 64}, {1, 4, 4, 1, 1, 8},     {2, 3, 1, 5, 257, 40},
    {1, 16, 1, 4, 33, 72},  {1, 2, 2, 13, 7, 24},  {3, 8, 8, 1, 129, 256}, {1, 4, 2, 2, 0, 16},
    {1, 6, 1, 1, 47, 8},    {1, 5, 1, 1, 81, 136},
};

template <class Exec, class Run>
Result collect(const Exec& exec, const ProblemData& data, HeadLayout layout, const Run& run) {
  const DeviceOutput output(data.shape, data.dtype, backend_of<Exec>(), layout);
  output.poison();
  run(output);
  exec.fence();
  return {output.out.download(), output.lse.download()};
}

template <class Exec>
void run_args(const Exec& exec, ForwardArgs args, const DeviceOutput& output,
              const Config& config) {
  args.out = output.out.ref();
  args.lse = output.lse.ref();
  const bench::Buffer workspace("workspace", backend_of<Exec>(),
                                workspace_bytes(exec, args, config));
  workspace.upload(std::vector<std::byte>(workspace.size(), std::byte{0xFF}));
  const Status status = forward(exec, args, config, workspace.workspace());
  ASSERT_TRUE(status.is_ok()) << status.reason();
  exec.fence();
}

template <class Exec>
Result run(const Exec& exec, const ProblemData& data, const Config& config,
           HeadLayout layout = HeadLayout::bhsd) {
  const DeviceProblem problem(data, backend_of<Exec>(), layout);
  return collect(exec, data, layout, [&](const DeviceOutput& output) {
    run_args(exec, problem.args(), output, config);
  });
}

/// The keys and values of a problem in shuffled pages of a larger pool.
struct Pages {
  bench::Tensor<4> k, v;
  bench::Buffer table, lengths;
  std::int64_t per_sequence = 0;

  Pages(const ProblemData& data, Backend backend, std::int64_t page_size, HeadLayout layout) {
    const HostProblem& p = data.shape;
    per_sequence = (p.seq_kv + page_size - 1) / page_size;
    const std::int64_t pages = p.batch * per_sequence + 3;
    std::vector<std::int64_t> order(static_cast<std::size_t>(pages));
    std::iota(order.begin(), order.end(), 0);
    for (std::size_t i = order.size() - 1; i > 0; --i) {
      std::swap(order[i], order[testing::hash(11, i) % (i + 1)]);
    }
    const std::array<std::int64_t, 4> extent{pages, p.kv_heads, page_size, p.head_dim};
    const auto paged = [&](const std::vector<float>& dense) {
      std::vector<float> values(
          static_cast<std::size_t>(pages * p.kv_heads * page_size * p.head_dim),
          std::numeric_limits<float>::quiet_NaN());
      for (std::int64_t row = 0; row < p.batch * p.kv_heads * p.seq_kv; ++row) {
        const std::int64_t j = row % p.seq_kv;
        const std::int64_t h = row / p.seq_kv % p.kv_heads;
        const std::int64_t b = row / p.seq_kv / p.kv_heads;
        const std::int64_t page = order[static_cast<std::size_t>(b * per_sequence + j / page_size)];
        const std::int64_t target = (page * p.kv_heads + h) * page_size + j % page_size;
        std::copy_n(dense.begin() + row * p.head_dim, p.head_dim,
                    values.begin() + target * p.head_dim);
      }
      bench::Tensor<4> tensor("pages", backend, data.dtype, extent, layout);
      tensor.upload(values);
      return tensor;
    };
    k = paged(data.k);
    v = paged(data.v);
    std::vector<std::int64_t> counts = data.kv_len;
    if (counts.empty()) counts.assign(static_cast<std::size_t>(p.batch), p.seq_kv);
    table = {"table", backend, order.size() * 8};
    table.upload(std::as_bytes(std::span(order)));
    lengths = {"lengths", backend, counts.size() * 8};
    lengths.upload(std::as_bytes(std::span(counts)));
  }
};

Result run_paged(const ProblemData& data, std::int64_t page_size, const Config& config,
                 HeadLayout layout = HeadLayout::bhsd) {
  const DefaultExec exec;
  const Backend backend = backend_of<DefaultExec>();
  const DeviceProblem problem(data, backend, HeadLayout::bhsd);
  const Pages pages(data, backend, page_size, layout);
  return collect(exec, data, HeadLayout::bhsd, [&](const DeviceOutput& output) {
    const ForwardArgs contiguous = problem.args();
    PagedArgs args;
    args.q = contiguous.q;
    args.k_pages = pages.k.ref();
    args.v_pages = pages.v.ref();
    args.block_table = reinterpret_cast<const std::int64_t*>(pages.table.data());
    args.pages_per_sequence = pages.per_sequence;
    args.out = output.out.ref();
    args.lse = output.lse.ref();
    args.scale = contiguous.scale;
    args.score = contiguous.score;
    args.mask = contiguous.mask;
    args.mask.kv_len = reinterpret_cast<const std::int64_t*>(pages.lengths.data());
    const bench::Buffer workspace("workspace", backend, workspace_bytes(exec, args, config));
    const Status status = decode(exec, args, config, workspace.workspace());
    ASSERT_TRUE(status.is_ok()) << status.reason();
    exec.fence();
  });
}

void expect_reference(const ProblemData& data, const Result& result, const std::string& what) {
  const bench::Errors errors = Reference(data).compare(result.out, result.lse);
  EXPECT_TRUE(errors.status.is_ok())
      << what << ", " << name_of(data.dtype) << ": " << errors.status.reason();
}

class AttentionDecode : public ::testing::TestWithParam<Dtype> {};

TEST_P(AttentionDecode, MatchesReferenceForEveryShapeMaskTileAndLayout) {
  for (const auto& [shape, mask] : with_masks(decode_shapes)) {
    auto data = make_problem(shape, GetParam());
    mask.apply(*data);
    data->link();
    const std::string what = describe(shape) + ", " + mask.name;
    expect_reference(*data, run(DefaultExec(), *data, {"decode", {64, 128}}), what);
    expect_reference(*data, run(DefaultExec(), *data, {"decode", {}}, HeadLayout::bshd),
                     what + ", bshd");
  }
}

TEST_P(AttentionDecode, PagedMatchesReference) {
  for (std::size_t i = 0; i < decode_shapes.size(); ++i) {
    const Shape& shape = decode_shapes[i];
    for (const std::size_t mask : {0, 1, 2, 4, 7, 9, 10}) {
      if (!test::is_tried(mask, i, decode_shapes.size())) continue;
      auto data = make_problem(shape, GetParam());
      masks[mask].apply(*data);
      data->link();
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
  const Result result = run(DefaultExec(), *data, {"decode", {64, 128}});
  for (const float value : result.out) ASSERT_TRUE(std::isfinite(value));
  for (const float value : result.lse) ASSERT_TRUE(std::isfinite(value));
  expect_reference(*data, result, "large scores");
}

INSTANTIATE_TEST_SUITE_P(Dtypes, AttentionDecode, ::testing::ValuesIn(all_dtypes),
                         [](const auto& info) { return std::string(name_of(info.param)); });

TEST(AttentionDecodeBits, DoNotDependOnTheThreads) {
  auto data = make_problem({2, 8, 2, 1, 1000, 64}, Dtype::bf16);
  const Config config{"decode", {64, 128}};
  const Result serial = run(serial_host(), *data, config);
#if defined(KOKKOS_ENABLE_OPENMP)
  for (const int threads : {1, 2}) {
    const Result result = run(Kokkos::OpenMP(threads), *data, config);
    EXPECT_EQ(result.out, serial.out) << threads;
    EXPECT_EQ(result.lse, serial.lse) << threads;
  }
#endif
  const Result again = run(serial_host(), *data, config);
  EXPECT_EQ(again.out, serial.out);
}

TEST(AttentionDecodePages, OfWholeTilesGiveTheBitsOfContiguousKeys) {
  auto data = make_problem({2, 8, 2, 3, 401, 96}, Dtype::f16);
  data->shape.causal = true;
  data->kv_len = {401, 77};
  data->link();
  const Config config{"decode", {64, 128}};
  const Result contiguous = run(DefaultExec(), *data, config);
  const Result paged = run_paged(*data, 64, config);
  EXPECT_EQ(paged.out, contiguous.out);
  EXPECT_EQ(paged.lse, contiguous.lse);
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

TEST(AttentionDecodeBits, DoNotDependOnTheAlignment) {
  const DefaultExec exec;
  const Backend backend = backend_of<DefaultExec>();
  const Config config{"decode", {64, 128}};
  const Shape s{2, 3, 1, 5, 257, 40};
  const std::array<std::int64_t, 4> kv_extent{s.batch, s.kv_heads, s.seq_kv, s.head_dim};
  for (const Dtype dtype : all_dtypes) {
    const auto data = make_problem(s, dtype);
    const Result aligned = run(exec, *data, config);
    const DeviceProblem problem(*data, backend, HeadLayout::bhsd);
    const Shifted q(data->q, backend, dtype, {s.batch, s.heads, s.seq_q, s.head_dim});
    const Shifted k(data->k, backend, dtype, kv_extent);
    const Shifted v(data->v, backend, dtype, kv_extent);
    ForwardArgs args = problem.args();
    args.q = q.ref;
    args.k = k.ref;
    args.v = v.ref;
    const Result shifted = collect(exec, *data, HeadLayout::bhsd, [&](const DeviceOutput& output) {
      run_args(exec, args, output, config);
    });
    EXPECT_EQ(shifted.out, aligned.out) << name_of(dtype);
    EXPECT_EQ(shifted.lse, aligned.lse) << name_of(dtype);

    // A sequence is a page.
    const std::vector<std::int64_t> order{0, 1};
    const std::vector<std::int64_t> counts{s.seq_kv, s.seq_kv};
    const bench::Buffer table("table", backend, order.size() * 8);
    table.upload(std::as_bytes(std::span(order)));
    const bench::Buffer lengths("lengths", backend, counts.size() * 8);
    lengths.upload(std::as_bytes(std::span(counts)));
    PagedArgs paged;
    paged.q = q.ref;
    paged.k_pages = k.ref;
    paged.v_pages = v.ref;
    paged.block_table = reinterpret_cast<const std::int64_t*>(table.data());
    paged.pages_per_sequence = 1;
    paged.scale = args.scale;
    paged.mask.kv_len = reinterpret_cast<const std::int64_t*>(lengths.data());
    const Result of_pages = collect(exec, *data, HeadLayout::bhsd, [&](const DeviceOutput& output) {
      paged.out = output.out.ref();
      paged.lse = output.lse.ref();
      const bench::Buffer workspace("workspace", backend, workspace_bytes(exec, paged, config));
      const Status status = decode(exec, paged, config, workspace.workspace());
      ASSERT_TRUE(status.is_ok()) << status.reason();
    });
    EXPECT_EQ(of_pages.out, aligned.out) << name_of(dtype);
  }
}

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
