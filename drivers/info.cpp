#include <cmath>
#include <cstdio>

#include "bench/affinity.hpp"
#include "bench/axes.hpp"
#include "bench/ceilings.hpp"
#include "bench/json.hpp"
#include "bench/machine.hpp"
#include "bench/plan.hpp"
#include "bench/text.hpp"
#include "core/build_info.hpp"
#include "core/cuda_graph.hpp"
#include "core/devices.hpp"
#include "dist/communicator.hpp"
#include "dist/environment.hpp"
#include "drivers/blas_kernels.hpp"
#include "drivers/command_line.hpp"
#include "drivers/commands.hpp"
#include "drivers/runtime.hpp"
#include "memory/huge_pages.hpp"
#include "tile/amx.hpp"

namespace katt::impl {
namespace {

void print(const char* name, const std::string& value) {
  std::printf("  %-16s%s\n", name, value.c_str());
}

void print_build() {
  const BuildInfo& build = build_info();
  std::printf("katt %s\n\nbuild\n", build.version);
  print("commit", std::string(build.commit) + (build.dirty ? " (modified)" : ""));
  print("type", build.build_type);
  print("compiler", build.compiler);
  print("flags", build.compile_flags);
  print("Kokkos", build.kokkos_version);
  print("Kokkos Kernels", build.kokkos_kernels_version);
  const std::string kernels(impl::blas_kernels());
  print("BLAS", std::string(build.blas) + (kernels.empty() ? "" : ", kernels of " + kernels));
  if (const std::string remark = impl::blas_remark(); !remark.empty()) print("", remark);
  print("HDF5", build.hdf5_version);
  const int ranks = dist::world().size();
  print("MPI", dist::mpi_version() + (ranks > 1 ? ", " + std::to_string(ranks) + " ranks" : "") +
                   (dist::mpi_takes_device_memory() ? ", takes device memory" : ""));
  print("NCCL", dist::nccl_version());
}

void print_machine() {
  const bench::Machine& host = bench::machine();
  std::printf("\nmachine\n");
  print("cpu", host.cpu + ", " + std::to_string(host.cores) + " cores");
  print("isa", bench::join(host.isa, " "));
  const std::string& refusal = tile::amx::refusal();
  print("AMX bf16", refusal.empty() ? "usable" : "not usable: " + refusal);
  print("AVX512-BF16", !cpu_features().avx512_bf16 ? "no"
                       : cpu_features().fast_avx512_bf16
                           ? "yes"
                           : "yes, slower than f32: auto widens bf16");
  for (const bench::CacheLevel& cache : host.caches) {
    print(
        ("L" + std::to_string(cache.level)).c_str(),
        std::to_string(cache.bytes / 1024) + " KiB, shared by " + std::to_string(cache.shared_by));
  }
  print("memory",
        bench::human_bytes(static_cast<double>(host.memory_bytes)) + ", " +
            bench::human_bytes(static_cast<double>(bench::available_memory(Backend::openmp))) +
            " available");
  print("huge pages", memory::huge_pages());
  print("os", host.os);
}

void print_backends() {
  std::printf("\nbackends\n");
  for (const Backend backend : all_backends) {
    const std::string problem = bench::backend_problem(backend);
    print(std::string(name_of(backend)).c_str(),
          problem.empty() ? bench::device_name(backend) : "not available: " + problem);
  }
  for (int device = 0; device < devices::count(); ++device) {
    const devices::Memory memory = devices::memory(device);
    const int capability = devices::capability(device);
    print(("device " + std::to_string(device)).c_str(),
          devices::name(device) + ", compute capability " + std::to_string(capability / 10) + "." +
              std::to_string(capability % 10) + ", " +
              bench::human_bytes(static_cast<double>(memory.free)) + " of " +
              bench::human_bytes(static_cast<double>(memory.total)) + " free");
  }
#if defined(KATT_HAS_CUDA)
  if (devices::count() > 0) {
    const std::string refusal = CudaGraph::refusal();
    print("decoded token", refusal.empty() ? "a CUDA graph" : "launch by launch: " + refusal);
  }
#endif
}

void print_operators(const bench::Registry& registry) {
  std::printf("\noperators\n");
  for (const bench::Operator* op : registry.all()) {
    std::printf("  %s: %s\n", op->name().c_str(), op->summary().c_str());
    if (const auto presets = bench::preset_names(*op); !presets.empty()) {
      std::printf("    presets of tiles: %s\n", bench::join(presets, ", ").c_str());
    }
    for (const Backend backend : all_backends) {
      if (!Kokkos::is_initialized() || !is_built(backend)) continue;
      for (const std::string& pass : op->passes()) {
        for (const bench::VariantInfo& info : op->variants(backend, pass)) {
          std::vector<std::string> tiles;
          for (const Setting& tile : info.settings) tiles.push_back(to_text(tile));
          std::printf("    %-8s%-10s%-19s%s%s\n", std::string(name_of(backend)).c_str(),
                      pass.c_str(), info.name.c_str(), info.description.c_str(),
                      info.baseline ? " (baseline)" : "");
          if (!tiles.empty()) std::printf("%41stiles %s\n", "", bench::join(tiles, ", ").c_str());
        }
      }
    }
  }
}

void print_ceilings(std::span<const io::CeilingRow> ceilings) {
  if (ceilings.empty()) return;
  std::printf("\nceilings, measured\n");
  for (const io::CeilingRow& row : ceilings) {
    if (std::isnan(row.value)) {
      std::printf("  %-16snot measured: the device is emulated\n", row.name.c_str());
      continue;
    }
    std::printf("  %-16s%9.1f G%s, %lld threads\n", row.name.c_str(), row.value * 1e-9,
                row.unit.c_str(), static_cast<long long>(row.threads));
  }
}

}  // namespace

int info_command(const Invocation& invocation) {
  CommandLine line("katt info", "What this program is and where it runs");
  bool json = false;
  bool measure = false;
  std::optional<std::string> device, threads_text;
  line.option("--threads", threads_text, "host threads to measure with (default: every core)");
  line.option("--device", device, "number of the GPU to measure (default: 0)");
  line.flag("--json", json, "print as JSON");
  line.flag("--measure", measure, "measure the ceilings of this machine (about a second)");
  if (!line.parse(invocation.arguments)) return 0;

  const std::optional<int> chosen =
      device_option(device, is_built(Backend::cuda) ? Backend::cuda : Backend::openmp);
  const int most = threads_option(threads_text);
  std::optional<Runtime> runtime;
  const Backend host = is_built(Backend::openmp) ? Backend::openmp : Backend::serial;
  // A CUDA build without a device still tells what it is.
  if (measure || bench::backend_problem(host).empty()) {
    runtime.emplace(most, chosen);
  }
  std::vector<io::CeilingRow> ceilings;
  if (measure) {
    const int threads = bench::resolved_threads(host, most);
    const bench::Bound bound(threads);
    ceilings = bench::measure_ceilings(host, threads);
    if (is_built(Backend::cuda)) {
      const auto device = bench::measure_ceilings(Backend::cuda, 0);
      ceilings.insert(ceilings.end(), device.begin(), device.end());
    }
  }
  if (json) {
    std::printf("%s\n", bench::info_json(invocation.registry, ceilings).c_str());
    return 0;
  }
  print_build();
  print_machine();
  print_backends();
  print_operators(invocation.registry);
  print_ceilings(ceilings);
  return 0;
}

}  // namespace katt::impl
