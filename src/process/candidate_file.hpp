#pragma once

#include <cstddef>
#include <filesystem>
#include <string>

#include "process/peer_process.hpp"
#include "process/stop_flag.hpp"

/// Kernels that a user brings: shared libraries that include katt/candidate.h, and files of Python.
namespace katt::bench {

/// A candidate that has been looked at.
struct CandidateFile {
  std::filesystem::path path;  ///< absolute
  std::string sha256;
  std::string about;  ///< what it says of itself; may be empty

  [[nodiscard]] bool is_python() const { return path.extension() == ".py"; }
  /// Description of the file in a result file.
  [[nodiscard]] std::string description(bool untrusted) const {
    return about + (about.empty() ? "" : "; ") + "SHA-256 " + sha256 +
           (untrusted ? "; untrusted" : "");
  }
};

/// How candidates run.
struct CandidateOptions {
  bool untrusted = false;                ///< in the cage of sandbox.hpp
  std::filesystem::path python_program;  ///< runs files of Python; empty: the one beside katt
  double timeout_s = 300;
};

/// The file that a path names. Loads it, in a process of its own and as `options` say, and asks
/// what it has. Throws InputError, which begins with `where`, for a file that is not there, is no
/// shared library of this machine, cannot be loaded, has another version of the interface, or has
/// no pass.
[[nodiscard]] CandidateFile inspect_candidate(const std::string& where,
                                              const std::filesystem::path& path,
                                              const CandidateOptions& options,
                                              const StopFlag& stop);

/// How to start the process of a candidate, for a case with this many bytes of inputs and outputs.
[[nodiscard]] PeerLaunch launch_of(const CandidateFile& file, const CandidateOptions& options,
                                   int threads, std::size_t case_bytes);

/// A launch that goes on to another program in the cage, with as much writable memory.
[[nodiscard]] PeerLaunch caged(PeerLaunch launch, std::size_t data_bytes);

/// A program beside this one, such as katt-candidate, or else on PATH.
[[nodiscard]] std::filesystem::path program_beside(const std::string& name);

}  // namespace katt::bench
