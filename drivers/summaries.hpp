#pragma once

#include <span>
#include <string>

#include "io/hdf5/result_file.hpp"
#include "op/registry.hpp"

/// The output of commands with --json.
namespace katt::bench {

/// The last line of `katt sweep --json`.
struct SweepSummary;
[[nodiscard]] std::string summary_json(const SweepSummary& summary, const std::string& output);
/// The output of `katt sweep --dry-run --json`.
struct Outlook;
[[nodiscard]] std::string outlook_json(const Outlook& outlook);
/// The last line of `katt merge --json`.
struct Merged;
[[nodiscard]] std::string merged_json(const Merged& merged, const std::string& output);

/// `katt info --json`: build, code, machine, backends, operators with axes, variants and tiles, ceilings.
/// With `only`, of operators this one alone. It lists the variants of the backends that run here, and
/// none before Kokkos is initialised.
[[nodiscard]] std::string info_json(const Registry& registry,
                                    std::span<const io::CeilingRow> ceilings,
                                    const Operator* only = nullptr);

}  // namespace katt::bench
