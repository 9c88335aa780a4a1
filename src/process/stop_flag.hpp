#pragma once

#include <atomic>

namespace katt::bench {

/// Set by Ctrl-C: measuring stops at the next sample.
using StopFlag = std::atomic<bool>;

}  // namespace katt::bench
