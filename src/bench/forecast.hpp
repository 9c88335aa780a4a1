#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "bench/plan.hpp"

/// The memory that a plan will need, before anything is allocated.
namespace katt::bench {

/// Throws InputError when the inputs and outputs of a point cannot fit in memory whatever the
/// variant, or when no row of the plan can.
void check_memory(std::span<const PlannedCase> plan);

/// Forecast of a configuration. A peer, of which only the tensors are known, is taken to need its
/// inputs and outputs once more in the memory that it shares.
[[nodiscard]] Footprint footprint(const PlannedCase& planned, const Config& config);

/// Bytes that a variant needs on top of the inputs of its case.
[[nodiscard]] std::size_t own_bytes(const Footprint& footprint);
/// "needs 34.4 GB, 22.1 GB available".
[[nodiscard]] std::string memory_reason(std::size_t needed, std::size_t available);

}  // namespace katt::bench
