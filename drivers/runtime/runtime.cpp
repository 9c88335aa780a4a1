#include "drivers/runtime/runtime.hpp"

#include <unistd.h>

#include <csignal>
#include <iostream>
#include <limits>

#include <Kokkos_Core.hpp>

#include "core/devices.hpp"
#include "core/text.hpp"
#include "drivers/runtime/messages.hpp"
#include "drivers/runtime/surroundings.hpp"
#include "io/atomic_file.hpp"
#include "machine/machine.hpp"
#include "memory/tracker.hpp"
#include "plan/axes.hpp"
#include "plan/operator_axes.hpp"
#include "ranks/communicator.hpp"
#include "sweep/sweep_together.hpp"

namespace katt::impl {
namespace {

Backend default_backend() {
  for (const Backend backend : all_backends) {
    if (is_built(backend)) return backend;
  }
  return Backend::serial;
}

}  // namespace

Runtime::Runtime(int threads, std::optional<int> device) {
  if (!Kokkos::is_initialized()) {
    if (device) devices::choose(*device);
    // Kokkos would abort the program; this build is of no use without a device.
    if (const std::string problem = bench::backend_problem(default_backend()); !problem.empty()) {
      throw InputError("backend " + std::string(name_of(default_backend())) + ": " + problem);
    }
    // An explicit number of threads does not depend on the environment.
    auto settings = Kokkos::InitializationSettings()
                        .set_num_threads(threads)
                        .set_disable_warnings(true)
                        .set_print_configuration(false);  // it would print to stdout, which is ours
    if (device) settings.set_device_id(*device);
    Kokkos::initialize(settings);
    if (wants_kokkos_configuration()) Kokkos::print_configuration(std::cerr);
    owner_ = true;
  }
  if (const int used = Kokkos::device_id(); used >= 0) devices::choose(used);
  memory::install();
}

Runtime::~Runtime() {
  if (owner_) Kokkos::finalize();
}

void tell_threads(int threads) {
  const int cores = bench::machine().cores;
  if (threads <= cores) return;
  tell("warning: " + std::to_string(threads) + " threads on " +
       bench::counted_text(static_cast<std::size_t>(cores), "processor") +
       ": they wait for each other");
}

const std::atomic<bool>& stop_on_signals(const char* word) {
  static std::atomic<bool> requested{false};
  static std::string said;
  if (messages() != nullptr) said = std::string("\n") + word + "; again to stop now\n";
  const auto on_signal = [](int signal) {
    if (!requested.exchange(true)) {
      [[maybe_unused]] const auto written = write(STDERR_FILENO, said.data(), said.size());
    }
    std::signal(signal, io::end_by_signal);
  };
  std::signal(SIGINT, on_signal);
  std::signal(SIGTERM, on_signal);
  return requested;
}

Backend backend_option(const std::optional<std::string>& text) {
  if (!text) return default_backend();
  const std::vector<std::string> built = bench::built_backends();
  const auto backend = backend_from_name(*text);
  if (backend && is_built(*backend)) return *backend;
  const std::string near = bench::suggestion(*text, built);
  throw InputError("--backend " + *text + ": " +
                   (backend        ? bench::backend_problem(*backend) + "; "
                    : near.empty() ? "unknown; "
                                   : "unknown; " + near + " ") +
                   "expected " + bench::join(built, ", "));
}

std::optional<int> device_option(const std::optional<std::string>& text, Backend backend) {
  if (!text) return std::nullopt;
  if (backend != Backend::cuda) {
    throw InputError("--device " + *text + ": the backend " + std::string(name_of(backend)) +
                     " has no devices, expected with --backend cuda alone");
  }
  const auto device = static_cast<int>(bench::parse_count("--device", *text, 0, 1 << 20));
  if (const int count = devices::count(); device >= count) {
    throw InputError("--device " + *text + ": " +
                     (count == 0   ? "no device is visible"
                      : count == 1 ? "expected 0, the only one that is visible"
                                   : "expected 0 to " + std::to_string(count - 1)));
  }
  return device;
}

int threads_option(const std::optional<std::string>& text) {
  if (!text) return bench::share_of_cores(ranks::world());
  return static_cast<int>(bench::parse_count("--threads", *text, 1, bench::thread_limit));
}

std::optional<Dtype> dtype_option(const std::optional<std::string>& text) {
  if (!text) return std::nullopt;
  const auto dtype = bench::dtype_of_text(*text);
  if (!dtype) throw InputError("--dtype " + *text + ": unknown; expected f32, f16, bf16");
  return dtype;
}

std::uint64_t seed_option(const std::optional<std::string>& text, std::uint64_t fallback) {
  constexpr std::int64_t most = std::numeric_limits<std::int64_t>::max();
  return text ? static_cast<std::uint64_t>(bench::parse_count("--seed", *text, 0, most)) : fallback;
}

}  // namespace katt::impl
