/// katt-candidate [--untrusted BYTES] [--threads N] LIB.so: answers the requests of a sweep with the
/// functions of a shared library (docs/candidates.md). A sweep starts it, with the files that
/// process/peer_process.hpp names as its descriptors.
///
/// katt-candidate [--untrusted BYTES] [--threads N] --exec PROGRAM [ARGUMENT...]: becomes that
/// program, which answers itself: a candidate in Python, or a peer.
///
/// --untrusted: in a cage (process/sandbox.hpp), with so many bytes of writable memory.
#include <fcntl.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <future>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "drivers/candidate/library.hpp"
#include "drivers/candidate/openmp.hpp"
#include "process/sandbox.hpp"

namespace katt::candidate {
namespace {

using Json = nlohmann::json;
constexpr int inputs_file = 3, outputs_file = 4;

/// The sweep's socket. The library may print: that goes to standard error.
class Lines {
 public:
  Lines() : socket_(fcntl(0, F_DUPFD_CLOEXEC, outputs_file + 1)) {
    dup2(2, 1);
    const int nothing = open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (nothing >= 0) dup2(nothing, 0);
  }

  /// The next line; nothing at the end.
  std::optional<std::string> read() {
    for (;;) {
      if (const auto end = unread_.find('\n'); end != std::string::npos) {
        std::string line = unread_.substr(0, end);
        unread_.erase(0, end + 1);
        return line;
      }
      char bytes[4096];
      const ssize_t n = ::read(socket_, bytes, sizeof bytes);
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) return std::nullopt;
      unread_.append(bytes, static_cast<std::size_t>(n));
    }
  }

  void write(const std::string& line) const {
    const std::string text = line + '\n';
    for (std::size_t sent = 0; sent < text.size();) {
      const ssize_t n = ::write(socket_, text.data() + sent, text.size() - sent);
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) std::_Exit(1);  // the sweep has ended
      sent += static_cast<std::size_t>(n);
    }
    kill(getpid(), SIGSTOP);  // until the next request: no thread goes on
  }

 private:
  int socket_;
  std::string unread_;
};

/// Lets this thread, and those that it starts, run on these processors.
void allow(const Json& processors) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int processor : processors) CPU_SET(processor, &set);
  if (!processors.empty()) (void)sched_setaffinity(0, sizeof set, &set);
}

/// Starts a thread that sleeps on this processor to the end of the process, and returns its number.
/// A process has stopped when all its threads have, and a thread that sleeps on an idle processor
/// has to be woken for that, which takes tens of microseconds. With such a thread every request takes
/// that long, before a kernel is loaded and behind the work of its threads.
pid_t start_sleeper(int processor) {
  std::promise<pid_t> number;
  std::future<pid_t> started = number.get_future();
  std::thread([processor, number = std::move(number)]() mutable {
    allow({processor});
    number.set_value(gettid());
    std::promise<void>().get_future().wait();  // for ever
  }).detach();
  return started.get();
}

/// Answers requests, with one open case at a time.
class Server {
 public:
  explicit Server(std::string path) : path_(std::move(path)) {}

  Json answer(const Json& request) {
    const std::string what = request.at("do");
    if (what == "about") return about();
    if (what == "open") return open(request);
    if (what == "run") return run(request.at("times"));
    if (what == "spin") return spin(request);
    // The outputs are in the shared memory, and the inputs are read there.
    if (what == "forget" || what == "read" || what == "inputs") return {{"ok", true}};
    if (what != "close") return {{"failed", "unknown request " + what}};
    problem_.reset();
    return {{"ok", true}};
  }

 private:
  Library& library() {
    if (!library_) library_.emplace(path_);
    return *library_;
  }

  Json about() {
    Json passes = Json::array();
    if (library().forward != nullptr) passes.push_back("forward");
    if (library().backward != nullptr) passes.push_back("backward");
    return {{"ok", true}, {"about", library().about}, {"passes", passes}};
  }

  Json open(const Json& request) {
    bound_ = request.at("bound").get<std::vector<int>>();
    allow(bound_.empty() ? request.at("processors") : request.at("bound"));
    const bool is_backward = request.at("pass") == "backward";
    if (request.at("backend") == "cuda") return {{"skipped", "candidates run on the CPU"}};
    run_ = is_backward ? library().backward : library().forward;
    if (run_ == nullptr) {
      return {{"skipped",
               std::string("it has no katt_candidate_") + (is_backward ? "backward" : "forward")}};
    }
    if (request.at("axes").value("layout", "bhsd") == "bshd") {
      return {{"skipped", "candidates get tensors as (batch, head, seq, dim), not as bshd"}};
    }
    problem_ = std::make_unique<Problem>(request, inputs_file, outputs_file);
    const katt_problem shapes = problem_->without_memory();
    if (library().supports != nullptr) {
      if (const char* const reason = library().supports(&shapes)) {
        constexpr std::size_t longest = 500;
        return {{"skipped", *reason != '\0' ? std::string(reason).substr(0, longest)
                                            : "it does not compute this case"}};
      }
    }
    const std::size_t bytes =
        library().workspace != nullptr ? library().workspace(&shapes) : std::size_t{0};
    call_ = &problem_->with_memory(bytes);
    bind_openmp(bound_);
    return {{"ok", true}, {"about", library().about}, {"inputs", true}, {"in_place", true}};
  }

  /// Work of a known length, to measure what a request takes beside it. This thread runs where the
  /// first of the kernel's will.
  Json spin(const Json& request) {
    const std::vector<int> bound = request.at("bound");
    if (sleepers_.empty() && !bound.empty()) {
      allow({bound.front()});
      for (const int processor : std::span(bound).subspan(1)) {
        sleepers_.push_back(start_sleeper(processor));
      }
    }
    const double seconds = request.at("seconds");
    const auto start = std::chrono::steady_clock::now();
    std::chrono::duration<double> spent{};
    do {
      spent = std::chrono::steady_clock::now() - start;
    } while (spent.count() < seconds);
    return {{"seconds", spent.count()}, {"sleepers", sleepers_}};
  }

  Json run(int times) {
    if (!problem_) return {{"failed", "no case is open"}};
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < times; ++i) {
      if (const int error = run_(call_); error != 0) {
        return {{"failed", std::string("katt_candidate_") + call_->pass + " returned " +
                               std::to_string(error)}};
      }
    }
    const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - start;
    return {{"seconds", times > 0 ? spent.count() / times : 0}};
  }

  std::string path_;
  std::optional<Library> library_;
  std::unique_ptr<Problem> problem_;
  const katt_problem* call_ = nullptr;
  Library::Run run_ = nullptr;
  std::vector<int> bound_;
  std::vector<pid_t> sleepers_;
};

void serve(const std::string& path) {
  Lines lines;
  Server server(path);
  while (const auto line = lines.read()) {
    Json reply;
    Json request;
    try {
      request = Json::parse(*line);
      reply = server.answer(request);
    } catch (const std::bad_alloc&) {
      reply = {{"failed", "out of memory"}};
    } catch (const std::exception& error) {
      const std::string text = error.what();
      constexpr std::size_t longest = 500;
      reply = {{"failed", text.substr(0, std::min(text.find('\n'), longest))}};
    }
    if (request.contains("id")) reply["id"] = request["id"];
    lines.write(reply.dump(-1, ' ', false, Json::error_handler_t::replace));
  }
  std::_Exit(0);  // no destructor of the library has a say
}

struct Arguments {
  std::optional<std::size_t> untrusted;  ///< bytes
  std::string threads;
  bool exec = false;
  std::vector<char*> rest;  ///< the library, or the program and its arguments
};

Arguments read(int count, char** values) {
  Arguments arguments;
  int i = 1;
  for (; i < count && std::strncmp(values[i], "--", 2) == 0; ++i) {
    const std::string option = values[i];
    if (option == "--exec") {
      arguments.exec = true;
    } else if ((option == "--untrusted" || option == "--threads") && i + 1 < count) {
      if (option == "--threads") arguments.threads = values[++i];
      else arguments.untrusted = std::strtoull(values[++i], nullptr, 10);
    } else {
      break;
    }
  }
  arguments.rest.assign(values + i, values + count);
  return arguments;
}

/// Numbers of threads for the libraries that are loaded from now on.
void set_threads(const std::string& threads) {
  if (threads.empty()) return;
  for (const char* name :
       {"OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS"}) {
    setenv(name, threads.c_str(), 1);
  }
  setenv("OMP_DYNAMIC", "false", 1);
  setenv("OMP_PROC_BIND", "false", 1);  // the sweep says where threads run: openmp.hpp
  unsetenv("OMP_PLACES");
}

int candidate_main(int count, char** values) {
  const Arguments arguments = read(count, values);
  if (arguments.rest.empty() || (!arguments.exec && arguments.rest.size() != 1)) {
    std::fprintf(stderr,
                 "usage: katt-candidate [--untrusted BYTES] [--threads N] LIB.so | --exec PROGRAM "
                 "[ARGUMENT...]; katt sweep --candidate starts it\n");
    return 2;
  }
  prctl(PR_SET_PDEATHSIG, SIGKILL);  // a stopped process does not see the end of its input
  syscall(SYS_close_range, outputs_file + 1, ~0U, 0);
  set_threads(arguments.threads);
  if (arguments.untrusted) {
    bench::enter_sandbox({.data_bytes = *arguments.untrusted, .executes = arguments.exec});
  }
  if (!arguments.exec) serve(arguments.rest.front());
  std::vector<char*> program = arguments.rest;
  program.push_back(nullptr);
  execv(program.front(), program.data());
  std::fprintf(stderr, "cannot start %s: %s\n", program.front(), std::strerror(errno));
  return 1;
}

}  // namespace
}  // namespace katt::candidate

int main(int count, char** values) {
  try {
    return katt::candidate::candidate_main(count, values);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
