#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <fstream>
#include <string>

#include "hdf5_builder.hpp"
#include "io/atomic_file.hpp"

namespace katt::io {
namespace {

using test::TemporaryFolder;

/// Writes a file by pieces while others do the same.
void write_whole(const std::filesystem::path& path, char letter) {
  AtomicFile file(path);
  std::ofstream out(file.temporary(), std::ios::binary);
  for (int piece = 0; piece < 100; ++piece) {
    out << std::string(1000, letter) << std::flush;
  }
  out.close();
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
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const AtomicFile unfinished(folder / "x");
    ::_exit(0);  // no destructors
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  const auto left = folder / (".x." + std::to_string(child) + ".part");
  const auto of_another = folder / (".x." + std::to_string(::getppid()) + ".part");
  const auto of_no_process = folder / ".x.old.part";
  for (const auto& path : {of_another, of_no_process}) test::write_bytes(path, "y");
  EXPECT_TRUE(std::filesystem::exists(left));
  { const AtomicFile next(folder / "x"); }
  EXPECT_FALSE(std::filesystem::exists(left));
  EXPECT_EQ(test::read_bytes(of_another), "y");
  EXPECT_EQ(test::read_bytes(of_no_process), "y");
}

}  // namespace
}  // namespace katt::io
