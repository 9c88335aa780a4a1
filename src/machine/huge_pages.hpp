#pragma once

#include <cstddef>
#include <string>

/// Large allocations of the host in huge pages, where Linux gives them to those who ask
/// (transparent huge pages). What is read once in the order of memory, weights and keys, then meets
/// 512 times fewer translations of addresses, and memory that is touched for the first time as many
/// fewer faults (docs/memory.md).
namespace katt::memory {

/// Asks for huge pages for an allocation of some megabytes or more that nothing has touched yet; of
/// a smaller one nothing is asked. The system may refuse: the memory is as it was. Does nothing
/// where there are none, or with KATT_HUGE_PAGES=0 in the environment.
void prefer_huge_pages(const void* data, std::size_t bytes);

/// What becomes of large allocations: "asked for", "always" (the system gives them to everybody),
/// "never", or "off" (KATT_HUGE_PAGES=0).
[[nodiscard]] std::string huge_pages();

}  // namespace katt::memory
