#include "machine/affinity.hpp"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <thread>

#include "core/stopwatch.hpp"
#include "machine/first_touch.hpp"
#include "machine/topology.hpp"

#if defined(_OPENMP)
#include <omp.h>
#endif

namespace katt::bench {
namespace {

std::vector<int> processors_of_this_thread() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return {};
  std::vector<int> list;
  for (int processor = 0; processor < CPU_SETSIZE; ++processor) {
    if (CPU_ISSET(processor, &set)) list.push_back(processor);
  }
  return list;
}

void bind_this_thread(const std::vector<int>& processors) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int processor : processors) CPU_SET(processor, &set);
  (void)sched_setaffinity(0, sizeof(set), &set);  // refused: it stays as it was
}

/// Keeps the threads busy until the system has spread them, and returns the processor of each.
std::vector<int> where_threads_settle(int threads) {
  constexpr int longest_ms = 50;
  constexpr int step_ms = 2;
  std::vector<int> places(static_cast<std::size_t>(threads), -1);
  for (int spent = 0; spent < longest_ms; spent += step_ms) {
    on_each_thread(threads, [&](std::size_t thread) {
      const Stopwatch watch;
      while (watch.seconds() < step_ms * 1e-3) {
      }
      places[thread] = sched_getcpu();
    });
    if (std::set(places.begin(), places.end()).size() == places.size()) break;
  }
  return places;
}

/// True when a thread runs or waits for a processor.
bool runs(const std::filesystem::path& thread) {
  std::ifstream file(thread / "stat");
  std::string line;
  std::getline(file, line);
  const auto name_end = line.rfind(')');  // "7 (name of it) R …"
  return name_end != std::string::npos && name_end + 2 < line.size() && line[name_end + 2] == 'R';
}

bool rests(pid_t process) {
  const std::string self = std::to_string(gettid());
  std::error_code error;
  for (std::filesystem::directory_iterator thread("/proc/" + std::to_string(process) + "/task",
                                                  error);
       !error && thread != std::filesystem::directory_iterator(); thread.increment(error)) {
    if (thread->path().filename() != self && runs(thread->path())) return false;
  }
  return true;
}

/// Threads of the newest Bound, and the thread that made it, whose team they are; 0: none lives.
std::atomic<int> bound_threads{0};
std::atomic<pid_t> bound_by{0};

}  // namespace

void on_each_thread(int threads, const std::function<void(std::size_t)>& f) {
#if defined(_OPENMP)
#pragma omp parallel num_threads(threads)
  f(static_cast<std::size_t>(omp_get_thread_num()));
#else
  (void)threads;
  f(0);
#endif
}

void unbind_this_thread() { bind_this_thread(allowed_processors()); }

void allow_all_processors() {
  cpu_set_t set;
  std::fill_n(reinterpret_cast<unsigned char*>(&set), sizeof set, 0xFF);
  (void)sched_setaffinity(0, sizeof set, &set);  // the system leaves out processors that the job
                                                 // may not use
}

const std::vector<int>& allowed_processors() {
  static const std::vector<int> allowed = [] {
    const std::vector<int> own = processors_of_this_thread();
    std::set<int> all(own.begin(), own.end());
#if defined(_OPENMP)
    for (int place = 0; place < omp_get_num_places(); ++place) {
      std::vector<int> list(static_cast<std::size_t>(omp_get_place_num_procs(place)));
      omp_get_place_proc_ids(place, list.data());
      all.insert(list.begin(), list.end());
    }
#endif
    return std::vector<int>(all.begin(), all.end());
  }();
  return allowed;
}

Bound::Bound(int threads) {
  const std::vector<int>& allowed = allowed_processors();
  if (threads < 2 || static_cast<std::size_t>(threads) > allowed.size()) return;
  before_.resize(static_cast<std::size_t>(threads));
  on_each_thread(threads, [&](std::size_t thread) {
    before_[thread] = processors_of_this_thread();
    bind_this_thread(allowed);  // the environment may have bound them
  });
  processors_ = placement(topology(), allowed, where_threads_settle(threads));
  on_each_thread(threads, [&](std::size_t thread) { bind_this_thread({processors_[thread]}); });
  bound_by = gettid();
  bound_threads = threads;
}

Bound::~Bound() {
  if (processors_.empty()) return;
  bound_threads = 0;
  on_each_thread(static_cast<int>(processors_.size()),
                 [&](std::size_t thread) { bind_this_thread(before_[thread]); });
}

void Bound::renew() const {
  if (processors_.empty()) return;
  on_each_thread(static_cast<int>(processors_.size()), [&](std::size_t thread) {
    if (sched_getcpu() != processors_[thread]) bind_this_thread({processors_[thread]});
  });
}

void touch_in_parts(int threads, const void* data, std::size_t bytes) {
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  const std::size_t pages = bytes / page;
  if (pages < 2 * static_cast<std::size_t>(threads)) return;
  auto* const first = static_cast<unsigned char*>(const_cast<void*>(data));
  on_each_thread(threads, [&](std::size_t thread) {
    const auto count = static_cast<std::size_t>(threads);
    for (std::size_t i = pages * thread / count; i < pages * (thread + 1) / count; ++i) {
      touch_byte(first + i * page);
    }
  });
}

void touch_on_nodes(const void* data, std::size_t bytes) {
  const int threads = bound_threads;
#if defined(_OPENMP)
  if (omp_in_parallel() != 0) return;
#endif
  if (threads > 1 && bound_by == gettid() && topology().nodes() > 1) {
    touch_in_parts(threads, data, bytes);
  }
}

bool wait_for_rest(pid_t process, double limit_s) {
  const Stopwatch watch;
  while (!rests(process)) {
    if (watch.seconds() > limit_s) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

}  // namespace katt::bench
