#pragma once

#include <string>
#include <string_view>

/// OpenBLAS chooses its kernels when it is loaded, by the CPU models that it knows. For a newer
/// model it may fall back to the kernels of a CPU with only SSE, at a tenth of the speed: that is
/// no honest baseline.
namespace katt::impl {

/// The kind of CPU whose kernels OpenBLAS has chosen: "SkylakeX", "Haswell" …; empty when the BLAS
/// is another library.
[[nodiscard]] std::string_view blas_kernels();

/// A remark on these kernels: the environment chose some with half the vector length of this CPU,
/// so `naive` in f32 is no honest baseline; empty when there is nothing to say.
[[nodiscard]] std::string blas_remark();

/// Starts the program again, with OPENBLAS_CORETYPE set, when OpenBLAS has chosen kernels without
/// AVX2 and this CPU has AVX2 or AVX-512. Returns otherwise, also when the variable is set already
/// or the program cannot start again. Call it before threads and MPI.
void insist_on_blas_kernels(char** argv);

}  // namespace katt::impl
