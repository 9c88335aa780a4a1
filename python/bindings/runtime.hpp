#pragma once

#include <nanobind/nanobind.h>

#include <cstddef>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <tuple>
#include <type_traits>
#include <vector>

#include <Kokkos_Core.hpp>

#include "arrays.hpp"
#include "core/error.hpp"
#include "core/execution.hpp"
#include "device.hpp"
#include "op/variants.hpp"
#include "place.hpp"

/// Runs operators for Python: with Kokkos on the host, one call at a time, and on streams of
/// devices.
namespace katt::python {

namespace nb = nanobind;

/// Memory that must be freed before Kokkos ends.
class Resource {
 public:
  virtual ~Resource() = default;
  virtual void release() = 0;
};

/// Kokkos for the life of the module. It starts with the first call that needs it and leaves the caller's number of
/// OpenMP threads, which PyTorch's is too, as it was. A call on the host has all its threads to itself: others wait,
/// without Python's lock.
class Runtime {
 public:
  static Runtime& get();

  /// Calls f(exec) with a host instance of this many threads; 0: the default.
  template <class F>
  void run(int threads, F&& f) {
    const nb::gil_scoped_release release;
    const std::lock_guard lock(usable());
    start();
    f(instance(threads));
  }

  /// Calls f(exec, workspace) with an instance at that place, where `workspace(bytes)` is memory
  /// for the call. On the host the work is done when this returns; on a device it is in its stream,
  /// unless the place waits. Throws DeviceError for errors of CUDA.
  template <class F>
  void run(const Place& place, int threads, F&& f) {
    if (place.on_host()) {
      return run(threads, [&](const Host& exec) {
        Kokkos::View<std::byte*, Kokkos::HostSpace> held;  // until the work is done
        f(exec, [&](std::size_t bytes) {
          held = workspace(bytes);
          return Workspace(held);
        });
        exec.fence("katt::python::run");
      });
    }
#if defined(KATT_HAS_CUDA)
    const nb::gil_scoped_release release;
    const std::lock_guard lock(usable());
    start();
    devices_.run(place, f);
#endif
  }

  [[nodiscard]] int threads();
  [[nodiscard]] int most_threads();
  void set_threads(int threads);

  void add(Resource* resource) { resources_.insert(resource); }
  void remove(Resource* resource) { resources_.erase(resource); }

  /// Ends Kokkos. Later calls are refused.
  void stop();

 private:
  Runtime();
  /// The lock of the calls. Throws std::runtime_error in a child of fork() that has lost the threads of its parent.
  std::mutex& usable();
  void start();
  const Host& instance(int threads);
  void check_threads(const char* name, int threads) const;
  /// Memory for a call on the host; beyond most_kept_bytes it is the caller's alone.
  Kokkos::View<std::byte*, Kokkos::HostSpace> workspace(std::size_t bytes);

  std::mutex mutex_;
  bool forked_ = false;  ///< true: this is the child of a process that has computed
  bool started_ = false;
  bool stopped_ = false;
  int most_threads_ = 0;
  int threads_ = 0;
  std::map<int, Host> instances_;
  Kokkos::View<std::byte*, Kokkos::HostSpace> workspace_;
  std::set<Resource*> resources_;
#if defined(KATT_HAS_CUDA)
  Devices devices_;
#endif
};

/// Variant, values of its parameters (none: the default), threads (0: the default).
using Call = std::tuple<std::string, std::vector<int>, int>;

/// The variants of a pass, in every execution space.
template <class Pass>
struct TableOf {
  template <class Exec>
  [[nodiscard]] const auto& of() const {
    return Pass::template table<Exec>();
  }
};

/// Checks the arguments and runs the call's variant of a pass (op/schema.hpp) at the place of the
/// arrays. Throws InputError, for a refusal of the variant too.
template <class Pass, class Table = TableOf<Pass>>
void run(const Arrays& arrays, const typename Pass::Args& args, const Call& call,
         const Table& table = {}) {
  check(args);
  if constexpr (requires { check_values(args); }) {
    if (arrays.place().on_host()) check_values(args);
  }
  const auto& [variant, setting, threads] = call;
  const Config request{variant, setting};
  Runtime::get().run(
      arrays.place(), threads, [&]<class Exec>(const Exec& exec, const auto& workspace) {
        const auto& variants = table.template of<Exec>();
        const auto decided = variants.call(exec, args, request);
        if (!decided.status().is_ok()) {
          throw InputError(std::string(arrays.op()) + ": variant " + decided.variant().name + ": " +
                           decided.status().reason());
        }
        decided.launch(workspace(decided.workspace_bytes()));
      });
}

}  // namespace katt::python
