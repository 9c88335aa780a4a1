#pragma once

#include <span>
#include <string>

#include <nlohmann/json_fwd.hpp>

#include "io/hdf5/result_file.hpp"
#include "measure/measure.hpp"
#include "plan/plan.hpp"

/// The JSON texts of the program; only this file uses the library.
namespace katt::bench {

/// The text of a JSON value: ASCII, so that a name in it cannot control a terminal. It replaces
/// bytes that are not UTF-8.
[[nodiscard]] std::string dumped(const nlohmann::ordered_json& json, int indent = -1);

/// Variables of the environment that OpenMP, Kokkos, OpenBLAS and huge_pages.hpp read.
[[nodiscard]] std::string environment_json();
[[nodiscard]] std::string settings_json(const Settings& settings);
/// The axes of a sweep as typed.
[[nodiscard]] std::string entries_json(std::span<const SweepEntry> entries);

}  // namespace katt::bench
