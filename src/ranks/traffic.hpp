#pragma once

#include <cstdint>
#include <string>

/// What passes between this rank and others.
namespace katt::ranks {

/// Since the program began, of the operations on tensors.
struct Traffic {
  double sent_bytes = 0;
  double messages = 0;     ///< sent
  double inside_s = 0;     ///< time in calls of operations: starting, advancing, waiting
  double under_way_s = 0;  ///< time in which at least one was under way

  friend Traffic operator-(const Traffic& a, const Traffic& b) {
    return {a.sent_bytes - b.sent_bytes, a.messages - b.messages, a.inside_s - b.inside_s,
            a.under_way_s - b.under_way_s};
  }
};

/// Of this rank; to be asked for when none of its operations is under way.
[[nodiscard]] Traffic traffic();

/// How the memory of devices has been sent since the program began, "NCCL", "MPI, from device memory", "MPI, staged
/// through pinned host memory" or some of these; empty where none was.
[[nodiscard]] std::string device_transports();

namespace impl {

enum class Transport : std::uint8_t { nccl, device_memory, staged };
void note_transport(Transport used);

/// Where the operations count.
Traffic& counted();

}  // namespace impl
}  // namespace katt::ranks
