#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "measure/measure.hpp"
#include "op/registry.hpp"
#include "plan/plan.hpp"
#include "plan/sweep_file.hpp"
#include "sweep/peers/peer_candidate.hpp"

/// Other libraries, and kernels of the user (candidates), measured beside ours. A peer is a child process that holds the inputs of a case
/// and runs once per request, so that its samples interleave with ours; docs/peers.md has the
/// protocol. One process for each name lives through a sweep, and further ones for the further points
/// of a paired group; a candidate has a process for each case (docs/candidates.md).
namespace katt::bench {

/// A peer's part in a case: ready to be measured, or the reason why not.
struct PeerEntry {
  Status status;
  std::unique_ptr<Candidate> candidate;
  std::size_t output_bytes = 0;  ///< tensors of the request
};

/// The peers of a sweep. Use up all entries before you enter the next case, and before this object
/// ends.
class Peers {
 public:
  /// Starts the program of the settings once for each peer, with the peer's name as its argument,
  /// and katt-candidate for each case of a candidate.
  Peers(const Settings& settings, const StopFlag& stop);
  ~Peers();
  Peers(const Peers&) = delete;
  Peers& operator=(const Peers&) = delete;

  /// Passes the inputs of a case to a peer and binds its threads as ours are bound. The status is
  /// skipped when there is no such peer or it cannot compute the case, and failed when it broke
  /// down; the function does not throw. `slot` numbers the cases that are measured together: a
  /// process holds one case.
  [[nodiscard]] PeerEntry enter(const std::string& name, const Operator& op, const Point& point,
                                Case& inputs, const Bound& bound, std::size_t slot = 0);

  /// The description of the peers that ran, by themselves, as JSON: {"torch_flash": "torch
  /// 2.15.0"}.
  [[nodiscard]] std::string about() const;

 private:
  PeerEntry open(const std::string& name, const Operator& op, const Point& point, Case& inputs,
                 const Bound& bound, std::size_t slot);
  PeerEntry open_candidate(const std::string& name, const CandidateFile& file, const Operator& op,
                           const Point& point, Case& inputs, const Bound& bound);
  /// Writes the inputs, sends the request that opens the case, and makes its entry of the reply.
  PeerEntry entry_of(const std::string& name, OpenCase open);
  [[nodiscard]] PeerLaunch launch_of_peer(const std::string& name) const;

  std::filesystem::path program_;
  std::map<std::string, CandidateFile> candidates_;
  CandidateOptions options_;
  const StopFlag& stop_;
  std::map<std::pair<std::string, std::size_t>, std::shared_ptr<PeerProcess>> processes_;
  std::map<std::string, std::string> about_;
};

/// The names of the peers that scripts/peers can install.
[[nodiscard]] const std::vector<std::string>& installed_peers();

/// Throws InputError for a peer that scripts/peers does not install, with the nearest that it does;
/// another program of the settings may run any.
void check_peers(const SweepRequest& request);

/// Looks at the candidates that the entries of a request name, and puts them into its settings.
/// Throws InputError for one that cannot be measured, and for --untrusted where this system has no
/// cage or the request a GPU.
void check_candidates(SweepRequest& request);

/// The path where scripts/peers puts the peers' program: peers/bin/katt-peers in the folder of the
/// builds.
[[nodiscard]] std::filesystem::path usual_peer_program();

}  // namespace katt::bench
