#pragma once

#include "core/backend.hpp"
#include "core/dtype.hpp"
#include "io/hdf5/case_file.hpp"

namespace katt::impl {

/// Measures the limits of the machine, compares a profile of a model with them, and says it as a
/// table (drivers/runtime/messages.hpp).
void tell_profile(io::Profile& profile, Backend backend, int threads, Dtype dtype);

/// The attributes of a log on the program and the machine, and the profile, if there is one. `kind`
/// is the command.
void describe_run(io::TensorFile& file, const char* kind, Backend backend, int threads, Dtype dtype,
                  const io::Profile& profile);

}  // namespace katt::impl
