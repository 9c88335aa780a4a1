#include <algorithm>
#include <cmath>
#include <cstdio>
#include <utility>

#include "core/build_info.hpp"
#include "core/devices.hpp"
#include "core/text.hpp"
#include "drivers/options/command_line.hpp"
#include "drivers/runtime/blas_kernels.hpp"
#include "drivers/runtime/commands.hpp"
#include "drivers/runtime/messages.hpp"
#include "drivers/runtime/runtime.hpp"
#include "drivers/summaries.hpp"
#include "machine/affinity.hpp"
#include "machine/huge_pages.hpp"
#include "machine/machine.hpp"
#include "machine/sensors.hpp"
#include "machine/topology.hpp"
#include "measure/ceilings.hpp"
#include "measure/counters/counters.hpp"
#include "plan/axes.hpp"
#include "plan/plan.hpp"
#include "ranks/communicator.hpp"
#include "ranks/environment.hpp"
#include "tile/bf16/amx.hpp"
#if defined(KATT_HAS_CUDA) && defined(KATT_HAS_MODEL)
#include "nn/inference/cuda_graph.hpp"
#endif

namespace katt::impl {
namespace {

void print(const char* name, const std::string& value) {
  std::printf("  %-16s%s\n", name, value.c_str());
}

std::string build_text() {
  const BuildInfo& build = build_info();
  return std::string(build.commit) + (build.dirty ? " (modified)" : "");
}

std::string blas_text() {
  const std::string kernels(impl::blas_kernels());
  return std::string(build_info().blas) + (kernels.empty() ? "" : ", kernels of " + kernels);
}

std::string ranks_text() {
  const int ranks = ranks::world().size();
  return ranks::mpi_version() + (ranks > 1 ? ", " + std::to_string(ranks) + " ranks" : "") +
         (ranks::mpi_takes_device_memory() ? ", takes device memory" : "");
}

std::string memory_text() {
  return bench::human_bytes(static_cast<double>(bench::machine().memory_bytes)) + ", " +
         bench::human_bytes(static_cast<double>(bench::available_memory(Backend::openmp))) +
         " available";
}

std::string amx_text() {
  const std::string& refusal = tile::amx::refusal();
  return refusal.empty() ? "usable" : "not usable: " + refusal;
}

std::string avx512_bf16_text() {
  return !cpu_features().avx512_bf16       ? "no"
         : cpu_features().fast_avx512_bf16 ? "yes"
                                           : "yes, slower than f32: auto widens bf16";
}

void print_counters() {
  const auto told = [](const std::string& refusal) {
    return refusal.empty() ? "counted" : "not counted, " + refusal;
  };
  print("counters", "cycles " + told(bench::counters_refusal()) + "; energy " +
                        told(bench::EnergyCounters().refusal()));
}

std::string backend_text(Backend backend) {
  const std::string problem = bench::backend_problem(backend);
  if (!problem.empty()) return "not available: " + problem;
  const int threads = bench::resolved_threads(backend, 0);
  return bench::device_name(backend) +
         (threads > 0 ? ", " + std::to_string(threads) + (threads == 1 ? " thread" : " threads")
                      : "");
}

void print_devices() {
  for (int device = 0; device < devices::count(); ++device) {
    const devices::Memory memory = devices::memory(device);
    const int capability = devices::capability(device);
    print(("device " + std::to_string(device)).c_str(),
          devices::name(device) + ", compute capability " + std::to_string(capability / 10) + "." +
              std::to_string(capability % 10) + ", " +
              bench::human_bytes(static_cast<double>(memory.free)) + " of " +
              bench::human_bytes(static_cast<double>(memory.total)) + " free");
  }
#if defined(KATT_HAS_CUDA) && defined(KATT_HAS_MODEL)
  if (devices::count() > 0) {
    const std::string refusal = CudaGraph::refusal();
    print("decoded token", refusal.empty() ? "a CUDA graph" : "launch by launch: " + refusal);
  }
#endif
}

/// The backends to ask operators about: all that run here, without serial, which has the variants
/// of openmp.
std::vector<Backend> telling_backends() {
  std::vector<Backend> backends;
  for (const Backend backend : all_backends) {
    if (backend != Backend::serial && Kokkos::is_initialized() && is_built(backend)) {
      backends.push_back(backend);
    }
  }
  return backends;
}

/// "naive flash decode; not here: flash_amx": the variants of all passes of a backend.
std::string variants_text(const bench::Operator& op, Backend backend) {
  std::vector<std::string> here, elsewhere;
  const auto holds = [](const std::vector<std::string>& list, const std::string& name) {
    return std::find(list.begin(), list.end(), name) != list.end();
  };
  for (const std::string& pass : op.passes()) {
    for (const bench::VariantInfo& info : op.variants(backend, pass)) {
      if (holds(here, info.name)) continue;
      std::erase(elsewhere, info.name);
      (bench::refusal_here(op, backend, pass, info.name).empty() ? here : elsewhere)
          .push_back(info.name);
    }
  }
  return bench::join(here, " ") +
         (elsewhere.empty() ? "" : "; not here: " + bench::join(elsewhere, " "));
}

/// One screen: the program, and the operators that this machine can run.
void print_screen(const bench::Registry& registry) {
  const BuildInfo& build = build_info();
  std::printf("katt %s\n\nbuild\n", build.version);
  print("commit", build_text() + ", " + build.build_type);
  print("compiler", build.compiler + std::string(", Kokkos ") + build.kokkos_version);
  print("BLAS", blas_text());
  if (const std::string remark = impl::blas_remark(); !remark.empty()) print("", remark);
  print("MPI", ranks_text());
  std::printf("machine\n");
  const bench::Machine& host = bench::machine();
  print("cpu", host.cpu + ", " + std::to_string(host.cores) +
                   " processors: " + bench::topology_text(bench::topology()));
  print("bf16 units", "AMX " + amx_text() + "; AVX512-BF16 " + avx512_bf16_text());
  print("caches", bench::caches_text(bench::topology()));
  print("memory", memory_text() + "; huge pages: " + memory::huge_pages());
  print_counters();
  for (const Backend backend : all_backends) {
    print(std::string(name_of(backend)).c_str(), backend_text(backend));
  }
  print_devices();
  std::printf("operators, and their variants that this machine runs (katt info OP tells more)\n");
  for (const bench::Operator* op : registry.all()) {
    std::vector<std::string> parts;
    for (const Backend backend : telling_backends()) {
      parts.push_back((parts.empty() ? "" : std::string(name_of(backend)) + ": ") +
                      variants_text(*op, backend));
    }
    std::printf("  %-21s %s\n", op->name().c_str(), bench::join(parts, "; ").c_str());
  }
  std::printf("katt info --all lists the flags, instruction sets and tiles\n");
}

void print_all_of_build() {
  const BuildInfo& build = build_info();
  std::printf("katt %s\n\nbuild\n", build.version);
  print("commit", build_text());
  print("type", build.build_type);
  print("compiler", build.compiler);
  print("flags", build.compile_flags);
  print("Kokkos", build.kokkos_version);
  print("Kokkos Kernels", build.kokkos_kernels_version);
  print("BLAS", blas_text());
  if (const std::string remark = impl::blas_remark(); !remark.empty()) print("", remark);
  print("HDF5", build.hdf5_version);
  print("MPI", ranks_text());
  print("NCCL", ranks::nccl_version());
  const bench::Machine& host = bench::machine();
  std::printf("\nmachine\n");
  print("cpu", host.cpu + ", " + std::to_string(host.cores) + " cores");
  print("isa", bench::join(host.isa, " "));
  print("AMX bf16", amx_text());
  print("AVX512-BF16", avx512_bf16_text());
  print("topology", bench::topology_text(bench::topology()));
  for (const std::string& node : bench::node_lines(bench::topology())) print("", node);
  print("caches", bench::caches_text(bench::topology()));
  print("memory", memory_text());
  print("huge pages", memory::huge_pages());
  print_counters();
  print("os", host.os);
  std::printf("\nbackends\n");
  for (const Backend backend : all_backends) {
    print(std::string(name_of(backend)).c_str(), backend_text(backend));
  }
  print_devices();
}

/// One line a variant, with its tiles below: whether this machine runs it.
void print_variants(const bench::Operator& op) {
  for (const Backend backend : telling_backends()) {
    for (const std::string& pass : op.passes()) {
      std::printf("  %s on %s\n", pass.c_str(), std::string(name_of(backend)).c_str());
      for (const bench::VariantInfo& info : op.variants(backend, pass)) {
        const std::string refusal = bench::refusal_here(op, backend, pass, info.name);
        std::printf("    %-19s%s%s%s\n", info.name.c_str(), info.description.c_str(),
                    info.baseline ? " (baseline)" : "",
                    refusal.empty() ? "" : ("; not here: " + refusal).c_str());
        std::vector<std::string> tiles;
        for (const Setting& tile : info.settings) tiles.push_back(to_text(tile));
        if (!tiles.empty()) std::printf("%23stiles %s\n", "", bench::join(tiles, ", ").c_str());
      }
    }
  }
}

void print_heading(const bench::Operator& op) {
  std::printf("%s: %s\n", op.name().c_str(), op.summary().c_str());
  if (const auto presets = bench::preset_names(op); !presets.empty()) {
    std::printf("  presets of tiles: %s\n", bench::join(presets, ", ").c_str());
  }
}

void print_operators(const bench::Registry& registry) {
  std::printf("\noperators\n");
  for (const bench::Operator* op : registry.all()) {
    print_heading(*op);
    print_variants(*op);
  }
}

void print_operator(const bench::Operator& op) {
  print_heading(op);
  print_variants(op);
  std::printf("  axes of katt sweep %s\n", op.name().c_str());
  for (const auto& specs : {op.axes(), bench::common_axes(op)}) {
    for (const bench::AxisSpec& axis : specs) {
      const std::string names =
          (axis.short_name.empty() ? "" : dashed(axis.short_name) + ", ") + dashed(axis.name);
      const std::string fallback = !axis.follows.empty()    ? "as " + axis.follows
                                   : axis.name == "threads" ? "all"
                                                            : bench::to_text(axis.fallback);
      std::printf("    %-24s%-14s%s%s\n", names.c_str(), fallback.c_str(), axis.help.c_str(),
                  axis.choices.empty() || axis.help.find(axis.choices.front()) != std::string::npos
                      ? ""
                      : (": " + bench::join(axis.choices, ", ")).c_str());
    }
  }
  const auto tensors = op.case_tensors();
  if (tensors.empty()) return;
  std::printf("  tensors of katt run %s (attributes: docs/schema.md)\n", op.name().c_str());
  using Role = bench::CaseTensor::Role;
  for (const auto& [role, title] : {std::pair(Role::input, "inputs"),
                                    {Role::output, "outputs"},
                                    {Role::gradient, "gradients"}}) {
    std::vector<std::string> of_role;
    for (const bench::CaseTensor& tensor : tensors) {
      if (tensor.role != role) continue;
      of_role.push_back(tensor.name + " " + tensor.shape + (tensor.is_optional ? " optional" : ""));
    }
    if (!of_role.empty()) std::printf("    %-10s%s\n", title, bench::join(of_role, ", ").c_str());
  }
}

void print_ceilings(std::span<const io::CeilingRow> ceilings) {
  if (ceilings.empty()) return;
  std::printf("\nceilings, measured\n");
  for (const io::CeilingRow& row : ceilings) {
    if (std::isnan(row.value)) {
      std::printf("  %-16snot measured: %s\n", row.name.c_str(),
                  row.threads > 0 ? "disturbed, or too little memory" : "the device is emulated");
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
  bool all = false;
  line.positional("op", "operator to tell all of (default: what this machine can run)",
                  operator_values(invocation.registry));
  line.flag("--all", all, "list all that there is");
  line.option("--threads", "host threads to measure with (default: every core)");
  line.option("--device", "number of the GPU to measure (default: 0)");
  line.flag("--json", json, "print as JSON");
  line.flag("--measure", measure, "measure the ceilings of this machine (one to five seconds)");
  line.example("katt info", "what this build is, and what this machine can run");
  line.example("katt info attention", "its variants, tiles, axes and tensors");
  line.example("katt info --measure",
               "and the ceilings of this machine, which kernels are held against");
  if (!line.parse(invocation)) return 0;

  const auto& op = line.text("op");
  const bench::Operator* const asked = op ? &invocation.registry.find(*op) : nullptr;
  const std::optional<int> chosen = device_option(
      line.text("--device"), is_built(Backend::cuda) ? Backend::cuda : Backend::openmp);
  const int most = threads_option(line.text("--threads"));
  std::optional<Runtime> runtime;
  const Backend host = is_built(Backend::openmp) ? Backend::openmp : Backend::serial;
  // A CUDA build without a device still describes itself.
  if (measure || bench::backend_problem(host).empty()) {
    runtime.emplace(most, chosen);
  }
  std::vector<io::CeilingRow> ceilings;
  tell_threads(most);
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
    std::printf("%s\n", bench::info_json(invocation.registry, ceilings, asked).c_str());
    return 0;
  }
  if (asked != nullptr) {
    print_operator(*asked);
  } else if (all) {
    print_all_of_build();
    print_operators(invocation.registry);
  } else {
    print_screen(invocation.registry);
  }
  print_ceilings(ceilings);
  return 0;
}

}  // namespace katt::impl
