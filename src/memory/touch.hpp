#pragma once

#include <cstddef>
#include <cstdint>

#include <Kokkos_Core.hpp>

#include "core/execution.hpp"
#include "machine/first_touch.hpp"

namespace katt::memory {

/// Writes to every page of host memory the value that is there, on all threads, and waits. The
/// system clears a page at its first write, and the first kernels that use it would wait for that
/// (2 MiB take half a millisecond and more on a virtual machine). Does nothing on a device.
template <class Exec>
void touch(const Exec& exec, void* data, std::size_t bytes) {
  if constexpr (is_host_v<Exec>) {
    constexpr std::size_t page = 4096;
    auto* first = static_cast<unsigned char*>(data);
    const auto pages = static_cast<std::int64_t>((bytes + page - 1) / page);
    Kokkos::parallel_for(
        "katt::memory::touch",
        Kokkos::RangePolicy<Exec, Kokkos::Schedule<Kokkos::Static>,
                            Kokkos::IndexType<std::int64_t>>(exec, 0, pages),
        [first](std::int64_t i) { touch_byte(first + static_cast<std::size_t>(i) * page); });
    exec.fence("katt::memory::touch");
  }
}

}  // namespace katt::memory
