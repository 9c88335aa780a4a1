#pragma once

#include "ranks/link.hpp"

#if defined(KATT_HAS_MPI)
#define OMPI_SKIP_MPICXX 1  // bindings that MPI 3 has removed
#define MPICH_SKIP_MPICXX 1
#include <mpi.h>
#if defined(OPEN_MPI) && __has_include(<mpi-ext.h>)
#include <mpi-ext.h>  // true: it takes device memory
#endif

namespace katt::ranks::impl {

/// Owns two communicators, one for operations on tensors and one for messages, so that they never
/// mix.
struct Link::Mpi {
  MPI_Comm tensors = MPI_COMM_NULL;
  MPI_Comm messages = MPI_COMM_NULL;

  /// Takes the group over.
  explicit Mpi(MPI_Comm group);
  ~Mpi();
  Mpi(const Mpi&) = delete;
  Mpi& operator=(const Mpi&) = delete;
};

}  // namespace katt::ranks::impl
#endif
