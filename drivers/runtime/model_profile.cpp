#include "drivers/runtime/model_profile.hpp"

#include <string>
#include <variant>

#include "drivers/runtime/messages.hpp"
#include "machine/affinity.hpp"
#include "machine/machine.hpp"
#include "measure/ceilings.hpp"
#include "measure/profile.hpp"
#include "ranks/traffic.hpp"
#include "record/provenance.hpp"

namespace katt::impl {

void tell_profile(io::Profile& profile, Backend backend, int threads, Dtype dtype) {
  const int resolved = bench::resolved_threads(backend, threads);
  {
    const bench::Bound bound(resolved);
    bench::hold_against(profile, bench::measure_ceilings(backend, resolved), backend, resolved,
                        dtype);
  }
  for (const std::string& line : bench::table_lines(profile)) tell(line);
}

void describe_run(io::TensorFile& file, const char* kind, Backend backend, int threads, Dtype dtype,
                  const io::Profile& profile) {
  file.set_attribute("generator", std::string("katt"));
  file.set_attribute("log", std::string(kind));
  file.set_attribute("dtype", std::string(name_of(dtype)));
  file.set_attribute("threads", std::int64_t{bench::resolved_threads(backend, threads)});
  file.set_attribute("finished_at", bench::utc_now());
  for (const auto& [name, value] : bench::program_and_machine({backend})) {
    file.set_attribute(name, value);
  }
  if (const std::string way = ranks::device_transports(); !way.empty()) {
    file.set_attribute("transport", way);
  }
  if (profile.runs > 0) file.set_profile("profile", profile);
}

}  // namespace katt::impl
