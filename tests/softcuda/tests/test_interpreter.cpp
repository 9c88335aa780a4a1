#include <gtest/gtest.h>

#include <bit>
#include <cstdlib>

#include "tests/softcuda/tests/interpreter_tests.hpp"

// Hand-written PTX against results of the host: control, memory, barriers, scalar forms, faults.

namespace softcuda {
namespace {

using namespace test;

// c = a + b, with a tail.
const char* const add_source = R"(
.visible .entry add(.param .u64 a, .param .u64 b, .param .u64 c, .param .u32 n)
{
.reg .pred %p<2>; .reg .f32 %f<4>; .reg .b32 %r<6>; .reg .b64 %rd<11>;
ld.param.u64 %rd1, [a]; ld.param.u64 %rd2, [b]; ld.param.u64 %rd3, [c]; ld.param.u32 %r2, [n];
mov.u32 %r3, %ctaid.x; mov.u32 %r4, %ntid.x; mov.u32 %r5, %tid.x;
mad.lo.s32 %r1, %r3, %r4, %r5;
setp.ge.s32 %p1, %r1, %r2;
@%p1 bra $L_end;
cvta.to.global.u64 %rd4, %rd1;
mul.wide.s32 %rd5, %r1, 4;
add.s64 %rd6, %rd4, %rd5; add.s64 %rd8, %rd2, %rd5; add.s64 %rd10, %rd3, %rd5;
ld.global.f32 %f1, [%rd8]; ld.global.f32 %f2, [%rd6];
add.f32 %f3, %f2, %f1;
st.global.f32 [%rd10], %f3;
$L_end:
ret;
})";

class VectorAdd : public ::testing::Test {
 protected:
  /// Launches on n of the 1000 elements and returns the fault, or "".
  std::string run(std::uint64_t a_address, int n, unsigned blocks) {
    return fault_of([&] {
      launch(module_, "add", {blocks, 1, 1}, {128, 1, 1}, 0,
             Arguments().add(a_address).add(b_address_).add(c_address_).add(n).bytes);
    });
  }

  Module* module_ = load_module(ptx_header + add_source);
  std::vector<float> a_ = random_values(1000, 1), b_ = random_values(1000, 2);
  std::uint64_t a_address_ = upload(a_), b_address_ = upload(b_), c_address_ = device_malloc(4000);
};

TEST_F(VectorAdd, AddsEveryElementOnce) {
  ASSERT_EQ(run(a_address_, 1000, 8), "");
  const auto c = download<float>(c_address_, 1000);
  for (std::size_t i = 0; i < 1000; ++i) ASSERT_EQ(c[i], a_[i] + b_[i]) << i;
}

TEST_F(VectorAdd, OneElementTooManyIsAFaultOfItsBlock) {
  const std::string fault = run(a_address_, 1001, 8);
  EXPECT_TRUE(fault.starts_with("700")) << fault;
  EXPECT_NE(fault.find("block (7"), std::string::npos) << fault;
}

TEST_F(VectorAdd, MisalignedOrFreedMemoryIsAFault) {
  std::string fault = run(a_address_ + 2, 32, 1);
  EXPECT_TRUE(fault.starts_with("716")) << fault;
  ASSERT_TRUE(device_free(b_address_));
  fault = run(a_address_, 32, 1);
  EXPECT_TRUE(fault.starts_with("700")) << fault;
}

// A sum in shared memory, with a diverging loop, barriers and shuffles; BARRIER is one of them, or
// none.
const char* const reduction_source = R"(
.shared .align 4 .b8 buffer[1024];
.visible .entry reduce(.param .u64 out)
{
.reg .pred %p<6>; .reg .b32 %r<30>; .reg .b64 %rd<4>;
mov.u32 %r1, %tid.x;
mov.u32 %r2, 0; mov.u32 %r3, 0;
$loop:
add.s32 %r2, %r2, %r3;
add.s32 %r3, %r3, 1;
setp.le.u32 %p1, %r3, %r1;
@%p1 bra $loop;
mov.u32 %r4, buffer;
shl.b32 %r5, %r1, 2;
add.s32 %r6, %r4, %r5;
st.shared.u32 [%r6], %r2;
BARRIER
mov.u32 %r7, 128;
$half:
setp.ge.u32 %p2, %r1, %r7;
@%p2 bra $skip;
shl.b32 %r8, %r7, 2;
add.s32 %r9, %r6, %r8;
ld.shared.u32 %r10, [%r9];
ld.shared.u32 %r11, [%r6];
add.s32 %r12, %r10, %r11;
st.shared.u32 [%r6], %r12;
$skip:
bar.sync 0;
shr.u32 %r7, %r7, 1;
setp.ge.u32 %p3, %r7, 32;
@%p3 bra $half;
setp.ge.u32 %p4, %r1, 32;
@%p4 bra $done;
ld.shared.u32 %r13, [%r6];
mov.u32 %r14, 16;
$butterfly:
shfl.sync.bfly.b32 %r15|%p5, %r13, %r14, 31, -1;
add.s32 %r13, %r13, %r15;
shr.u32 %r14, %r14, 1;
setp.ne.s32 %p5, %r14, 0;
@%p5 bra $butterfly;
ld.param.u64 %rd1, [out];
mul.wide.u32 %rd2, %r1, 4;
add.s64 %rd3, %rd1, %rd2;
st.global.u32 [%rd3], %r13;
$done:
ret;
})";

/// What lane 0 has in the end: the sum of t (t + 1) / 2 over 256 threads t, if all is well.
std::vector<std::uint32_t> reduce(const std::string& barrier) {
  std::string text = reduction_source;
  text.replace(text.find("BARRIER"), 7, barrier);
  const std::uint64_t out = device_malloc(128);
  launch(load_module(ptx_header + text), "reduce", {1, 1, 1}, {256, 1, 1}, 0,
         Arguments().add(out).bytes);
  return download<std::uint32_t>(out, 32);
}

TEST(Barriers, OrderASumInSharedMemory) {
  std::uint32_t expected = 0;
  for (std::uint32_t t = 0; t < 256; ++t) expected += t * (t + 1) / 2;
  EXPECT_EQ(reduce("bar.sync 0;"), std::vector<std::uint32_t>(32, expected));
  EXPECT_NE(reduce("")[0], expected) << "the order of warps hides the missing barrier";
}

const char* const barriers_source = R"(
.visible .entry deadlock() {
.reg .pred %p<2>; .reg .b32 %r<3>;
mov.u32 %r1, %tid.x; shr.u32 %r2, %r1, 5; setp.eq.s32 %p1, %r2, 0;
@%p1 bra $zero;
bar.sync 1, 64; ret;
$zero: bar.sync 2, 64; ret;
}
.shared .align 8 .u64 full;
.shared .align 4 .b8 word[4];
.visible .entry handover(.param .u64 out) {
.reg .pred %p<3>; .reg .b32 %r<9>; .reg .b64 %rd<9>;
mov.u32 %r1, %tid.x; mov.u32 %r2, full; mov.u32 %r3, 32; mov.u32 %r7, word;
setp.ne.s32 %p1, %r1, 0;
@%p1 bra $ready;
mbarrier.init.shared.b64 [%r2], %r3;
$ready: bar.sync 0;
setp.lt.u32 %p1, %r1, 32;
@%p1 bra $produce;
mov.u32 %r4, 0;
{ .reg .pred done; again: mbarrier.try_wait.parity.shared.b64 done, [%r2], %r4; @!done bra again; }
ld.shared.u32 %r5, [%r7];
ld.param.u64 %rd1, [out]; mul.wide.u32 %rd2, %r1, 4; add.s64 %rd3, %rd1, %rd2; st.global.u32 [%rd3+-128], %r5;
ret;
$produce:
st.shared.u32 [%r7], 77;
{ .reg .b64 state; mbarrier.arrive.shared.b64 state, [%r2]; }
ret;
})";

TEST(Barriers, WarpsThatWaitForEachOtherAreADeadlock) {
  Module* m = load_module(ptx_header + barriers_source);
  const std::string fault = fault_of([&] { launch(m, "deadlock", {1, 1, 1}, {64, 1, 1}, 0, {}); });
  EXPECT_NE(fault.find("deadlock"), std::string::npos) << fault;
}

TEST(Barriers, AnMbarrierHandsAWordToAnotherWarp) {
  Module* m = load_module(ptx_header + barriers_source);
  const std::uint64_t out = device_malloc(128);
  launch(m, "handover", {1, 1, 1}, {64, 1, 1}, 0, Arguments().add(out).bytes);
  EXPECT_EQ(download<std::uint32_t>(out, 32), std::vector<std::uint32_t>(32, 77));
}

// Two warps write the two bytes of every 16 bits of shared memory, two blocks the two halves of
// every word of global memory. Then each thread reads the place of its own (shift 0) or that of the
// other (shift 1).
const char* const neighbours_source = R"(
.shared .align 4 .b8 bytes[64];
.visible .entry neighbours(.param .u64 out, .param .u32 shift_shared, .param .u32 shift_global)
{
.reg .b16 %rs<4>; .reg .b32 %r<20>; .reg .b64 %rd<9>;
mov.u32 %r1, %tid.x; ld.param.u32 %r2, [shift_shared]; ld.param.u32 %r3, [shift_global];
cvt.u16.u32 %rs1, %r1;
and.b32 %r4, %r1, 31; shl.b32 %r4, %r4, 1; shr.u32 %r5, %r1, 5; add.s32 %r4, %r4, %r5;
mov.u32 %r6, bytes; add.s32 %r7, %r6, %r4; st.shared.u8 [%r7], %rs1;
xor.b32 %r4, %r4, %r2; add.s32 %r7, %r6, %r4; ld.shared.u8 %rs2, [%r7];
ld.param.u64 %rd1, [out]; mov.u32 %r8, %ctaid.x;
shl.b32 %r9, %r1, 1; add.s32 %r9, %r9, %r8; mul.wide.u32 %rd2, %r9, 2; add.s64 %rd3, %rd1, %rd2;
st.global.u16 [%rd3], %rs1;
xor.b32 %r9, %r9, %r3; mul.wide.u32 %rd2, %r9, 2; add.s64 %rd3, %rd1, %rd2; ld.global.u16 %rs3, [%rd3];
ret;
})";

std::string race_of(int shift_shared, int shift_global) {
  const std::uint64_t out = device_malloc(256);
  setenv("SOFTCUDA_RACECHECK", "1", 1);
  const std::string fault = fault_of([&] {
    launch(load_module(ptx_header + neighbours_source), "neighbours", {2, 1, 1}, {64, 1, 1}, 0,
           Arguments().add(out).add(shift_shared).add(shift_global).bytes);
  });
  unsetenv("SOFTCUDA_RACECHECK");
  return fault;
}

TEST(Halves, RoundToTheNearestEvenAndKeepNan) {
  EXPECT_EQ(narrow<true>(1.0F), 0x3F80);
  EXPECT_EQ(narrow<true>(std::bit_cast<float>(0x3F808000U)), 0x3F80);
  EXPECT_EQ(narrow<true>(std::bit_cast<float>(0x3F818000U)), 0x3F82);
  EXPECT_EQ(narrow<true>(std::bit_cast<float>(0x7FFFFFFFU)), 0x7FFF);
  EXPECT_EQ(narrow<false>(1.0F), 0x3C00);
  EXPECT_EQ(widen<false>(0x3C00), 1.0F);
  EXPECT_EQ(widen<true>(0x3F80), 1.0F);
}

TEST(RaceCheck, TellsNeighboursInAWordFromARace) {
  EXPECT_EQ(race_of(0, 0), "");
  std::string fault = race_of(1, 0);
  EXPECT_NE(fault.find("race on shared memory"), std::string::npos) << fault;
  fault = race_of(0, 1);
  EXPECT_NE(fault.find("race on global memory"), std::string::npos) << fault;
}

// Forms that are easy to get wrong: what %r9 holds in the end, in thread 0.
struct Case {
  const char* body;
  std::uint32_t result;
};
const Case cases[] = {
    {"copysign.f32 %f1, 0fBF800000, 0f40000000; mov.b32 %r9, %f1;", 0xC0000000},
    {"fma.rm.f32 %f1, 0f3F800001, 0f3F800001, 0f00000000; mov.b32 %r9, %f1;", 0x3F800002},
    {"{ .reg .f32 %f1; mov.f32 %f1, 0f00000000; } mov.f32 %f1, 0f3F800000; mov.b32 %r9, %f1;",
     0x3F800000},
    {"cvt.rzi.s32.f32 %r9, 0f7FFFFFFF;", 0},
    {"cvt.rzi.s32.f32 %r9, 0f4F800000;", 0x7FFFFFFF},
    {"cvt.rni.f32.f32 %f1, 0f40200000; mov.b32 %r9, %f1;", 0x40000000},
    {"cvt.sat.f32.f32 %f1, 0f7FFFFFFF; mov.b32 %r9, %f1;", 0},
    {"cvt.rn.bf16x2.f32 %r9, 0f3F800000, 0f40000000;", 0x3F804000},
    {"cvt.rn.f16x2.f32 %r9, 0f3F800000, 0f40000000;", 0x3C004000},
    {"max.f32 %f1, 0f7FFFFFFF, 0f3F800000; mov.b32 %r9, %f1;", 0x3F800000},
    {"setp.geu.f32 %p1, 0f7FFFFFFF, 0f3F800000; selp.b32 %r9, 1, 0, %p1;", 1},
    {"setp.ne.s32 %p1, 5, 5; selp.b32 %r9, 1, 0, %p1;", 0},
    {"shr.s32 %r9, -8, 40;", 0xFFFFFFFF},
    {"bfi.b32 %r9, 3, 256, 4, 2;", 0x130},
    {"prmt.b32 %r9, 0x03020100, 0x07060504, 0x7654;", 0x07060504},
    {"dp4a.s32.s32 %r9, 0x01FF0203, 0x02020202, 1;", 11},
    {"add.cc.u32 %r8, -1, 1; addc.u32 %r9, 0, 0;", 1},
    {"sub.cc.u32 %r8, 0, 1; subc.u32 %r9, 5, 0;", 4},
    {"mad.lo.cc.u32 %r8, -1, 1, 1; madc.hi.u32 %r9, -1, -1, 0;", 0xFFFFFFFF},
    {"ex2.approx.ftz.f32 %f1, 0f40400000; mov.b32 %r9, %f1;", 0x41000000},
    {"rcp.approx.ftz.f32 %f1, 0f00000001; mov.b32 %r9, %f1;", 0x7F800000},
    {"mov.u32 %r7, 5; div.s32 %r9, -17, %r7;", 0xFFFFFFFD},
    {"shfl.sync.idx.b32 %r9|%p1, %r7, 3, 31, -1;", 3},
    {"shfl.sync.down.b32 %r9|%p1, %r7, 1, 31, -1; sub.s32 %r9, %r9, %r7; shfl.sync.idx.b32 "
     "%r9|%p1, %r9, 5, 31, -1;",
     1},
    {"clz.b64 %r9, 1;", 63},
};

class ScalarForms : public ::testing::TestWithParam<Case> {};

TEST_P(ScalarForms, GiveTheBitsOfTheIsa) {
  Module* m = load_module(
      ptx_header +
      ".visible .entry k(.param .u64 out) { .reg .pred %p<4>; .reg .f32 %f<9>; .reg .b32 %r<10>; "
      ".reg .b64 %rd<9>; mov.u32 %r7, %tid.x;" +
      GetParam().body +
      " ld.param.u64 %rd1, [out]; mov.u32 %r1, %tid.x; setp.ne.s32 %p2, %r1, 0; @%p2 ret; "
      "st.global.u32 [%rd1], %r9; ret; }");
  const std::uint64_t out = device_malloc(4);
  launch(m, "k", {1, 1, 1}, {32, 1, 1}, 0, Arguments().add(out).bytes);
  EXPECT_EQ(download<std::uint32_t>(out, 1)[0], GetParam().result) << GetParam().body;
}

INSTANTIATE_TEST_SUITE_P(Interpreter, ScalarForms, ::testing::ValuesIn(cases));

// What an access to shared memory takes where lane n is at n / share · stride.
std::string wavefronts(const std::string& name, const std::string& load, int stride, int share) {
  const std::string source = ptx_header + ".visible .entry " + name + R"(()
{
.reg .b32 %r<8>; .reg .f32 %f<4>;
.shared .align 16 .b8 memory[8192];
mov.u32 %r1, %tid.x; div.u32 %r2, %r1, )" +
                             std::to_string(share) + R"(; mov.u32 %r3, memory;
mad.lo.u32 %r4, %r2, )" + std::to_string(stride) +
                             ", %r3;\n" + load + " ret;\n}";
  setenv("SOFTCUDA_BANKS", "1", 1);
  launch(load_module(source), name, {1, 1, 1}, {32, 1, 1}, 0, Arguments().bytes);
  unsetenv("SOFTCUDA_BANKS");
  const std::string all = bank_conflicts();
  const std::size_t begin = all.find(": " + name + ": ") + name.size() + 4;
  return all.substr(begin, all.find('\n', begin) - begin);
}

TEST(BankConflicts, AreTheWordsOfABank) {
  const char* const one = "ld.shared.f32 %f1, [%r4];";
  const char* const four = "ld.shared.v4.f32 {%f0, %f1, %f2, %f3}, [%r4];";
  EXPECT_EQ(wavefronts("neighbours", one, 4, 1), "1 accesses, 1 wavefronts, at least 1");
  EXPECT_EQ(wavefronts("every_second", one, 8, 1), "1 accesses, 2 wavefronts, at least 1");
  EXPECT_EQ(wavefronts("odd", one, 36, 1), "1 accesses, 1 wavefronts, at least 1");
  EXPECT_EQ(wavefronts("one_bank", one, 128, 1), "1 accesses, 32 wavefronts, at least 1");
  EXPECT_EQ(wavefronts("one_word", one, 128, 32), "1 accesses, 1 wavefronts, at least 1");
  EXPECT_EQ(wavefronts("pairs", one, 128, 2), "1 accesses, 16 wavefronts, at least 1");
  EXPECT_EQ(wavefronts("quarters", four, 16, 1), "1 accesses, 4 wavefronts, at least 4");
  EXPECT_EQ(wavefronts("rows", four, 128, 1), "1 accesses, 32 wavefronts, at least 4");
  EXPECT_EQ(wavefronts("stored", "st.shared.u32 [%r4], %r1;", 8, 1),
            "1 accesses, 2 wavefronts, at least 1");
}

}  // namespace
}  // namespace softcuda
