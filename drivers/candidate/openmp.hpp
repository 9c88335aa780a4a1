#pragma once

#include <vector>

namespace katt::candidate {

/// Binds each thread of OpenMP's team to the processor in its place, if the library has loaded
/// GCC's libgomp; with another runtime, or threads of its own, the threads share the processors of
/// the process. Binds nothing without processors.
void bind_openmp(const std::vector<int>& processors);

}  // namespace katt::candidate
