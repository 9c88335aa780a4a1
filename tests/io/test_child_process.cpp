#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <numeric>
#include <stdexcept>
#include <vector>

#include "core/error.hpp"
#include "process/child_process.hpp"
#include "tests/message_of.hpp"

namespace katt {
namespace {

using io::impl::ChildGone;
using io::impl::ChildProcess;
using io::impl::Reply;
using io::impl::run_in_child;
using test::message_of;

TEST(ChildProcess, AnswersOneRequestAfterAnother) {
  int count = 0;
  ChildProcess child([&count](std::string_view request, Reply& reply) {
    reply.send(std::string(request) + " ");
    reply.send(std::to_string(++count));
  });
  EXPECT_EQ(child.ask("a"), "a 1");
  EXPECT_EQ(child.ask(""), " 2");
  EXPECT_EQ(child.ask(std::string(1 << 20, 'x')).size(), (1U << 20) + 2);
  EXPECT_EQ(count, 0) << "the count is the child's own";
}

TEST(ChildProcess, FillsMemoryThatWasAskedFor) {
  std::vector<std::int32_t> expected(1'250'003);
  std::iota(expected.begin(), expected.end(), 7);
  ChildProcess child([&](std::string_view request, Reply& reply) {
    const auto* bytes = reinterpret_cast<const char*>(expected.data());
    const std::size_t size = expected.size() * sizeof(std::int32_t) - (request == "short" ? 1 : 0);
    reply.send({bytes, 999});
    reply.send({bytes + 999, size - 999});
  });
  std::vector<std::int32_t> values(expected.size());
  child.ask("", std::as_writable_bytes(std::span(values)));
  EXPECT_EQ(values, expected);
  EXPECT_EQ(
      message_of<ChildGone>([&] { child.ask("short", std::as_writable_bytes(std::span(values))); }),
      "gives an answer that makes no sense");
}

TEST(ChildProcess, PassesOnWhatItThrows) {
  ChildProcess child([](std::string_view request, Reply& reply) {
    if (request == "input") throw InputError("a.h5: is odd");
    if (request == "other") throw std::range_error("too far");
    reply.send("still there");
  });
  EXPECT_EQ(message_of<InputError>([&] { (void)child.ask("input"); }), "a.h5: is odd");
  EXPECT_EQ(message_of<std::runtime_error>([&] { (void)child.ask("other"); }), "too far");
  EXPECT_EQ(child.ask(""), "still there");
}

TEST(ChildProcess, SurvivesWhatTheChildDoesNot) {
  for (const auto& [number, expected] : {std::pair(SIGSEGV, "ends with SIGSEGV"),
                                         {SIGABRT, "ends with SIGABRT"},
                                         {SIGKILL, "ends with SIGKILL"}}) {
    ChildProcess child([number = number](std::string_view, Reply& reply) {
      reply.send("a part");
      ::raise(number);
    });
    EXPECT_EQ(message_of<ChildGone>([&] { (void)child.ask(""); }), expected);
    EXPECT_EQ(message_of<ChildGone>([&] { (void)child.ask(""); }), expected) << "again";
  }
  ChildProcess leaves([](std::string_view, Reply&) { ::_exit(0); });
  EXPECT_EQ(message_of<ChildGone>([&] { (void)leaves.ask(""); }), "ends its process");
}

TEST(ChildProcess, EndsAChildThatDoesNot) {
  ChildProcess computes(
      [](std::string_view, Reply&) {
        volatile int sum = 0;
        while (sum >= 0) sum = 1;
      },
      {.processor_s = 1, .any_s = 600});
  EXPECT_EQ(message_of<ChildGone>([&] { (void)computes.ask(""); }), "takes longer than 1 s");
  ChildProcess waits([](std::string_view, Reply&) { ::sleep(600); },
                     {.processor_s = 600, .any_s = 1});
  EXPECT_EQ(message_of<ChildGone>([&] { (void)waits.ask(""); }), "takes longer than 1 s");
}

TEST(ChildProcess, LeavesNoProcessBehind) {
  {
    ChildProcess idle([](std::string_view, Reply&) {});
    ChildProcess busy([](std::string_view, Reply& reply) { reply.send("x"); });
    (void)busy.ask("");
  }
  run_in_child([] {});
  EXPECT_EQ(message_of<std::runtime_error>(
                [] { run_in_child([] { throw std::runtime_error("once"); }); }),
            "once");
  EXPECT_EQ(::waitpid(-1, nullptr, WNOHANG), -1);
  EXPECT_EQ(errno, ECHILD);
}

}  // namespace
}  // namespace katt
