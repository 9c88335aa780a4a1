#pragma once

#include <atomic>

namespace katt::bench {

/// Set by Ctrl-C: measuring stops at the next sample.
using StopFlag = std::atomic<bool>;

/// A flag that nobody sets.
inline const StopFlag never{false};

}  // namespace katt::bench
