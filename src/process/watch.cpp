#include "process/watch.hpp"

#include <fcntl.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>
#include <stdexcept>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "process/child_process.hpp"

#if defined(KATT_HAS_CUDA)
#include <cuda_runtime_api.h>
#endif

extern char** environ;

namespace katt::bench {
namespace {

constexpr std::size_t most_faults = 100;
constexpr int first_free_descriptor = 3;

struct Fault {
  std::uint64_t number;
  std::array<char, 240> reason;
};

/// The memory that both processes share. Zeros mean empty.
struct Journal {
  std::atomic<std::uint64_t> at_work;  ///< 0: none
  std::atomic<double> since_s;         ///< on clock_s(), written before at_work
  std::array<char, 240> reason;        ///< the child's reason, when it had time to write one
  std::size_t count;
  std::array<Fault, most_faults> faults;
};

Journal* journal = nullptr;

/// Seconds on a clock that all processes share.
double clock_s() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

Journal* map(int descriptor) {
  void* memory = mmap(nullptr, sizeof(Journal), PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  return static_cast<Journal*>(memory);
}

/// The device's answer after a fault; "" when it is well, or when there is no device.
std::string device_error() {
#if defined(KATT_HAS_CUDA)
  const cudaError_t error = cudaPeekAtLastError();
  if (error != cudaSuccess) {
    return std::string(cudaGetErrorName(error)) + ": " + cudaGetErrorString(error);
  }
#endif
  return "";
}

void copy(const std::string& text, std::array<char, 240>& to) {
  to.fill('\0');
  std::copy_n(text.data(), std::min(text.size(), to.size() - 1), to.data());
}

void tell(const std::string& reason) { copy(reason, journal->reason); }

/// Kokkos aborts on a fault; the runtime still knows which it was.
void on_abort(int) {
  std::signal(SIGABRT, SIG_DFL);
  if (journal->reason[0] == '\0') tell(device_error());
  std::raise(SIGABRT);
}

std::atomic<pid_t> child{0};

/// A terminal's signals reach the child by themselves.
void hand_on(int signal, siginfo_t* info, void*) {
  const pid_t to = child;
  if (info->si_code <= 0 && to > 0) kill(to, signal);
}

/// Passes signals on to the child while the object lives.
class Handover {
 public:
  Handover() {
    struct sigaction action {};
    action.sa_sigaction = hand_on;
    action.sa_flags = SA_SIGINFO | SA_RESTART;
    for (std::size_t i = 0; i < signals.size(); ++i) {
      sigaction(signals[i], nullptr, &before_[i]);
      if (before_[i].sa_handler != SIG_IGN) sigaction(signals[i], &action, nullptr);  // nohup
    }
  }
  ~Handover() {
    for (std::size_t i = 0; i < signals.size(); ++i) sigaction(signals[i], &before_[i], nullptr);
  }
  Handover(const Handover&) = delete;
  Handover& operator=(const Handover&) = delete;

 private:
  static constexpr std::array signals{SIGINT, SIGTERM, SIGHUP};
  std::array<struct sigaction, signals.size()> before_{};
};

/// Starts this program as a child; `descriptor` becomes first_free_descriptor there.
pid_t start(std::span<const std::string> arguments, int descriptor) {
  std::vector<std::string> texts{"katt"};
  texts.insert(texts.end(), arguments.begin(), arguments.end());
  texts.push_back("--watched=" + std::to_string(first_free_descriptor));
  std::vector<char*> pointers;
  for (std::string& text : texts) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  posix_spawn_file_actions_adddup2(&files, descriptor, first_free_descriptor);
  pid_t pid = -1;
  const int error = posix_spawn(&pid, "/proc/self/exe", &files, nullptr, pointers.data(), environ);
  posix_spawn_file_actions_destroy(&files);
  if (error != 0) {
    throw std::runtime_error("cannot start this program again: " +
                             std::generic_category().message(error));
  }
  return pid;
}

/// True once the child has ended; with `blocks` not before. `status` is then waitpid's.
bool has_ended(pid_t pid, int& status, bool blocks) {
  pid_t ended = 0;
  while ((ended = waitpid(pid, &status, blocks ? 0 : WNOHANG)) < 0) {
    if (errno != EINTR) throw std::runtime_error("waitpid failed");
  }
  return ended == pid;
}

bool is_overdue(const Journal& shared, double limit_s) {
  return shared.at_work != 0 && clock_s() - shared.since_s > limit_s;
}

/// The end of a child.
struct End {
  int status = 0;  ///< waitpid's
  bool overdue = false;
};

End wait_for(pid_t pid, const Journal& shared, double limit_s) {
  using namespace std::chrono_literals;
  End end;
  while (!has_ended(pid, end.status, limit_s <= 0 || end.overdue)) {
    if (is_overdue(shared, limit_s)) {
      end.overdue = kill(pid, SIGKILL) == 0;
    } else {
      std::this_thread::sleep_for(20ms);
    }
  }
  return end;
}

std::string overdue_reason(double limit_s) {
  std::array<char, 80> text{};
  std::snprintf(text.data(), text.size(), "did not end within %g s, the limit of --limit-s",
                limit_s);
  return text.data();
}

}  // namespace

namespace watch {

void begin(int descriptor) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);  // a sweep must not continue without the process that the user
                                     // started
  journal = map(descriptor);
  close(descriptor);
  journal->at_work = 0;
  journal->reason[0] = '\0';
  std::signal(SIGABRT, on_abort);
}

bool is_on() { return journal != nullptr; }

bool is_continued() { return is_on() && journal->count > 0; }

Faults faults() {
  Faults found;
  for (std::size_t i = 0; is_on() && i < journal->count; ++i) {
    found.emplace(journal->faults[i].number, journal->faults[i].reason.data());
  }
  return found;
}

Work::Work(std::uint64_t number) {
  if (!is_on()) return;
  journal->since_s = clock_s();
  journal->at_work = number;
}

Work::~Work() {
  end_on_broken_device();
  if (is_on()) journal->at_work = 0;
}

void end_on_broken_device() {
#if defined(KATT_HAS_CUDA)
  if (!is_on() || cudaPeekAtLastError() == cudaSuccess) return;
  // An error of one call is forgotten here; one of the device comes back.
  (void)cudaGetLastError();
  if (cudaDeviceSynchronize() == cudaSuccess) return;
  tell(device_error());
  std::abort();
#endif
}

}  // namespace watch

int watch_over(std::span<const std::string> arguments, double limit_s,
               const std::function<void(const std::string&)>& note) {
  const int descriptor = memfd_create("katt_watch", MFD_CLOEXEC);
  if (descriptor < 0 || ftruncate(descriptor, sizeof(Journal)) != 0) throw std::bad_alloc();
  Journal& shared = *map(descriptor);
  // It must differ from the number that the child gets: a descriptor that is duplicated onto itself
  // stays close-on-exec.
  const int above = fcntl(descriptor, F_DUPFD_CLOEXEC, first_free_descriptor + 1);
  close(descriptor);
  if (above < 0) throw std::runtime_error("no descriptor is left");
  const Handover handover;
  for (;;) {
    child = start(arguments, above);
    const End end = wait_for(child, shared, limit_s);
    child = 0;
    if (WIFEXITED(end.status)) {
      close(above);
      munmap(&shared, sizeof(Journal));
      return WEXITSTATUS(end.status);
    }
    const int signal = WTERMSIG(end.status);
    const std::string how =
        end.overdue ? overdue_reason(limit_s)
                    : "the process that ran it ended with " + io::impl::signal_text(signal);
    const bool is_asked = !end.overdue && (signal == SIGKILL || signal == SIGTERM ||
                                           signal == SIGINT || signal == SIGHUP);
    if (is_asked && signal == SIGINT) {  // as this process itself would have ended
      std::signal(SIGINT, SIG_DFL);
      std::raise(SIGINT);
    }
    if (shared.at_work == 0 || is_asked || shared.count == most_faults) {
      throw std::runtime_error("the process of the sweep ended with " +
                               io::impl::signal_text(signal) +
                               (shared.count == most_faults ? ", like 100 before it" : "") +
                               "; what is done is kept, --resume goes on");
    }
    const std::string told = shared.reason.data();
    std::string reason = told;
    if (!told.empty()) reason += "; ";
    reason += how;
    Fault& fault = shared.faults[shared.count++];
    fault.number = shared.at_work;
    copy(reason, fault.reason);
    shared.at_work = 0;  // the next child begins later than its limit is looked at
    note(reason + "; another one goes on");
  }
}

}  // namespace katt::bench
