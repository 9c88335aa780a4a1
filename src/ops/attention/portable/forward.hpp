#pragma once

#include <cstddef>

#include "core/status.hpp"
#include "core/variants.hpp"
#include "ops/attention/attention.hpp"

/// The flash variant of the forward pass. Instantiated by dtype in forward_DTYPE.cpp.
namespace katt::attention::impl {

/// ok, or skipped: the tile does not fit the scratch memory of the device.
template <class Exec, class T>
Status flash_supports(const Exec& exec, const ForwardArgs& args, Tile tile);

/// Tile scratch of every thread on a host; 0 on a device, where it is shared memory.
template <class Exec, class T>
std::size_t flash_workspace_bytes(const Exec& exec, const ForwardArgs& args, Tile tile);

template <class Exec, class T, class Rule>
void run_flash(const Exec& exec, const ForwardArgs& args, const Rule& rule, Tile tile,
               Workspace workspace);

}  // namespace katt::attention::impl
