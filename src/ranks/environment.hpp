#pragma once

#include <string>

/// MPI in this process.
namespace katt::ranks {

/// The MPI that this build contains, "Open MPI v4.1.4 …", or why it contains none.
[[nodiscard]] std::string mpi_version();

/// Whether it reads and writes the memory of a device.
[[nodiscard]] bool mpi_takes_device_memory();

/// The NCCL that this machine has, "2.32.3", or why there is none.
[[nodiscard]] std::string nccl_version();

/// MPI for the life of this object, where an MPI launcher (mpirun, srun) started the program; else
/// nothing, and world() is this process alone. One at a time, on the main thread, before Kokkos is
/// initialised. Throws InputError where the launcher started several ranks of a build without MPI.
class Environment {
 public:
  Environment();
  /// Waits for the other ranks to come to their end, too.
  ~Environment();
  Environment(const Environment&) = delete;
  Environment& operator=(const Environment&) = delete;

  /// For a rank whose work ends with an error. Where all ranks come here, as with bad usage, one of
  /// them, rank 0, is told to complain. Where some do not within `patience_s`, this one complains
  /// on stderr itself, "katt: rank 1 of 4 on HOST: message", and ends the job with the status.
  /// Returns whether the caller should complain.
  [[nodiscard]] bool agree_to_fail(const std::string& message, int status,
                                   double patience_s = 10.0) const;

 private:
  bool started_ = false;
};

}  // namespace katt::ranks
