#pragma once

#include <nanobind/nanobind.h>

#include <cstddef>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include <Kokkos_Core.hpp>

#include "core/error.hpp"
#include "core/execution.hpp"
#include "core/variants.hpp"

/// Where operators called from Python run: Kokkos on the host, one call at a time.
namespace katt::python {

namespace nb = nanobind;

/// What must be freed before Kokkos ends.
class Resource {
 public:
  virtual ~Resource() = default;
  virtual void release() = 0;
};

/// Kokkos for the life of the module. It starts with the first call that needs it and leaves the caller's number of
/// OpenMP threads, which PyTorch's is too, as it was. A call has all its threads to itself: others wait, without
/// Python's lock.
class HostRuntime {
 public:
  static HostRuntime& get();

  /// Calls f(exec) with an instance of so many threads; 0: the default.
  template <class F>
  void run(int threads, F&& f) {
    const nb::gil_scoped_release release;
    const std::lock_guard lock(mutex_);
    start();
    f(instance(threads));
  }

  /// Memory for a call, valid until the next one.
  Kokkos::View<std::byte*, Kokkos::HostSpace> workspace(std::size_t bytes);

  [[nodiscard]] int threads();
  [[nodiscard]] int most_threads();
  void set_threads(int threads);

  void add(Resource* resource) { resources_.insert(resource); }
  void remove(Resource* resource) { resources_.erase(resource); }

  /// Ends Kokkos; calls are refused from here on.
  void stop();

 private:
  void start();
  const Host& instance(int threads);
  void check_threads(const char* name, int threads) const;

  std::mutex mutex_;
  bool started_ = false;
  bool stopped_ = false;
  int most_threads_ = 0;
  int threads_ = 0;
  std::map<int, Host> instances_;
  Kokkos::View<std::byte*, Kokkos::HostSpace> workspace_;
  std::set<Resource*> resources_;
};

/// Variant, values of its parameters (none: the default), threads (0: the default).
using Call = std::tuple<std::string, std::vector<int>, int>;

/// Checks the arguments and runs the variant that the call means. Throws InputError, for a refusal of the variant too.
template <class Args>
void run(const char* op, VariantTable<Host, Args>& table, const Args& args, const Call& call) {
  check(args);
  const auto& [variant, setting, threads] = call;
  HostRuntime& host = HostRuntime::get();
  host.run(threads, [&](const Host& exec) {
    const Config config = table.resolve(exec, args, {variant, setting});
    const auto workspace = host.workspace(table.workspace_bytes(exec, args, config));
    const Status status = table.run(exec, args, config, workspace);
    exec.fence("katt::python::run");
    if (!status.is_ok()) {
      throw InputError(std::string(op) + ": variant " + config.variant + ": " + status.reason());
    }
  });
}

}  // namespace katt::python
