#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <stdexcept>

#include "io/guarded_read.hpp"

namespace katt {
namespace {

using io::impl::read_guarded;
using Result = std::optional<std::string>;

TEST(GuardedRead, ReturnsTheBytes) {
  EXPECT_EQ(read_guarded([] { return Result("f32"); }, 5), "f32");
  EXPECT_EQ(read_guarded([] { return Result(""); }, 5), "");
  const std::string large(5'000'003, '\0');  // more than a pipe holds
  EXPECT_EQ(read_guarded([&] { return Result(large); }, 5), large);
}

TEST(GuardedRead, SurvivesWhatTheReaderDoesNot) {
  EXPECT_EQ(read_guarded([] { return Result(); }, 5), std::nullopt);
  EXPECT_EQ(read_guarded([]() -> Result { throw std::runtime_error("x"); }, 5), std::nullopt);
  for (const int signal : {SIGSEGV, SIGABRT, SIGKILL}) {
    EXPECT_EQ(read_guarded(
                  [signal] {
                    ::raise(signal);
                    return Result("not reached");
                  },
                  5),
              std::nullopt);
  }
}

TEST(GuardedRead, EndsAReaderThatDoesNot) {
  const auto forever = [] {
    ::sleep(60);
    return Result("late");
  };
  EXPECT_EQ(read_guarded(forever, 1), std::nullopt);
}

}  // namespace
}  // namespace katt
