#pragma once

#include <cstdio>

#include "core/backend.hpp"
#include "core/dtype.hpp"
#include "io/hdf5/case_file.hpp"

namespace katt::impl {

/// Measures the limits of the machine, holds a profile of a model against them, and prints it as a
/// table.
void print_profile(io::Profile& profile, Backend backend, int threads, Dtype dtype, std::FILE* out);

/// What a log says of the program and the machine, and the profile, if one was taken. `kind` is the
/// command.
void describe_run(io::TensorFile& file, const char* kind, Backend backend, int threads, Dtype dtype,
                  const io::Profile& profile);

}  // namespace katt::impl
