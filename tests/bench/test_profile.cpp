#include <gtest/gtest.h>

#include <stdexcept>
#include <string>
#include <vector>

#include <Kokkos_Core.hpp>

#include "bench/profile.hpp"
#include "tests/bench/toy_operator.hpp"

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

/// What a tool that was loaded before was told.
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
