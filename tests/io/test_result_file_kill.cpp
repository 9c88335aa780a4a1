// kill -9 at random instants: the file opens every time and holds every row that was acknowledged.

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <random>
#include <set>

#include "hdf5_builder.hpp"
#include "io/hdf5/result_file.hpp"
#include "result_columns.hpp"

namespace katt {
namespace {

using io::ResultFile;
using test::some_columns;
using test::some_row;

constexpr std::size_t samples_per_row = 20;

/// Commits rows without end and reports each one, numbered from `first`, through the pipe.
[[noreturn]] void write_rows(const std::filesystem::path& path, int pipe) {
  try {
    ResultFile file = ResultFile::resume(path, some_columns());
    file.commit_run({{"status", "running"}});
    for (std::int32_t i = 0;; ++i) {
      file.commit_rows({some_row("p" + std::to_string(i), file.run(), samples_per_row)});
      const std::string report = file.run() + "/p" + std::to_string(i) + "\n";
      if (::write(pipe, report.data(), report.size()) < 0) ::_exit(4);
    }
  } catch (const std::exception& error) {
    const std::string report = std::string("error: ") + error.what() + "\n";
    if (::write(pipe, report.data(), report.size()) < 0) ::_exit(4);
  }
  ::_exit(3);
}

std::set<std::string> read_lines(int pipe) {
  std::string text;
  std::array<char, 4096> buffer{};
  for (ssize_t got = 0; (got = ::read(pipe, buffer.data(), buffer.size())) > 0;) {
    text.append(buffer.data(), static_cast<std::size_t>(got));
  }
  std::set<std::string> lines;
  for (std::size_t start = 0, end = 0; (end = text.find('\n', start)) != std::string::npos;
       start = end + 1) {
    lines.insert(text.substr(start, end - start));
  }
  return lines;
}

void expect_samples(const std::filesystem::path& path, const std::set<std::string>& points) {
  const io::impl::Handle file(H5Fopen(path.c_str(), H5F_ACC_RDONLY, H5P_DEFAULT));
  ASSERT_TRUE(file.valid());
  for (const std::string& point : points) {
    const std::string name = "/samples/" + point;
    const io::impl::Handle set(H5Dopen2(file.get(), name.c_str(), H5P_DEFAULT));
    ASSERT_TRUE(set.valid()) << name;
    std::array<double, samples_per_row> values{};
    ASSERT_GE(H5Dread(set.get(), H5T_NATIVE_DOUBLE, H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data()),
              0);
    EXPECT_EQ(values[7], some_row("", "", samples_per_row).samples_s[7]);
  }
}

TEST(ResultFileKill, EveryAcknowledgedRowSurvives) {
  const test::TemporaryFolder folder;
  const auto path = folder / "r.h5";
  std::mt19937 random(20240607);
  std::uniform_int_distribution<useconds_t> wait_us(500, 120000);
  std::set<std::string> acknowledged;
  int leftovers = 0;
  for (int round = 0; round < 30; ++round) {
    std::array<int, 2> pipe{};
    ASSERT_EQ(::pipe2(pipe.data(), O_CLOEXEC), 0);
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) write_rows(path, pipe[1]);
    ::close(pipe[1]);
    ::usleep(wait_us(random));
    ::kill(child, SIGKILL);
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    const std::set<std::string> reported = read_lines(pipe[0]);
    ::close(pipe[0]);
    ASSERT_TRUE(WIFSIGNALED(status)) << *reported.begin();
    acknowledged.insert(reported.begin(), reported.end());

    leftovers += test::holds_a_part(folder.path()) ? 1 : 0;
    if (!std::filesystem::exists(path)) {
      ASSERT_TRUE(acknowledged.empty());
      continue;
    }
    std::set<std::string> found;
    {
      const ResultFile file = ResultFile::resume(path, some_columns());
      for (const auto& cells : file.rows()) {
        found.insert(std::get<std::string>(cells[1]) + "/" + std::get<std::string>(cells[0]));
      }
      ASSERT_EQ(found.size(), file.rows().size());
    }
    for (const std::string& point : acknowledged) ASSERT_TRUE(found.contains(point)) << point;
    // at most the one row of each round whose report did not arrive
    EXPECT_LE(found.size(), acknowledged.size() + static_cast<std::size_t>(round) + 1);
    expect_samples(path, found);
    EXPECT_FALSE(test::holds_a_part(folder.path()));
  }
  EXPECT_GT(acknowledged.size(), 0U);
  RecordProperty("rows", std::to_string(acknowledged.size()));
  RecordProperty("killed_within_a_commit", leftovers);
}

}  // namespace
}  // namespace katt
