#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <iterator>
#include <string>
#include <vector>

#include "core/error.hpp"
#include "hdf5_builder.hpp"
#include "io/outputs.hpp"

namespace katt::io {
namespace {

using test::TemporaryFolder;

/// Runs a function in a child process, which it ends with status 0.
template <class Function>
void in_a_child(const Function& function) {
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) function();
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

/// Writes a file by pieces while others do the same.
void write_whole(const std::filesystem::path& path, char letter) {
  AtomicFile file(path);
  for (int piece = 0; piece < 100; ++piece) file.write(std::string(1000, letter));
  file.commit();
}

TEST(AtomicFile, OfSeveralWritersOneIsWhole) {
  const TemporaryFolder folder;
  std::array<pid_t, 4> children{};
  for (std::size_t i = 0; i < children.size(); ++i) {
    children[i] = ::fork();
    ASSERT_GE(children[i], 0);
    if (children[i] != 0) continue;
    try {
      for (int round = 0; round < 10; ++round) {
        write_whole(folder / "x", static_cast<char>('a' + static_cast<int>(i)));
      }
    } catch (const std::exception&) {
      ::_exit(1);
    }
    ::_exit(0);
  }
  for (const pid_t child : children) {
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
  }
  const std::string bytes = test::read_bytes(folder / "x");
  EXPECT_EQ(bytes, std::string(100000, bytes.empty() ? 'x' : bytes[0]));
  EXPECT_FALSE(test::holds_a_part(folder.path()));
}

TEST(AtomicFile, RemovesWhatTheDeadLeftAndNothingElse) {
  const TemporaryFolder folder;
  in_a_child([&] {
    const AtomicFile unfinished(folder / "x");
    ::_exit(0);  // no destructors
  });
  EXPECT_TRUE(test::holds_a_part(folder.path()));
  const std::vector<std::string> others{
      "x.h5",           ".x.4711.part",        ".x.katt-short.part",
      ".x.katt-abcdef", ".y.katt-abcdef.part", "x.part"};
  for (const std::string& name : others) test::write_bytes(folder / name, "y");
  const AtomicFile alive(folder / "x");
  { const AtomicFile next(folder / "x"); }
  EXPECT_TRUE(std::filesystem::exists(alive.temporary()));
  for (const std::string& name : others) EXPECT_EQ(test::read_bytes(folder / name), "y") << name;
  const auto files = std::filesystem::directory_iterator(folder.path());
  EXPECT_EQ(std::distance(begin(files), end(files)), std::ssize(others) + 1);
}

TEST(AtomicFile, KeepsTheModeOfAFile) {
  const TemporaryFolder folder;
  using std::filesystem::perms;
  for (const perms mode : {perms{0600}, perms{0640}, perms{0755}, perms{0400}}) {
    test::write_bytes(folder / "x", "old");
    std::filesystem::permissions(folder / "x", mode);
    AtomicFile file(folder / "x");
    EXPECT_EQ(std::filesystem::status(file.temporary()).permissions(), mode);
    file.write("new");
    file.commit();
    EXPECT_EQ(std::filesystem::status(folder / "x").permissions(), mode);
    EXPECT_EQ(test::read_bytes(folder / "x"), "new");
    std::filesystem::remove(folder / "x");
  }
}

/// A limit on the size of files stands for a full disk.
TEST(AtomicFile, SaysWhyItCannotWrite) {
  const TemporaryFolder folder;
  test::write_bytes(folder / "x", "old");
  in_a_child([&] {
    ::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{1000, RLIM_INFINITY};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    const std::string expected = (folder / "x").string() + ": cannot be written: File too large";
    const AtomicFile file(folder / "x");
    const auto fails = [&](const auto& function) {
      try {
        function();
      } catch (const InputError&) {
        return false;
      } catch (const std::runtime_error& error) {
        return error.what() == expected;
      }
      return false;
    };
    const bool told =
        fails([&] { file.reserve(2000); }) && fails([&] { file.write(std::string(2000, 'x')); });
    file.reserve(1000);
    ::_exit(told ? 0 : 1);
  });
  EXPECT_EQ(test::read_bytes(folder / "x"), "old");
}

TEST(AtomicFile, ASignalRemovesTheScratchFileOfItsOwnProcessAlone) {
  const TemporaryFolder folder;
  std::array<int, 2> pipe{};
  ASSERT_EQ(::pipe(pipe.data()), 0);
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    remove_scratch_on_signals();
    const AtomicFile file(folder / "x");
    const FileLock lock(folder / "x");
    const pid_t grandchild = ::fork();
    if (grandchild == 0) ::raise(SIGTERM);
    int status = 0;
    ::waitpid(grandchild, &status, 0);
    const bool kept = std::filesystem::exists(file.temporary()) && WIFSIGNALED(status);
    (void)!::write(pipe[1], kept ? "y" : "n", 1);
    for (;;) ::pause();
  }
  char kept = 'n';
  EXPECT_EQ(::read(pipe[0], &kept, 1), 1);
  EXPECT_EQ(kept, 'y');
  ::kill(child, SIGINT);
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGINT);
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

}  // namespace
}  // namespace katt::io
