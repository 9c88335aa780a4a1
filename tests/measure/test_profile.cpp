#include <gtest/gtest.h>

#include <stdexcept>
#include <string>
#include <vector>

#include <Kokkos_Core.hpp>

#include "measure/profile.hpp"
#include "tests/op/toy_operator.hpp"

namespace katt::bench {
namespace {

using Exec = Kokkos::DefaultHostExecutionSpace;

void launch(const std::string& label) {
  Kokkos::parallel_for(label, Kokkos::RangePolicy<Exec>(0, 8), [](int) {});
}

void reduce(const std::string& label) {
  int sum = 0;
  Kokkos::parallel_reduce(
      label, Kokkos::RangePolicy<Exec>(0, 8), [](int i, int& part) { part += i; }, sum);
}

/// The calls that an earlier tool received.
std::vector<std::string>& heard() {
  static std::vector<std::string> labels;
  return labels;
}

std::string text_of(const std::vector<io::ProfileRow>& rows) {
  std::string text;
  for (const io::ProfileRow& row : rows) {
    text += std::string(static_cast<std::size_t>(row.depth), '>') + row.name + ":" +
            std::to_string(static_cast<int>(row.calls)) + " ";
  }
  return text;
}

TEST(Profiler, NestsRegionsAndKernels) {
  Profiler profiler;
  launch("before");
  profiler.start();
  for (int i = 0; i < 2; ++i) {
    Kokkos::Profiling::pushRegion("outer");
    launch("a");
    Kokkos::Profiling::pushRegion("inner");
    reduce("sum");
    Kokkos::Profiling::popRegion();
    launch("a");
    Kokkos::Profiling::popRegion();
  }
  launch("a");
  profiler.stop();
  launch("after");
  const auto rows = profiler.rows();
  EXPECT_EQ(text_of(rows), "outer:2 >a:4 >inner:2 >>sum:2 a:1 ");
  EXPECT_GT(rows[3].time_s, 0);
  EXPECT_GE(rows[2].time_s, rows[3].time_s);
  EXPECT_GE(rows[0].time_s, rows[1].time_s + rows[2].time_s);
}

TEST(Profiler, GoesOnAfterAPauseAndForgetsWhatDidNotEnd) {
  Profiler profiler;
  profiler.start();
  launch("a");
  Kokkos::Profiling::pushRegion("open");
  launch("in it");
  profiler.stop();
  Kokkos::Profiling::popRegion();
  launch("a");
  profiler.start();
  Kokkos::Profiling::popRegion();  // of nothing that it knows
  launch("a");
  profiler.stop();
  EXPECT_EQ(text_of(profiler.rows()), "a:2 open:0 >in it:1 ");
}

TEST(Profiler, LeavesOtherToolsTheirCallbacks) {
  using namespace Kokkos::Tools::Experimental;
  const EventSet before = get_callbacks();
  set_begin_parallel_for_callback(
      [](const char* label, std::uint32_t, std::uint64_t*) { heard().emplace_back(label); });
  set_push_region_callback([](const char* name) { heard().emplace_back(name); });
  {
    Profiler profiler;
    profiler.start();
    Kokkos::Profiling::pushRegion("region");
    launch("inside");
    Kokkos::Profiling::popRegion();
    Profiler other;
    EXPECT_THROW(other.start(), std::logic_error);
    other.stop();
    launch("still gathered");
    EXPECT_EQ(text_of(profiler.rows()), "region:1 >inside:1 still gathered:1 ");
  }
  launch("outside");
  set_callbacks(before);
  launch("unheard");
  EXPECT_EQ(heard(), (std::vector<std::string>{"region", "inside", "still gathered", "outside"}));
}

TEST(Profiler, CountsTheWorkOfCallsWhileItGathers) {
  const auto work = [] { return nn::CallWork{.flops = 100, .bytes = 10}; };
  const auto nobody_asks = []() -> nn::CallWork { throw std::logic_error("counted for nobody"); };
  nn::observe_call("katt::op", nobody_asks);
  Profiler profiler;
  profiler.start();
  Kokkos::Profiling::pushRegion("phase");
  for (int i = 0; i < 3; ++i) {
    nn::observe_call("katt::op", work);
    Kokkos::Profiling::pushRegion("katt::op");
    launch("kernel");
    Kokkos::Profiling::popRegion();
  }
  Kokkos::Profiling::popRegion();
  profiler.stop();
  nn::observe_call("katt::op", nobody_asks);
  const io::Profile mean = profiler.mean(2, 5.0);
  EXPECT_EQ(mean.runs, 2);
  EXPECT_EQ(mean.time_s, 2.5);
  ASSERT_EQ(mean.rows.size(), 3U);
  EXPECT_EQ(mean.rows[0].flops, 0);
  EXPECT_EQ(mean.rows[1].calls, 1.5);
  EXPECT_EQ(mean.rows[1].flops, 150);
  EXPECT_EQ(mean.rows[1].bytes, 15);
  EXPECT_EQ(mean.rows[2].flops, 0);
}

TEST(Profile, IsHeldAgainstTheNearestCeiling) {
  const std::vector<io::CeilingRow> ceilings{{"fma_f32", 1e11, "FLOP/s", 1, 0},
                                             {"read_dram", 1e10, "B/s", 1, 1 << 30},
                                             {"copy_dram", 8e9, "B/s", 1, 1 << 30}};
  io::Profile profile{
      .runs = 1,
      .time_s = 4,
      .rows = {
          {.name = "prefill", .depth = 0, .calls = 1, .time_s = 3},
          {.name = "katt::linear",
           .depth = 1,
           .calls = 2,
           .time_s = 2,
           .flops = 1e11,
           .bytes = 1e9},
          {.name = "katt::rope", .depth = 1, .calls = 2, .time_s = 0.5, .flops = 1e6, .bytes = 2e9},
          {.name = "append", .depth = 1, .calls = 2, .time_s = 0.25}}};
  hold_against(profile, ceilings, Backend::openmp, 1, Dtype::f32);
  EXPECT_EQ(profile.rows[0].ceiling, "");
  EXPECT_EQ(profile.rows[1].ceiling, "fma_f32");
  EXPECT_NEAR(profile.rows[1].ceiling_fraction, 0.5, 1e-9);
  EXPECT_EQ(profile.rows[2].ceiling, "copy_dram");
  EXPECT_NEAR(profile.rows[2].ceiling_fraction, 0.5, 1e-9);
  EXPECT_EQ(profile.rows[3].ceiling, "");

  const auto lines = table_lines(profile);  // head, phase, three parts, its rest, the rest
  ASSERT_EQ(lines.size(), 7U);
  EXPECT_NE(lines[1].find("prefill"), std::string::npos);
  EXPECT_NE(lines[1].find("75.0 %"), std::string::npos);
  EXPECT_NE(lines[2].find("katt::linear"), std::string::npos);
  EXPECT_NE(lines[2].find("0.50 fma_f32"), std::string::npos);
  EXPECT_NE(lines[5].find("6.2 %"), std::string::npos) << lines[5];
  EXPECT_NE(lines[6].find("25.0 %"), std::string::npos);
}

TEST(Profile, IsOfOneRunAndWithoutWhatRestores) {
  toy::Journal journal;
  class Launching final : public Candidate {
   public:
    explicit Launching(toy::Journal& to) : journal_(to) {}
    void run() override {
      journal_.emplace_back("run");
      launch("katt::toy::first");
      launch("katt::toy::second");
      launch("katt::toy::second");
    }
    bool restore() override {
      journal_.emplace_back("restore");
      launch("katt::toy::restore");
      return true;
    }
    void fence() override { Exec().fence("katt::toy::fence"); }
    void poison() override {}
    Errors verify() override { return {}; }

   private:
    toy::Journal& journal_;
  } candidate(journal);
  const io::Profile found = profile(candidate, 1);
  EXPECT_EQ(found.runs, 2);
  EXPECT_EQ(journal, (toy::Journal{"restore", "run", "restore", "run"}));
  EXPECT_EQ(text_of(found.rows), "katt::toy::first:1 katt::toy::second:2 ");
  EXPECT_GE(found.time_s, found.rows[0].time_s + found.rows[1].time_s);
  EXPECT_GT(profile(candidate, 1e-6).runs, 10);
}

TEST(Profile, SharesAreThoseOfTheOutermostParts) {
  const io::Profile found{
      .runs = 2,
      .time_s = 10,
      .rows = {
          {"katt::rope", 0, 1, 1}, {"katt::rope::turn", 1, 1, 0.5}, {"katt::linear", 0, 4, 6}}};
  EXPECT_EQ(shares_text(found), "katt::linear 60.0 %, katt::rope 10.0 %, rest 30.0 %");
}

}  // namespace
}  // namespace katt::bench
