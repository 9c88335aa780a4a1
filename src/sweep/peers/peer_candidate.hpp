#pragma once

#include <sys/types.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "op/registry.hpp"
#include "process/peer_process.hpp"

/// The case of another program as a candidate of the measuring contract.
namespace katt::bench {

/// The reply to a request. Throws std::runtime_error when it is not a reply, or says "failed". A
/// reply from sealed memory has the number of its request.
nlohmann::json reply_to(PeerProcess& process, nlohmann::json request);

/// The text of a member of a reply; "" where it has none.
[[nodiscard]] std::string text_of(const nlohmann::json& reply, const char* key);

/// Cost of a request besides its work: `seconds`, beside work of `work_s`.
struct Transport {
  double work_s = 0;
  double seconds = 0;
};

/// An open case: the process, the tensors and where they lie.
struct OpenCase {
  std::shared_ptr<PeerProcess> process;
  ForeignCase foreign;
  std::span<std::byte> input_memory, output_memory;
  std::vector<std::size_t> inputs{}, outputs{};  ///< offsets there
  nlohmann::json request{};                      ///< that opens the case
  std::vector<Transport> transport{};            ///< ascending; empty: not measured yet
  std::vector<pid_t> sleepers{};                 ///< threads on the bound processors but the first
  /// Bytes of the process before it loads a library; nothing: from what it has when it is open, as of Python with its
  /// modules.
  std::optional<std::size_t> bytes_before{};
};

/// A peer. It has copies of the inputs and keeps its outputs until they are read.
[[nodiscard]] std::unique_ptr<Candidate> peer_candidate(OpenCase open, const nlohmann::json& reply);

/// A kernel of a user, which works in sealed memory and is stopped between requests. Outputs are
/// compared and inputs change without any request, which would give it time that no clock sees.
/// `open.transport` is known from before the kernel was loaded.
[[nodiscard]] std::unique_ptr<Candidate> sealed_candidate(OpenCase open);

/// Measures the transport of requests whose work is to spin: a processor that has been idle for
/// longer takes longer to wake. For programs that know the request `spin`, which starts `sleepers`;
/// call it before they load anything.
void measure_transport(OpenCase& open);

}  // namespace katt::bench
