#pragma once

#include <cstddef>
#include <string>

/// Large allocations of the host in huge pages, when Linux gives them on request (transparent huge
/// pages). Data that a kernel reads once in the order of memory, such as weights and keys, then
/// needs 512 times fewer address translations, and the first touch of memory as many fewer page
/// faults (docs/memory.md).
namespace katt::memory {

/// Requests huge pages for an allocation of some megabytes or more that nothing has touched yet,
/// and nothing for a smaller one. When the system refuses, the memory stays as it was. Does nothing
/// when the system has no huge pages, or with KATT_HUGE_PAGES=0 in the environment.
void prefer_huge_pages(const void* data, std::size_t bytes);

/// The treatment of large allocations: "asked for", "always" (the system gives them to everybody),
/// "never", or "off" (KATT_HUGE_PAGES=0).
[[nodiscard]] std::string huge_pages();

}  // namespace katt::memory
