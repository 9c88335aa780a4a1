#pragma once

#include <vector>

#include "io/outputs.hpp"

namespace katt::impl {

/// Checks the outputs of a command against its inputs and each other, and has rank 0, which writes
/// them, claim them for as long as the object lives (io/outputs.hpp). All ranks call it. Throws
/// InputError on all of them; an output that exists needs `overwrite`.
[[nodiscard]] io::Outputs claim_outputs(const std::vector<io::NamedPath>& outputs,
                                        const std::vector<io::NamedPath>& inputs, bool overwrite);

}  // namespace katt::impl
