#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <string>

#include "core/error.hpp"
#include "io/outputs.hpp"
#include "tests/message_of.hpp"
#include "tests/temporary_folder.hpp"

namespace katt::io {
namespace {

using test::message_of;
using test::TemporaryFolder;

/// A process that holds the lock of a file until it is killed.
class Writer {
 public:
  explicit Writer(const std::filesystem::path& path) {
    std::array<int, 2> pipe{};
    if (::pipe(pipe.data()) != 0) return;
    process = ::fork();
    if (process == 0) {
      const FileLock lock(path);
      (void)!::write(pipe[1], "x", 1);
      for (;;) ::pause();
    }
    char told = 0;
    (void)!::read(pipe[0], &told, 1);
  }
  ~Writer() { kill(); }
  void kill() {
    if (process <= 0) return;
    ::kill(process, SIGKILL);
    ::waitpid(process, nullptr, 0);
    process = -1;
  }
  pid_t process = -1;
};

TEST(FileLock, NamesTheProcessThatWrites) {
  const TemporaryFolder folder;
  std::filesystem::create_symlink("x", folder / "link");
  Writer writer(folder / "x");
  for (const char* name : {"x", "link"}) {
    EXPECT_EQ(message_of([&] { const FileLock lock(folder / name); }),
              (folder / name).string() + ": is being written by process " +
                  std::to_string(writer.process) + "; expected one writer at a time");
  }
  EXPECT_EQ(message_of([&] { const FileLock lock(folder / "y"); }), "");
}

TEST(FileLock, EndsWithItsProcessHoweverThatEnds) {
  const TemporaryFolder folder;
  const auto is_free = [&] {
    return message_of([&] { const FileLock lock(folder / "x"); }).empty();
  };
  Writer writer(folder / "x");
  EXPECT_FALSE(is_free());
  writer.kill();
  EXPECT_TRUE(is_free());
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
  {
    const FileLock lock(folder / "x");
    EXPECT_FALSE(is_free());
  }
  EXPECT_TRUE(is_free());
}

TEST(FileLock, StaysAfterASignalWhereThatIsAsked) {
  for (const bool stays : {false, true}) {
    const TemporaryFolder folder;
    const pid_t process = ::fork();
    if (process == 0) {
      remove_scratch_on_signals();
      const FileLock lock(folder / "x", FileLock::IfTaken::refuse, stays);
      ::raise(SIGTERM);
      ::_exit(0);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(process, &status, 0), process);
    EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM);
    EXPECT_EQ(std::filesystem::exists(lock_of(folder / "x")), stays);
    EXPECT_EQ(message_of([&] { const FileLock lock(folder / "x"); }), "");
    EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
  }
}

/// Adds a line to a file, by reading all of it and replacing it.
TEST(FileLock, WaitingWritersLoseNothing) {
  const TemporaryFolder folder;
  constexpr int writers = 4, lines = 25;
  for (int i = 0; i < writers; ++i) {
    if (::fork() != 0) continue;
    for (int line = 0; line < lines; ++line) {
      const FileLock lock(folder / "x", FileLock::IfTaken::wait);
      const bool is_there = std::filesystem::exists(folder / "x");
      write_file(folder / "x", (is_there ? test::read_bytes(folder / "x") : "") + "line\n");
    }
    ::_exit(0);
  }
  for (int i = 0; i < writers; ++i) {
    int status = 0;
    ::wait(&status);
    EXPECT_EQ(status, 0);
  }
  EXPECT_EQ(test::read_bytes(folder / "x").size(), std::size_t{5} * writers * lines);
}

TEST(Outputs, RefuseAnInputByWhateverPath) {
  const TemporaryFolder folder;
  std::filesystem::create_directory(folder / "model");
  test::write_bytes(folder / "in", "x");
  test::write_bytes(folder / "model/config.json", "{}");
  std::filesystem::create_symlink(folder / "in", folder / "link");
  std::filesystem::create_hard_link(folder / "in", folder / "hard");
  const std::vector<NamedPath> inputs{{"--in", folder / "in"}, {"--model", folder / "model"}};
  for (const char* name : {"in", "link", "hard", "model/../in", "model/config.json"}) {
    const std::string line = message_of([&] {
      check_distinct({{"--out", folder / name}}, inputs);
    });
    EXPECT_TRUE(test::contains(line, "--out " + (folder / name).string() + ": is the file of --"))
        << name << ": " << line;
  }
  for (const char* name : {"out", "model/out", "in2"}) {
    EXPECT_EQ(message_of([&] { check_distinct({{"--out", folder / name}}, inputs); }), "") << name;
  }
}

TEST(Outputs, RefuseAnotherOutputBeforeEitherIsThere) {
  const TemporaryFolder folder;
  std::filesystem::create_symlink("new", folder / "link");
  for (const char* name : {"new", "./new", "link"}) {
    const std::string line = message_of([&] {
      check_distinct({{"--out", folder / "new"}, {"--log", folder / name}}, {});
    });
    EXPECT_TRUE(test::contains(line, "is the file of --out, too")) << name << ": " << line;
  }
  EXPECT_EQ(message_of([&] {
              check_distinct({{"--out", folder / "new"}, {"--log", folder / "log"}}, {});
            }),
            "");
}

TEST(Outputs, RefuseWhatIsThereUnlessItIsReplaced) {
  const TemporaryFolder folder;
  test::write_bytes(folder / "x", "old");
  Outputs outputs;
  EXPECT_EQ(message_of([&] {
              outputs.claim({"--out", folder / "x"}, false);
            }),
            "--out " + (folder / "x").string() + ": exists; expected a new file, or --overwrite");
  outputs.claim({"--out", folder / "x"}, true);
  outputs.claim({"--log", folder / "sub/y"}, false);
  EXPECT_NE(message_of([&] { Outputs().claim({"--out", folder / "x"}, true); }), "");
  EXPECT_EQ(test::read_bytes(folder / "x"), "old");
  EXPECT_NE(message_of([&] { Outputs().claim({"--out", folder / "sub"}, true); }), "");
}

}  // namespace
}  // namespace katt::io
