#pragma once

namespace katt {

/// Sources, compiler and libraries of this build: the provenance that every result carries.
struct BuildInfo {
  const char* version;
  const char* commit;         ///< full git hash, or "unknown" outside a checkout
  bool dirty;                 ///< true: the sources differed from the commit
  const char* build_type;     ///< CMake's build type
  const char* compiler;       ///< name and version; with CUDA, nvcc's too
  const char* compile_flags;  ///< flags of the host compiler
  const char* kokkos_version;
  const char* kokkos_kernels_version;
  const char* blas;  ///< file of the BLAS library that host GEMMs call
  const char* hdf5_version;
  const char* backends;  ///< Kokkos' devices in lower case, separated by blanks
};

/// The facts of this build.
[[nodiscard]] const BuildInfo& build_info();

}  // namespace katt
