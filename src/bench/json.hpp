#pragma once

#include <span>
#include <string>

#include <nlohmann/json_fwd.hpp>

#include "bench/measure.hpp"
#include "bench/plan.hpp"
#include "io/result_file.hpp"

/// The JSON texts of the program; one place knows the library.
namespace katt::bench {

/// The text of a JSON value: ASCII, so that a name in it cannot speak to a terminal; bytes that are not
/// UTF-8 are replaced.
[[nodiscard]] std::string dumped(const nlohmann::ordered_json& json, int indent = -1);

/// Variables of the environment that OpenMP, Kokkos, OpenBLAS and huge_pages.hpp read.
[[nodiscard]] std::string environment_json();
[[nodiscard]] std::string settings_json(const Settings& settings);
/// The axes of a sweep as they were typed.
[[nodiscard]] std::string entries_json(std::span<const SweepEntry> entries);

/// The last line of `katt sweep --json`.
struct SweepSummary;
[[nodiscard]] std::string summary_json(const SweepSummary& summary, const std::string& output);
/// What `katt sweep --dry-run --json` prints.
struct Outlook;
[[nodiscard]] std::string outlook_json(const Outlook& outlook);
/// The last line of `katt merge --json`.
struct Merged;
[[nodiscard]] std::string merged_json(const Merged& merged, const std::string& output);

/// `katt info --json`: build, machine, backends, operators with axes, variants and tiles, ceilings.
/// Variants are those of the backends that can run here, and are empty before Kokkos is
/// initialised.
[[nodiscard]] std::string info_json(const Registry& registry,
                                    std::span<const io::CeilingRow> ceilings);

}  // namespace katt::bench
