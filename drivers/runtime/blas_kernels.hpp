#pragma once

#include <string>
#include <string_view>

/// OpenBLAS chooses its kernels as it is loaded, by the models of CPUs that it knows. For one that is
/// newer it may fall back to those of a CPU with SSE alone, a tenth of the speed: no baseline to
/// compare with.
namespace katt::impl {

/// The kind of CPU whose kernels OpenBLAS has chosen: "SkylakeX", "Haswell" …; empty where the BLAS is
/// another library.
[[nodiscard]] std::string_view blas_kernels();

/// What to know of these kernels: that the environment chose some with half the vectors of this CPU, so that
/// `naive` in f32 is no baseline to compare with; empty where there is nothing to say.
[[nodiscard]] std::string blas_remark();

/// Starts the program anew, with OPENBLAS_CORETYPE set, where OpenBLAS has chosen kernels without AVX2
/// and this CPU has AVX2 or AVX-512. Returns where it has not, where the variable is set already,
/// and where the program cannot be started anew. To be called before threads and MPI.
void insist_on_blas_kernels(char** argv);

}  // namespace katt::impl
