#pragma once

#include <string>

/// MPI in this process.
namespace katt::ranks {

/// The MPI that this build contains, "Open MPI v4.1.4 …", or the reason why it contains none.
[[nodiscard]] std::string mpi_version();

/// True when that MPI reads and writes the memory of a device.
[[nodiscard]] bool mpi_takes_device_memory();

/// The NCCL of this machine, "2.32.3", or the reason why there is none.
[[nodiscard]] std::string nccl_version();

/// Keeps MPI initialised while this object lives, when an MPI launcher (mpirun, srun) started the
/// program. Without a launcher it does nothing, and world() is this process alone. Make one at a
/// time, on the main thread, before Kokkos is initialised. Throws InputError when the launcher
/// started several ranks of a build without MPI.
class Environment {
 public:
  /// Initialises MPI under a launcher.
  Environment();
  /// Waits until the other ranks end, too.
  ~Environment();
  Environment(const Environment&) = delete;
  Environment& operator=(const Environment&) = delete;

  /// A rank calls this when its work ends with an error. Returns true when the caller should print
  /// the error. When all ranks come here, as with bad usage, only rank 0 prints. When some do not
  /// come within `patience_s`, this rank prints on stderr itself, "katt: rank 1 of 4 on HOST:
  /// message", and ends the job with the status.
  [[nodiscard]] bool agree_to_fail(const std::string& message, int status,
                                   double patience_s = 10.0) const;

 private:
  bool started_ = false;
};

}  // namespace katt::ranks
