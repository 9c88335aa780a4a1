#include "record/provenance.hpp"

#include <algorithm>
#include <array>
#include <ctime>
#include <iterator>
#include <sstream>

#include <Kokkos_Core.hpp>
#include <nlohmann/json.hpp>

#include "core/build_info.hpp"
#include "core/text.hpp"
#include "machine/huge_pages.hpp"
#include "machine/machine.hpp"
#include "machine/topology.hpp"
#include "plan/axes.hpp"
#include "record/json.hpp"

namespace katt::bench {
namespace {

std::string kokkos_configuration() {
  std::ostringstream text;
  Kokkos::print_configuration(text);
  return text.str();
}

}  // namespace

std::string utc_now() {
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  gmtime_r(&now, &utc);
  std::array<char, 32> text{};
  std::strftime(text.data(), text.size(), "%Y-%m-%dT%H:%M:%SZ", &utc);
  return text.data();
}

io::Attributes program_and_machine(const std::vector<Backend>& backends) {
  const BuildInfo& build = build_info();
  const Machine& host = machine();
  std::vector<std::string> names;
  std::vector<std::string> devices;
  for (const Backend backend : backends) {
    names.emplace_back(name_of(backend));
    add_once(devices, device_name(backend));
  }
  const auto bytes = [](std::size_t n) { return static_cast<std::int64_t>(n); };
  return {
      {"katt_version", std::string(build.version)},
      {"commit", std::string(build.commit)},
      {"dirty", std::int64_t{build.dirty ? 1 : 0}},
      {"build_type", std::string(build.build_type)},
      {"compiler", std::string(build.compiler)},
      {"compile_flags", std::string(build.compile_flags)},
      {"kokkos_version", std::string(build.kokkos_version)},
      {"kokkos_config", kokkos_configuration()},
      {"kokkos_kernels_version", std::string(build.kokkos_kernels_version)},
      {"blas", std::string(build.blas)},
      {"hdf5_version", std::string(build.hdf5_version)},
      {"backend", join(names, ",")},
      {"device", join(devices, ", ")},
      {"cpu_id", host.cpu_id},
      {"cores", std::int64_t{host.cores}},
      {"isa", join(host.isa, " ")},
      {"l1d_bytes", bytes(topology().cache_bytes(1))},
      {"l2_bytes", bytes(topology().cache_bytes(2))},
      {"l3_bytes", bytes(topology().cache_bytes(3))},
      {"memory_bytes", bytes(host.memory_bytes)},
      {"huge_pages", memory::huge_pages()},
      {"os", host.os},
      {"load_average", load_average()},
      {"environment", environment_json()},
  };
}

std::string candidates_json(const Settings& settings) {
  auto told = nlohmann::json::object();
  for (const auto& [name, file] : settings.candidates) {
    told[name] = file.description(settings.untrusted);
  }
  return told.dump();
}

io::Attributes provenance(const SweepRequest& request, const std::string& command,
                          const std::vector<Backend>& backends) {
  io::Attributes attributes{
      {"command", command},
      {"title", request.title},
      {"sweep", request.source.empty() ? entries_json(request.entries) : request.source},
      {"settings", settings_json(request.settings)},
      {"seed", static_cast<std::int64_t>(request.settings.seed)},
      {"started_at", utc_now()},
      {"finished_at", std::string()},
      {"peers", candidates_json(request.settings)},  // known also where the run does not end
      {"status", std::string("running")},
  };
  std::ranges::move(program_and_machine(backends), std::back_inserter(attributes));
  return attributes;
}

io::Attributes closing(const std::string& status, const std::string& peers) {
  return {{"status", status}, {"finished_at", utc_now()}, {"peers", peers}};
}

std::string command_text(int argc, const char* const* argv) {
  std::string text = "katt";
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    const bool plain = !argument.empty() &&
                       argument.find_first_of(" \t\n\"'\\$&|;<>()*?[]{}#~`!") == std::string::npos;
    text += ' ';
    if (plain) {
      text += argument;
      continue;
    }
    text += '\'';
    for (const char c : argument) {
      if (c == '\'') text += "'\\''";
      else text += c;
    }
    text += '\'';
  }
  return text;
}

}  // namespace katt::bench
