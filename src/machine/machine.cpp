#include "machine/machine.hpp"

#include <sys/resource.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>
#include <sstream>

#include "core/devices.hpp"
#include "core/text.hpp"
#include "machine/affinity.hpp"

#if defined(KATT_HAS_CUDA)
#include <cuda_runtime_api.h>
#endif

namespace katt::bench {
namespace {

constexpr std::size_t unlimited = std::numeric_limits<std::size_t>::max();

std::string first_line(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

/// Value of "NAME   : value", "NAME: value kB" or "NAME=value" in a file of such lines.
std::string field(const std::filesystem::path& path, std::string_view name) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (line.compare(0, name.size(), name) != 0) continue;
    const auto mark = line.find_first_of(":= \t", name.size());
    if (mark != name.size()) continue;  // a longer name
    const auto begin = line.find_first_not_of(":= \t\"", mark);
    if (begin == std::string::npos) return {};
    return line.substr(begin, line.find_last_not_of("\" \t") - begin + 1);
  }
  return {};
}

std::size_t number(const std::string& text) { return std::strtoull(text.c_str(), nullptr, 10); }

/// The instruction set extensions that kernels choose by, as /proc/cpuinfo names them.
std::vector<std::string> read_isa() {
  constexpr std::array<std::string_view, 10> prefixes{"sse4",  "avx", "fma",  "f16c", "amx",
                                                      "asimd", "sve", "fphp", "bf16", "i8mm"};
  std::string flags = field("/proc/cpuinfo", "flags");
  if (flags.empty()) flags = field("/proc/cpuinfo", "Features");
  std::vector<std::string> isa;
  std::istringstream words(flags);
  for (std::string word; words >> word;) {
    if (std::any_of(prefixes.begin(), prefixes.end(),
                    [&](std::string_view prefix) { return word.starts_with(prefix); })) {
      isa.push_back(word);
    }
  }
  return isa;
}

/// Vendor, family and model: a name such as "AMD EPYC" is that of several generations.
std::string read_cpu_id() {
  for (const auto& names : {std::array{"vendor_id", "cpu family", "model"},
                            std::array{"CPU implementer", "CPU architecture", "CPU part"}}) {
    std::vector<std::string> parts;
    for (const char* name : names) parts.push_back(field("/proc/cpuinfo", name));
    if (std::none_of(parts.begin(), parts.end(), [](auto& part) { return part.empty(); })) {
      return join(parts, " ");
    }
  }
  return {};
}

Machine read_machine() {
  Machine found;
  utsname kernel{};
  uname(&kernel);
  found.cpu = field("/proc/cpuinfo", "model name");
  if (found.cpu.empty()) found.cpu = kernel.machine;
  found.cpu_id = read_cpu_id();
  found.cores = std::clamp(static_cast<int>(allowed_processors().size()), 1, thread_limit);
  found.isa = read_isa();
  found.memory_bytes = number(field("/proc/meminfo", "MemTotal")) * 1024U;
  found.os = field("/etc/os-release", "PRETTY_NAME") + ", " + kernel.sysname + " " +
             kernel.release + " " + kernel.machine;
  return found;
}

/// Bytes that a memory control group at `folder` leaves free. Cached file pages count as used
/// there, but the kernel gives them up, so this function adds the inactive ones back.
std::size_t left_in_group(const std::filesystem::path& folder, const char* limit, const char* usage,
                          const char* inactive) {
  const std::string text = first_line(folder / limit);
  if (text.empty() || text == "max") return unlimited;
  const std::size_t used = number(first_line(folder / usage));
  const std::size_t cached = std::min(used, number(field(folder / "memory.stat", inactive)));
  const std::size_t total = number(text);
  return total > used - cached ? total - (used - cached) : 0;
}

/// The least that the groups on the way from `inside` to the root leave free.
std::size_t left_on_the_way(const std::filesystem::path& root, std::filesystem::path inside,
                            const char* limit, const char* usage, const char* inactive) {
  std::size_t left = left_in_group(root, limit, usage, inactive);
  for (; !inside.empty(); inside = inside.parent_path()) {
    left = std::min(left, left_in_group(root / inside, limit, usage, inactive));
  }
  return left;
}

std::size_t left_in_groups() {
  std::size_t left = unlimited;
  std::ifstream groups("/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    const auto parts = split(line, ':');
    if (parts.size() < 3) continue;
    const std::filesystem::path inside = std::filesystem::path(parts[2]).relative_path();
    if (parts[1].empty()) {  // version 2
      left = std::min(left, left_on_the_way("/sys/fs/cgroup", inside, "memory.max",
                                            "memory.current", "inactive_file"));
    } else if (parts[1] == "memory") {  // version 1
      left =
          std::min(left, left_on_the_way("/sys/fs/cgroup/memory", inside, "memory.limit_in_bytes",
                                         "memory.usage_in_bytes", "total_inactive_file"));
    }
  }
  return left;
}

/// Bytes that ulimit -v leaves free.
std::size_t left_in_address_space() {
  rlimit limit{};
  if (getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return unlimited;
  const std::size_t used = number(field("/proc/self/status", "VmSize")) * 1024U;
  return limit.rlim_cur > used ? limit.rlim_cur - used : 0;
}

}  // namespace

const Machine& machine() {
  static const Machine found = read_machine();
  return found;
}

double load_average() {
  double load = 0;
  return getloadavg(&load, 1) == 1 ? load : 0;
}

ProcessorTime processor_time() {
  ProcessorTime time;
  std::error_code error;
  for (std::filesystem::directory_iterator thread("/proc/self/task", error), end;
       !error && thread != end; thread.increment(error)) {
    double ran_ns = 0, waited_ns = 0;
    std::ifstream(thread->path() / "schedstat") >> ran_ns >> waited_ns;
    time.ran_s += ran_ns * 1e-9;
    time.waited_s += waited_ns * 1e-9;
  }
  for (const int processor : allowed_processors()) {
    // user nice system idle iowait irq softirq steal
    std::istringstream numbers(field("/proc/stat", "cpu" + std::to_string(processor)));
    double ticks = 0;
    for (int i = 0; i < 8; ++i) numbers >> ticks;
    if (numbers) time.waited_s += ticks / static_cast<double>(sysconf(_SC_CLK_TCK));
  }
  return time;
}

double waited_share(const ProcessorTime& before, const ProcessorTime& after) {
  constexpr double least_s = 0.05;  // a shorter time says nothing
  const double ran_s = std::max(after.ran_s - before.ran_s, 0.0);
  const double waited_s = std::max(after.waited_s - before.waited_s, 0.0);
  return ran_s + waited_s < least_s ? 0 : waited_s / (ran_s + waited_s);
}

std::size_t available_memory(Backend backend) {
  std::size_t bytes = 0;
#if defined(KATT_HAS_CUDA)
  if (backend == Backend::cuda) {
    if (devices::count() > 0) bytes = devices::memory(devices::chosen()).free;
    return bytes - bytes / 20;
  }
#endif
  (void)backend;
  bytes = std::min({number(field("/proc/meminfo", "MemAvailable")) * 1024U, left_in_groups(),
                    left_in_address_space()});
  return bytes - bytes / 20;
}

std::string device_name(Backend backend) {
  if (backend == Backend::cuda) {
    return devices::count() > 0 ? devices::name(devices::chosen()) : "no device";
  }
  return machine().cpu;
}

std::string machine_text(Backend backend) {
  const std::string name = device_name(backend);
  const std::string& id = machine().cpu_id;
  return backend == Backend::cuda || id.empty() ? name : name + " (" + id + ")";
}

bool is_emulated(Backend backend) {
  if (backend != Backend::cuda) return false;
  const std::string name = device_name(backend);
  return name.find("interpreter") != std::string::npos ||
         name.find("emulator") != std::string::npos || name.find("simulator") != std::string::npos;
}

std::string backend_problem(Backend backend) {
  if (!is_built(backend)) return "this build has no CUDA backend (scripts/build cuda makes one)";
#if defined(KATT_HAS_CUDA)
  // Kokkos initialises every backend of the build and aborts without a device, so the host backends
  // of such a build are out of reach as well.
  int devices = 0;
  const cudaError_t error = cudaGetDeviceCount(&devices);
  if (error != cudaSuccess || devices == 0) {
    return std::string("this is a CUDA build and it finds no device (") +
           cudaGetErrorString(error == cudaSuccess ? cudaErrorNoDevice : error) +
           "); a build of the preset openmp needs none";
  }
  if (const std::string problem = devices::problem(devices::chosen()); !problem.empty()) {
    return problem;
  }
#endif
  return {};
}

int resolved_threads(Backend backend, int threads) {
  if (backend == Backend::cuda) return 0;
  if (backend == Backend::serial) return 1;
  return threads > 0 ? threads : machine().cores;
}

}  // namespace katt::bench
