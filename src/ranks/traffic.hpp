#pragma once

#include <cstdint>
#include <string>

/// The traffic between this rank and others.
namespace katt::ranks {

/// Counts of the operations on tensors since the program began.
struct Traffic {
  double sent_bytes = 0;
  double messages = 0;     ///< bytes sent
  double inside_s = 0;     ///< time in calls of operations: starting, advancing, waiting
  double under_way_s = 0;  ///< time in which at least one operation ran

  friend Traffic operator-(const Traffic& a, const Traffic& b) {
    return {a.sent_bytes - b.sent_bytes, a.messages - b.messages, a.inside_s - b.inside_s,
            a.under_way_s - b.under_way_s};
  }
};

/// The traffic of this rank. Call it when none of its operations runs.
[[nodiscard]] Traffic traffic();

/// The ways in which device memory has been sent since the program began, "NCCL", "MPI, from device
/// memory", "MPI, staged through pinned host memory" or some of these; empty when none was sent.
[[nodiscard]] std::string device_transports();

namespace impl {

enum class Transport : std::uint8_t { nccl, device_memory, staged };
void note_transport(Transport used);

/// The counter of the operations.
Traffic& counted();

}  // namespace impl
}  // namespace katt::ranks
