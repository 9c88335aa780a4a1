#include "drivers/summaries.hpp"

#include <cstdint>
#include <string>
#include <utility>

#include <nlohmann/json.hpp>

#include "core/build_info.hpp"
#include "core/devices.hpp"
#include "io/json_input.hpp"
#include "machine/huge_pages.hpp"
#include "machine/machine.hpp"
#include "machine/sensors.hpp"
#include "machine/topology.hpp"
#include "measure/counters/counters.hpp"
#include "op/code.hpp"
#include "plan/forecast.hpp"
#include "ranks/communicator.hpp"
#include "ranks/environment.hpp"
#include "record/json.hpp"
#include "record/merge.hpp"
#include "sweep/sweep.hpp"
#include "tile/bf16/amx.hpp"

namespace katt::bench {
namespace {

using Json = nlohmann::ordered_json;

Json topology_json() {
  const Topology& host = topology();
  Json processors = Json::array();
  for (const Processor& one : host.processors) {
    processors.push_back(
        {{"id", one.id}, {"socket", one.socket}, {"node", one.node}, {"core", one.core}});
  }
  return {{"sockets", host.sockets()},
          {"numa_nodes", host.nodes()},
          {"cores", host.cores()},
          {"processors", std::move(processors)}};
}

Json machine_json() {
  const Machine& host = machine();
  Json caches = Json::array();
  for (const CacheLevel& cache : topology().caches) {
    caches.push_back(
        {{"level", cache.level}, {"bytes", cache.bytes}, {"shared_by", cache.shared_by}});
  }
  return {{"cpu", host.cpu},
          {"cpu_id", host.cpu_id},
          {"cores", host.cores},
          {"isa", host.isa},
          {"amx_refusal", tile::amx::refusal()},
          {"avx512_bf16", cpu_features().avx512_bf16},
          {"caches", std::move(caches)},
          {"topology", topology_json()},
          {"counters_refusal", counters_refusal()},
          {"energy_refusal", EnergyCounters().refusal()},
          {"os", host.os},
          {"memory_bytes", host.memory_bytes},
          {"huge_pages", memory::huge_pages()},
          {"available_bytes", available_memory(Backend::openmp)}};
}

/// The files that the program is made of, path → hash of the tokens, and the paths of those that models run.
Json code_json() {
  const CodeTable table = impl::code_table();
  Json files = Json::object();
  for (const CodeFile& file : table.files) files[std::string(file.file)] = file.tokens;
  Json model = Json::array();
  if (const Code* found = find_code("model", "", "")) {
    for (const std::uint16_t index : found->files) model.push_back(table.files[index].file);
  }
  return {{"files", std::move(files)}, {"model", std::move(model)}};
}

Json operator_json(const Operator& op) {
  Json axes = Json::array();
  for (const AxisSpec& axis : all_axes(op)) {
    axes.push_back({{"name", axis.name},
                    {"short_name", axis.short_name},
                    {"default", io::impl::json_of<Json>(axis.fallback)},
                    {"follows", axis.follows},
                    {"choices", axis.choices},
                    {"help", axis.help}});
  }
  Json variants = Json::array();
  for (const Backend backend : all_backends) {
    if (!Kokkos::is_initialized() || !is_built(backend)) continue;
    for (const std::string& pass : op.passes()) {
      for (const VariantInfo& info : op.variants(backend, pass)) {
        std::vector<std::string> tiles;
        for (const Setting& tile : info.settings) tiles.push_back(to_text(tile));
        variants.push_back({{"backend", name_of(backend)},
                            {"pass", pass},
                            {"name", info.name},
                            {"description", info.description},
                            {"tiles", tiles},
                            {"baseline", info.baseline},
                            {"refusal", refusal_here(op, backend, pass, info.name)}});
      }
    }
  }
  return {{"name", op.name()},
          {"summary", op.summary()},
          {"passes", op.passes()},
          {"axes", std::move(axes)},
          {"variants", std::move(variants)}};
}

}  // namespace

std::string summary_json(const SweepSummary& summary, const std::string& output) {
  return dumped(Json{{"output", output},
                     {"run", summary.run},
                     {"ok", summary.ok},
                     {"skipped", summary.skipped},
                     {"failed", summary.failed},
                     {"suspect", summary.suspect},
                     {"already_present", summary.present},
                     {"interrupted", summary.interrupted},
                     {"elapsed_s", summary.elapsed_s}});
}

std::string outlook_json(const Outlook& outlook) {
  return dumped(Json{{"points", outlook.points},
                     {"rows", outlook.rows},
                     {"skipped", outlook.skipped},
                     {"memory_bytes", outlook.memory_bytes},
                     {"seconds", outlook.seconds}});
}

std::string merged_json(const Merged& merged, const std::string& output) {
  return dumped(Json{{"output", output},
                     {"files", merged.files},
                     {"runs", merged.contents.runs.size()},
                     {"rows", merged.contents.rows.size()},
                     {"missing", merged.missing},
                     {"unfinished", merged.unfinished},
                     {"duplicates", merged.duplicates},
                     {"copies", merged.copies},
                     {"commits", merged.commits},
                     {"machines", merged.machines}});
}

std::string info_json(const Registry& registry, std::span<const io::CeilingRow> ceilings,
                      const Operator* only) {
  const BuildInfo& build = build_info();
  Json backends = Json::array();
  for (const Backend backend : all_backends) {
    const std::string problem = backend_problem(backend);
    backends.push_back({{"name", name_of(backend)},
                        {"available", problem.empty()},
                        {"reason", problem},
                        {"device", problem.empty() ? device_name(backend) : ""}});
  }
  Json gpus = Json::array();
  for (int device = 0; device < devices::count(); ++device) {
    const devices::Memory memory = devices::memory(device);
    gpus.push_back({{"device", device},
                    {"name", devices::name(device)},
                    {"capability", devices::capability(device)},
                    {"memory_bytes", memory.total},
                    {"available_bytes", memory.free}});
  }
  Json operators = Json::array();
  for (const Operator* op : registry.all()) {
    if (only == nullptr || op == only) operators.push_back(operator_json(*op));
  }
  Json measured = Json::array();
  for (const io::CeilingRow& row : ceilings) {
    measured.push_back({{"name", row.name},
                        {"value", row.value},
                        {"unit", row.unit},
                        {"threads", row.threads},
                        {"bytes", row.bytes}});
  }
  return dumped({{"version", build.version},
                 {"build",
                  {{"commit", build.commit},
                   {"dirty", build.dirty},
                   {"build_type", build.build_type},
                   {"compiler", build.compiler},
                   {"compile_flags", build.compile_flags},
                   {"kokkos", build.kokkos_version},
                   {"kokkos_kernels", build.kokkos_kernels_version},
                   {"blas", build.blas},
                   {"hdf5", build.hdf5_version},
                   {"mpi", ranks::mpi_version()},
                   {"mpi_takes_device_memory", ranks::mpi_takes_device_memory()},
                   {"nccl", ranks::nccl_version()}}},
                 {"ranks", ranks::world().size()},
                 {"code", code_json()},
                 {"machine", machine_json()},
                 {"backends", std::move(backends)},
                 {"devices", std::move(gpus)},
                 {"operators", std::move(operators)},
                 {"ceilings", std::move(measured)}},
                2);
}

}  // namespace katt::bench
