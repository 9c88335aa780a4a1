#include "runtime.hpp"

#include <omp.h>
#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <stdexcept>
#include <thread>

namespace katt::python {
namespace {

/// Workspaces up to this size are kept: getting their pages from the system again would cost as
/// much as a small call.
constexpr std::size_t most_kept_bytes = std::size_t{64} << 20;

int usable_processors() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof(set), &set) == 0) return CPU_COUNT(&set);
  return static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
}

}  // namespace

Runtime& Runtime::get() {
  static auto* runtime = new Runtime;  // never destroyed: Kokkos ends in stop(), before Python does
  return *runtime;
}

Runtime::Runtime() {
  // In the child only the thread that forked is left: a team of OpenMP would wait for ever, and so
  // would a lock that another thread held.
  pthread_atfork(nullptr, nullptr, [] {
    Runtime& runtime = get();
    const bool was_free = runtime.mutex_.try_lock();
    if (was_free) runtime.mutex_.unlock();
    runtime.forked_ |= runtime.started_ || !was_free;
  });
}

std::mutex& Runtime::usable() {
  if (forked_) {
    throw std::runtime_error(
        "katt: Katt was used before fork(), whose child has no threads to compute with; start the "
        "process with the method \"spawn\"");
  }
  return mutex_;
}

void Runtime::start() {
  if (stopped_) throw InputError("katt: the interpreter is ending, no operator can run");
  if (started_) return;
  const int before = omp_get_max_threads();
  most_threads_ = std::max(usable_processors(), before);
  if (threads_ == 0) threads_ = before;
#if defined(KATT_HAS_CUDA)
  Devices::postpone();
#endif
  Kokkos::initialize(
      Kokkos::InitializationSettings().set_num_threads(most_threads_).set_disable_warnings(true));
  omp_set_num_threads(before);
  started_ = true;
}

void Runtime::stop() {
  if (forked_) return;
  const nb::gil_scoped_release release;
  const std::lock_guard lock(mutex_);
  stopped_ = true;
  if (!started_) return;
#if defined(KATT_HAS_CUDA)
  if (!devices_.stop()) return;
#endif
  for (Resource* resource : resources_) resource->release();
  instances_.clear();
  workspace_ = {};
  Kokkos::finalize();
  started_ = false;
}

void Runtime::check_threads(const char* name, int threads) const {
  if (threads >= 1 && threads <= most_threads_) return;
  throw InputError(std::string(name) + ": holds " + std::to_string(threads) + ", expected 1 to " +
                   std::to_string(most_threads_));
}

const Host& Runtime::instance(int threads) {
  if (threads == 0) threads = threads_;
  check_threads("threads", threads);
  auto found = instances_.find(threads);
  if (found == instances_.end()) found = instances_.emplace(threads, Host(threads)).first;
  return found->second;
}

Kokkos::View<std::byte*, Kokkos::HostSpace> Runtime::workspace(std::size_t bytes) {
  using View = Kokkos::View<std::byte*, Kokkos::HostSpace>;
  const auto allocate = [](std::size_t size) {
    return View(Kokkos::view_alloc("katt::python::workspace", Kokkos::WithoutInitializing), size);
  };
  if (bytes > most_kept_bytes) return allocate(bytes);
  if (bytes > workspace_.size()) {
    workspace_ = {};
    workspace_ = allocate(bytes);
  }
  return workspace_;
}

int Runtime::threads() {
  const nb::gil_scoped_release release;
  const std::lock_guard lock(usable());
  start();
  return threads_;
}

int Runtime::most_threads() {
  const nb::gil_scoped_release release;
  const std::lock_guard lock(usable());
  start();
  return most_threads_;
}

void Runtime::set_threads(int threads) {
  const nb::gil_scoped_release release;
  const std::lock_guard lock(usable());
  start();
  check_threads("threads", threads);
  threads_ = threads;
}

}  // namespace katt::python
