#pragma once

#include <vector>

#include "io/outputs.hpp"

namespace katt::impl {

/// Checks the outputs of a command against its inputs and each other. Rank 0, which writes them,
/// claims them while the object lives (io/outputs.hpp). All ranks call it. Throws InputError on all
/// ranks; an existing output needs `overwrite`.
[[nodiscard]] io::Outputs claim_outputs(const std::vector<io::NamedPath>& outputs,
                                        const std::vector<io::NamedPath>& inputs, bool overwrite);

}  // namespace katt::impl
