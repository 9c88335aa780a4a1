#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "tests/softcuda/tests/interpreter_tests.hpp"

// The instructions of tensor cores against products of the host.

namespace softcuda {
namespace {

using namespace test;

// mma.sync with fragments from ldmatrix (A plainly, B with .trans from rows of k), tiles brought by
// cp.async.

std::string mma_source(const std::string& wait) {
  const std::string text = R"(
.extern .shared .align 1024 .b8 tile[];
.visible .entry mma(.param .u64 a, .param .u64 b, .param .u64 out)
{
.reg .pred %p<2>; .reg .b32 %r<40>; .reg .f32 %f<9>; .reg .b64 %rd<20>;
mov.u32 %r1, %tid.x; mov.u32 %r2, tile;
ld.param.u64 %rd1, [a]; ld.param.u64 %rd2, [b]; ld.param.u64 %rd3, [out];
shl.b32 %r3, %r1, 4;                  // A: 16 x 16 halves, 512 bytes, 16 for each lane
cvt.u64.u32 %rd4, %r3; add.s64 %rd5, %rd1, %rd4; add.s32 %r4, %r2, %r3;
mov.u32 %r5, 16;
cp.async.cg.shared.global [%r4], [%rd5], 16, %r5;
setp.gt.u32 %p1, %r1, 15;             // B: 16 x 8 halves, 256 bytes, rows of k
@%p1 bra $loaded;
add.s64 %rd6, %rd2, %rd4;
cp.async.cg.shared.global [%r4+512], [%rd6], 16, %r5;
$loaded:
cp.async.commit_group;
)" + wait + R"(
bar.sync 0;
and.b32 %r6, %r1, 15; shl.b32 %r7, %r6, 5; shr.u32 %r8, %r1, 4; shl.b32 %r9, %r8, 4;
add.s32 %r10, %r2, %r7; add.s32 %r11, %r10, %r9;
ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r20, %r21, %r22, %r23}, [%r11];
shl.b32 %r12, %r6, 4; add.s32 %r13, %r2, %r12;
ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%r24, %r25}, [%r13+512];
mov.f32 %f1, 0f3F800000;
mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%f5, %f6, %f7, %f8}, {%r20, %r21, %r22, %r23}, {%r24, %r25}, {%f1, %f1, %f1, %f1};
shl.b32 %r14, %r1, 4; cvt.u64.u32 %rd7, %r14; add.s64 %rd8, %rd3, %rd7;
st.global.v4.f32 [%rd8], {%f5, %f6, %f7, %f8};
ret;
})";
  return ptx_header + text;
}

/// The largest difference of D from 1 + A·B; infinite where D has a NaN.
double error_of_mma(const std::string& wait) {
  Module* m = load_module(mma_source(wait));
  const auto a = random_values(256, 3), b = random_values(128, 4);
  const std::uint64_t out = device_malloc(512);
  launch(m, "mma", {1, 1, 1}, {32, 1, 1}, 1024,
         Arguments().add(upload(halves(a))).add(upload(halves(b))).add(out).bytes);
  const auto d = download<float>(out, 128);
  double worst = 0;
  for (int r = 0; r < 16; ++r) {
    for (int n = 0; n < 8; ++n) {
      double sum = 1;
      for (int k = 0; k < 16; ++k) sum += double{a[r * 16 + k]} * b[k * 8 + n];
      const float got = d[((r % 8) * 4 + n / 2) * 4 + 2 * (r / 8) + n % 2];
      worst = std::isnan(got) ? INFINITY : std::max(worst, std::abs(got - sum));
    }
  }
  return worst;
}

TEST(Mma, MultipliesWhatCpAsyncAndLdmatrixBring) {
  EXPECT_LT(error_of_mma("cp.async.wait_group 0;"), 1e-6);
}

TEST(Mma, WithoutTheWaitTheCopiesAreLate) { EXPECT_GT(error_of_mma(""), 1e-6); }

// wgmma m64n64k16, one warpgroup: tiles laid out by the host through `place`.

std::string wgmma_source(const std::string& a_operand, const std::string& flags) {
  std::string d, stores;
  for (int n = 0; n < 32; ++n) {
    d += (n ? ", %f" : "%f") + std::to_string(n + 1);
    stores +=
        "st.global.f32 [%rd9+" + std::to_string(4 * n) + "], %f" + std::to_string(n + 1) + ";\n";
  }
  return ptx_header + R"(
.extern .shared .align 1024 .b8 tile[];
.visible .entry gemm(.param .u64 in, .param .u64 out, .param .u64 a_high, .param .u64 b_high)
{
.reg .pred %p<2>; .reg .b32 %r<40>; .reg .f32 %f<40>; .reg .b64 %rd<20>;
mov.u32 %r1, %tid.x; mov.u32 %r2, tile;
ld.param.u64 %rd1, [in]; ld.param.u64 %rd2, [out]; ld.param.u64 %rd3, [a_high]; ld.param.u64 %rd4, [b_high];
mov.u32 %r3, %r1;
$copy: shl.b32 %r4, %r3, 4; cvt.u64.u32 %rd5, %r4; add.s64 %rd6, %rd1, %rd5; add.s32 %r5, %r2, %r4;
ld.global.v4.u32 {%r20, %r21, %r22, %r23}, [%rd6]; st.shared.v4.b32 [%r5], {%r20, %r21, %r22, %r23};
add.s32 %r3, %r3, 128; setp.lt.u32 %p1, %r3, 1024; @%p1 bra $copy;
fence.proxy.async.shared::cta; bar.sync 0;
shr.u32 %r6, %r2, 4; cvt.u64.u32 %rd7, %r6; add.s64 %rd10, %rd7, %rd3; add.s64 %rd11, %rd7, %rd4;
mul.lo.s32 %r7, %r1, 16; cvt.u64.u32 %rd12, %r7; add.s64 %rd13, %rd1, %rd12;
ld.global.v4.u32 {%r24, %r25, %r26, %r27}, [%rd13];
wgmma.fence.sync.aligned;
{ .reg .pred p; setp.ne.b32 p, 0, 0;
wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {)" +
         d + "}, " + a_operand + ", %rd11, p, 1, 1, " + flags + R"(;
}
wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;
shl.b32 %r8, %r1, 7; cvt.u64.u32 %rd8, %r8; add.s64 %rd9, %rd2, %rd8;
)" + stores +
         "ret;\n}\n";
}

using Place = std::function<std::size_t(int line, int chunk)>;  ///< byte offset of 8 elements
std::size_t swizzle128(std::size_t at) { return at ^ ((at >> 7 & 7) << 4); }

/// A product of one warpgroup: how its operands lie in shared memory.
struct Wgmma {
  bool a_transposed, b_transposed;  ///< MN-major
  Place place_a, place_b;
  std::uint64_t a, b;  ///< descriptors; the addresses count from the tile's start
  bool a_registers = false;
};

/// Row and column of element e that thread t of a warpgroup holds in its fragments of A, D.
int row_of(int t, int e) { return 16 * (t / 32) + t % 32 / 4 + 8 * (e / 2 % 2); }
int column_of_a(int t, int e) { return 2 * (t % 4) + e % 2 + 8 * (e / 4); }
int column_of_d(int t, int e) { return 8 * (e / 4) + 2 * (t % 4) + e % 2; }

/// A (64 × 16) and B (16 × 64) as the operands lie; what nothing fills is NaN.
std::vector<std::uint16_t> tile_of(const Wgmma& w, const std::vector<float>& a,
                                   const std::vector<float>& b) {
  std::vector<std::uint16_t> tile(8192, 0x7E00);
  for (int m = 0; m < 64 && !w.a_registers; ++m) {
    for (int k = 0; k < 16; ++k) {
      const int line = w.a_transposed ? k : m, at = w.a_transposed ? m : k;
      tile[w.place_a(line, at / 8) / 2 + at % 8] = half(a[m * 16 + k]);
    }
  }
  for (int k = 0; k < 16; ++k) {
    for (int n = 0; n < 64; ++n) {
      const int line = w.b_transposed ? k : n, at = w.b_transposed ? n : k;
      tile[w.place_b(line, at / 8) / 2 + at % 8] = half(b[k * 64 + n]);
    }
  }
  for (int t = 0; t < 128 && w.a_registers; ++t) {
    for (int e = 0; e < 8; ++e) tile[t * 8 + e] = half(a[row_of(t, e) * 16 + column_of_a(t, e)]);
  }
  return tile;
}

void expect_product(const Wgmma& w) {
  const auto a = random_values(64 * 16, 5), b = random_values(16 * 64, 6);
  const std::string flags = std::string(w.a_registers    ? ""
                                        : w.a_transposed ? "1, "
                                                         : "0, ") +
                            (w.b_transposed ? "1" : "0");
  Module* m =
      load_module(wgmma_source(w.a_registers ? "{%r24, %r25, %r26, %r27}" : "%rd10", flags));
  const std::uint64_t out = device_malloc(64 * 64 * 4);
  launch(m, "gemm", {1, 1, 1}, {128, 1, 1}, 16384,
         Arguments().add(upload(tile_of(w, a, b))).add(out).add(w.a).add(w.b).bytes);
  const auto d = download<float>(out, 64 * 64);
  for (int t = 0; t < 128; ++t) {
    for (int e = 0; e < 32; ++e) {
      double sum = 0;
      for (int k = 0; k < 16; ++k) {
        sum += double{a[row_of(t, e) * 16 + k]} * b[k * 64 + column_of_d(t, e)];
      }
      ASSERT_NEAR(d[t * 32 + e], sum, 1e-6) << "thread " << t << ", register " << e;
    }
  }
}

std::uint64_t descriptor(std::uint64_t start, std::uint64_t leading, std::uint64_t stride,
                         std::uint64_t swizzle) {
  return start >> 4 | leading >> 4 << 16 | stride >> 4 << 32 | swizzle << 62;
}

// K-major with the 128-byte swizzle: rows of 128 bytes, 8 of them to an atom; B lies behind A.
const Place a_rows = [](int line, int chunk) {
  return swizzle128(static_cast<std::size_t>(line * 128 + chunk * 16));
};
const Place b_rows = [](int line, int chunk) {
  return 8192 + swizzle128(static_cast<std::size_t>(line * 128 + chunk * 16));
};
const std::uint64_t a_swizzled = descriptor(0, 16, 1024, 1);
const std::uint64_t b_swizzled = descriptor(8192, 16, 1024, 1);

TEST(Wgmma, MultipliesKMajorOperands) {
  expect_product({false, false, a_rows, b_rows, a_swizzled, b_swizzled});
}

TEST(Wgmma, AdvancesWithinASwizzledRow) {
  const Place second_half = [](int line, int chunk) {
    return swizzle128(static_cast<std::size_t>(line * 128 + 32 + chunk * 16));
  };
  expect_product({false, false, second_half, b_rows, a_swizzled + 2, b_swizzled});
}

// MN-major: 64 n in a row of 128 bytes, 8 k to an atom, the next 8 k are the stride away.
TEST(Wgmma, MultipliesMnMajorOperands) {
  expect_product({false, true, a_rows, b_rows, a_swizzled, b_swizzled});
  expect_product({true, true, a_rows, b_rows, a_swizzled, b_swizzled});
}

TEST(Wgmma, TakesAFromRegisters) {
  expect_product({false, false, a_rows, b_rows, 0, b_swizzled, true});
}

// Core matrices of 8 rows of 16 bytes: leading is from one to the next along k, stride from one
// group of 8 rows to the next.
TEST(Wgmma, MultipliesWithoutASwizzle) {
  const Place a = [](int line, int chunk) {
    return static_cast<std::size_t>(line % 8 * 16 + line / 8 * 256 + chunk * 128);
  };
  const Place b = [](int line, int chunk) {
    return static_cast<std::size_t>(8192 + line % 8 * 16 + line / 8 * 128 + chunk * 1024);
  };
  expect_product({false, false, a, b, descriptor(0, 128, 256, 0), descriptor(8192, 1024, 128, 0)});
}

TEST(Wgmma, RefusesMemoryWithoutAProxyFence) {
  std::string text = wgmma_source("%rd10", "0, 0");
  text.erase(text.find("fence.proxy.async.shared::cta;"), 30);
  const std::uint64_t in = upload(std::vector<std::uint16_t>(8192));
  const std::uint64_t out = device_malloc(64 * 64 * 4);
  const std::string fault = fault_of([&] {
    launch(load_module(text), "gemm", {1, 1, 1}, {128, 1, 1}, 16384,
           Arguments().add(in).add(out).add(a_swizzled).add(b_swizzled).bytes);
  });
  EXPECT_NE(fault.find("fence.proxy.async"), std::string::npos) << fault;
}

}  // namespace
}  // namespace softcuda
