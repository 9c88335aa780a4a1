#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "core/error.hpp"
#include "hdf5_builder.hpp"
#include "mutate.hpp"
#include "refusal.hpp"
#include "tests/arguments.hpp"

/// The fuzz test damages valid files of a format and gives them to the program, `--count` times.
/// Each time the program must compute an answer, or end with status 2 and one line that names the
/// file, within bounds of time and memory, and leave nothing behind.
///
/// The files go through one worker process after another, this program again: a worker takes one
/// damaged file after the other until it is done, crashes or hangs; the next worker continues
/// behind that file. So a damaged file costs little more than its read by the program.
namespace katt::test::fuzz {

namespace fs = std::filesystem;

/// A file as it ought to be, and how the program is started on it: returns the exit status.
struct Valid {
  std::string bytes;
  std::function<int()> use;
};

/// One format.
struct Format {
  fs::path file;  ///< the place at which damaged files are put
  Damage damage = damage_bytes;
  std::vector<Valid> valid;
  /// Names that a refusal may hold instead of the file: files that it must agree with.
  std::vector<std::string> companions{};
};

/// Makes the valid files of a format, below a folder of its own.
using Prepare = std::function<Format(const fs::path& folder)>;

/// Exit status of a reader that is no command: as katt's main function makes it.
inline int status_of(const std::function<void()>& read) {
  try {
    read();
    return 0;
  } catch (const InputError& error) {
    std::fprintf(stderr, "katt: %s\n", error.what());
    return 2;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "katt: %s\n", error.what());
  }
  return 1;
}

inline std::uint64_t number_argument(const char* name, std::uint64_t fallback) {
  return std::stoull(argument(name, std::to_string(fallback)));
}

/// Bounds of a worker, and of the time that it may take for one file.
constexpr std::size_t memory_bytes = std::size_t{4} << 30;
constexpr std::chrono::seconds patience{60};
constexpr int most_failures = 20;

/// Collects what is written to stderr.
class Errors {
 public:
  Errors() : file_(::memfd_create("stderr", MFD_CLOEXEC)) {
    ::dup2(file_, STDERR_FILENO);
    const int none = ::open("/dev/null", O_WRONLY | O_CLOEXEC);
    ::dup2(none, STDOUT_FILENO);
    ::close(none);
  }
  /// The bytes written since the last call.
  std::string take() const {
    std::fflush(stderr);
    std::string text(static_cast<std::size_t>(::lseek(file_, 0, SEEK_CUR)), '\0');
    const ssize_t got = ::pread(file_, text.data(), text.size(), 0);
    text.resize(static_cast<std::size_t>(std::max<ssize_t>(got, 0)));
    ::lseek(file_, 0, SEEK_SET);
    static_cast<void>(::ftruncate(file_, 0));
    return text;
  }

 private:
  int file_;
};

/// Every file below a folder, with its size.
inline std::map<fs::path, std::uintmax_t> files_below(const fs::path& folder) {
  std::map<fs::path, std::uintmax_t> files;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    files.emplace(entry.path(), entry.is_regular_file() ? entry.file_size() : 0);
  }
  return files;
}

/// The fault of a refusal; empty when it is right.
inline std::string complaint_about(const std::string& errors, const Format& format) {
  if (!errors.starts_with("katt: ") || errors.find('\n') != errors.size() - 1) {
    return "is refused with " + std::to_string(std::ranges::count(errors, '\n')) +
           " lines, expected one that begins with \"katt: \"";
  }
  if (const std::string complaint = complaint_about_line(errors.substr(0, errors.size() - 1));
      !complaint.empty()) {
    return "is refused " + complaint;
  }
  std::vector<std::string> names = format.companions;
  names.push_back(format.file.filename().string());
  if (std::ranges::none_of(
          names, [&](const std::string& name) { return errors.find(name) != std::string::npos; })) {
    return "is refused without the file's name";
  }
  return "";
}

/// How many files were taken and refused.
struct Tally {
  std::uint64_t taken = 0;
  std::uint64_t refused = 0;
};

/// Gives one file to the program; returns what went wrong, or nothing.
inline std::string try_one(const Format& format, const fs::path& folder, const Errors& errors,
                           const std::string& bytes, const Valid& valid, Tally& tally) {
  write_bytes(format.file, bytes);
  const auto before = files_below(folder);
  const int status = valid.use();
  ++(status == 0 ? tally.taken : tally.refused);
  const std::string said = errors.take();
  const auto after = files_below(folder);
  std::string problem;
  // A model with damaged numbers as weights or settings says so.
  const bool is_not_finite =
      status == 1 && said.find("the logits are not finite") != std::string::npos;
  if (status == 2) {
    problem = complaint_about(said, format);
    if (problem.empty() && before != after) problem = "is refused, and leaves files behind";
  } else if (status != 0 && !is_not_finite) {
    problem = "ends with status " + std::to_string(status) + ", expected 0 or 2";
  }
  for (const auto& [path, size] : after) {
    if (!before.contains(path)) fs::remove_all(path);
  }
  return problem.empty() ? "" : problem + ": " + said.substr(0, 500);
}

/// Runs all mutations from `first` on, in the worker.
inline void work(const Format& format, const fs::path& folder, const fs::path& notes) {
#if !defined(KATT_ADDRESS_SANITIZER)  // whose shadow memory is larger than any limit
  const rlimit limit{memory_bytes, memory_bytes};
  ::setrlimit(RLIMIT_AS, &limit);
#endif
  const Errors errors;
  const int progress = ::open((notes / "progress").c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
  std::ofstream failures(notes / "failures", std::ios::app);
  const auto note = [&](std::uint64_t index, std::string problem) {
    std::ranges::replace(problem, '\n', ' ');
    if (!problem.empty()) failures << index << ' ' << problem << std::endl;
  };
  const std::uint64_t seed = number_argument("seed", 1);
  const std::uint64_t first = number_argument("first", 0);
  const std::uint64_t count = number_argument("count", 0);
  for (const Valid& valid : format.valid) {
    Tally whole;
    note(first, try_one(format, folder, errors, valid.bytes, valid, whole));
    if (whole.refused > 0) note(first, "is no damaged file: a valid one is refused");
  }
  Tally tally;
  for (std::uint64_t index = first; index < first + count; ++index) {
    static_cast<void>(::pwrite(progress, &index, sizeof index, 0));
    Dice dice(seed, index);
    const Valid& valid = dice.of(format.valid);
    const std::string& other = dice.of(format.valid).bytes;
    note(index, try_one(format, folder, errors, damaged(valid.bytes, other, format.damage, dice),
                        valid, tally));
  }
  ::close(progress);
  std::ofstream(notes / "tally") << tally.taken << ' ' << tally.refused;
}

inline std::uint64_t progress_in(const fs::path& notes) {
  const std::string bytes = read_bytes(notes / "progress");
  std::uint64_t index = ~std::uint64_t{0};
  if (bytes.size() == sizeof index) std::memcpy(&index, bytes.data(), sizeof index);
  return index;
}

/// Starts this program again as a worker, with one thread: its place in a batch.
inline pid_t start_worker(const fs::path& notes, std::uint64_t seed, std::uint64_t first,
                          std::uint64_t count) {
  const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
  const std::vector<std::string> words{
      "/proc/self/exe",
      std::string("--gtest_filter=") + test->test_suite_name() + "." + test->name(),
      "--worker",
      notes.string(),
      "--seed",
      std::to_string(seed),
      "--first",
      std::to_string(first),
      "--count",
      std::to_string(count)};
  std::vector<char*> pointers;
  for (const std::string& word : words) pointers.push_back(const_cast<char*>(word.c_str()));
  pointers.push_back(nullptr);
  const pid_t child = ::fork();
  if (child == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);  // an interrupted test leaves none behind
    ::setenv("OMP_NUM_THREADS", "1", 1);
    const int none = ::open("/dev/null", O_WRONLY);
    ::dup2(none, STDOUT_FILENO);
    ::execv(pointers[0], pointers.data());
    ::_exit(127);
  }
  return child;
}

/// Waits for a worker; ends it when it stays with one file. Returns the way it ended, or nothing
/// when it has done its work.
inline std::string wait_for(pid_t worker, const fs::path& notes) {
  auto last_change = std::chrono::steady_clock::now();
  std::uint64_t last = progress_in(notes);
  int status = 0;
  while (::waitpid(worker, &status, WNOHANG) == 0) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    const auto now = std::chrono::steady_clock::now();
    const std::uint64_t index = progress_in(notes);
    if (index != last) last_change = now;
    last = index;
    if (now - last_change < patience) continue;
    ::kill(worker, SIGKILL);
    ::waitpid(worker, &status, 0);
    return "takes longer than " + std::to_string(patience.count()) + " s";
  }
  if (WIFSIGNALED(status)) return std::string("crashes: ") + ::strsignal(WTERMSIG(status));
  return WEXITSTATUS(status) == 0 ? "" : "ends the worker";
}

/// In memory where that is possible: thousands of files are synced.
inline fs::path fast_folder() {
  const fs::path shared = "/dev/shm";
  return ::access(shared.c_str(), W_OK | X_OK) == 0 ? shared : fs::temp_directory_path();
}

/// The body of a test.
inline void run(const Prepare& prepare, std::uint64_t default_count) {
  if (const std::string notes = argument("worker", ""); !notes.empty()) {
    const fs::path folder = fs::path(notes) / "files";
    fs::remove_all(folder);
    fs::create_directory(folder);
    work(prepare(folder), folder, notes);
    return;
  }
  const std::uint64_t seed = number_argument("seed", 1);
  const std::uint64_t end = number_argument("first", 0) + number_argument("count", default_count);
  const TemporaryFolder notes(fast_folder());
  int crashes = 0;
  const auto fail = [&](const std::string& index, const std::string& problem) {
    const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
    ADD_FAILURE() << "damaged file " << index << " " << problem
                  << "\n  again: --gtest_filter=" << test->test_suite_name() << "." << test->name()
                  << " --seed " << seed << " --first " << index << " --count 1";
  };
  for (std::uint64_t first = number_argument("first", 0); first < end;) {
    fs::remove(notes / "progress");
    const std::string ending =
        wait_for(start_worker(notes.path(), seed, first, end - first), notes.path());
    if (ending.empty()) break;
    const std::uint64_t index = progress_in(notes.path());
    if (index == ~std::uint64_t{0}) {
      ADD_FAILURE() << "the worker " << ending << " before it begins";
      break;
    }
    fail(std::to_string(index), ending);
    if (++crashes == most_failures) break;
    first = index + 1;
  }
  std::ifstream failures(notes / "failures");
  int shown = 0;
  for (std::string line; std::getline(failures, line) && shown < most_failures; ++shown) {
    const std::size_t space = line.find(' ');
    fail(line.substr(0, space), line.substr(space + 1));
  }
  Tally last;  // of the last worker, which is the only one where none crashes
  std::ifstream(notes / "tally") >> last.taken >> last.refused;
  std::printf("seed %llu: %llu damaged files refused, %llu taken\n",
              static_cast<unsigned long long>(seed), static_cast<unsigned long long>(last.refused),
              static_cast<unsigned long long>(last.taken));
  if (last.taken + last.refused >= 50) {
    EXPECT_GT(last.refused, 0U) << "the files are not damaged";
  }
}

}  // namespace katt::test::fuzz
