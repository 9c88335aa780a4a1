#pragma once

#include <string>
#include <vector>

#include "io/hdf5/result_file.hpp"
#include "measure/measure.hpp"
#include "plan/sweep_file.hpp"

namespace katt::bench {

/// The attributes on the program, the machine and its load. They hold no host or user name. Call after
/// Kokkos::initialize.
[[nodiscard]] io::Attributes program_and_machine(const std::vector<Backend>& backends);

/// The present time in UTC, ISO 8601.
[[nodiscard]] std::string utc_now();

/// The attributes of /runs/RUN when a run starts: the request, the program and the machine.
[[nodiscard]] io::Attributes provenance(const SweepRequest& request, const std::string& command,
                                        const std::vector<Backend>& backends);

/// The attributes that change when a run ends; `status` is "done" or "interrupted", `peers` is the
/// peers' description of themselves (JSON).
[[nodiscard]] io::Attributes closing(const std::string& status, const std::string& peers);

/// The arguments as typed, quoted for a shell where needed, after "katt".
[[nodiscard]] std::string command_text(int argc, const char* const* argv);

}  // namespace katt::bench
