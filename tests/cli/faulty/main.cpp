// The program `katt` with faulty variants of softmax, as a user might write them, on every backend:
// the kernel of one writes outside of all memory, another one never ends, a third one reads every
// tensor as f32. The tests check a sweep's answer to them.
#include <cstdint>

#include <Kokkos_Core.hpp>

#include "core/execution.hpp"
#include "core/views.hpp"
#include "drivers/driver.hpp"
#include "ops/softmax/softmax.hpp"

namespace {

using katt::softmax::ForwardArgs;

struct WriteNowhere {
  std::uintptr_t address;
  KOKKOS_FUNCTION void operator()(int) const { *reinterpret_cast<volatile float*>(address) = 1; }
};

template <class Exec>
void fault(const Exec& exec, const ForwardArgs& args, katt::Workspace) {
  const auto nowhere = static_cast<std::uintptr_t>(args.x.extent[0] < 0 ? 4096 : 64);
  Kokkos::parallel_for("katt::softmax::faulty", Kokkos::RangePolicy<Exec>(exec, 0, 1),
                       WriteNowhere{nowhere});
}

/// Ends when somebody writes to x, which nobody does.
struct WaitForWrite {
  const volatile char* x;
  KOKKOS_FUNCTION void operator()(int) const {
    for (const char first = *x; *x == first;) {
    }
  }
};

template <class Exec>
void never_end(const Exec& exec, const ForwardArgs& args, katt::Workspace) {
  Kokkos::parallel_for("katt::softmax::endless", Kokkos::RangePolicy<Exec>(exec, 0, 1),
                       WaitForWrite{static_cast<const volatile char*>(args.x.data)});
}

template <class Exec>
void copy_f32(const Exec& exec, const ForwardArgs& args, katt::Workspace) {
  using Memory = typename Exec::memory_space;
  Kokkos::deep_copy(exec, args.out.view<float, Memory>(), args.x.view<float, Memory>());
}

template <class Exec>
void add_faulty() {
  katt::softmax::forward_variants<Exec>().add({
      .name = "faulty",
      .description = "writes where no memory is",
      .run = fault<Exec>,
  });
  katt::softmax::forward_variants<Exec>().add({
      .name = "endless",
      .description = "never ends",
      .run = never_end<Exec>,
  });
  katt::softmax::forward_variants<Exec>().add({
      .name = "f32_alone",
      .description = "takes every tensor for one of f32",
      .run = copy_f32<Exec>,
  });
}

}  // namespace

int main(int argc, char** argv) {
  add_faulty<katt::Host>();
#if defined(KATT_HAS_CUDA)
  add_faulty<Kokkos::Cuda>();
#endif
  return katt::driver_main(argc, argv);
}
