#include "drivers/candidate/openmp.hpp"

#include <dlfcn.h>
#include <sched.h>

#include <cstddef>

namespace katt::candidate {
namespace {

struct Team {
  int (*number)() = nullptr;  ///< omp_get_thread_num
  const std::vector<int>* processors = nullptr;
};

void bind_this_thread(void* data) {
  const Team& team = *static_cast<const Team*>(data);
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET((*team.processors)[static_cast<std::size_t>(team.number())], &set);
  (void)sched_setaffinity(0, sizeof set, &set);
}

}  // namespace

void bind_openmp(const std::vector<int>& processors) {
  if (processors.empty()) return;
  void* const library = dlopen("libgomp.so.1", RTLD_NOW | RTLD_NOLOAD);
  if (library == nullptr) return;
  using Parallel = void (*)(void (*)(void*), void*, unsigned, unsigned);
  // A compiler turns "#pragma omp parallel num_threads(n)" into this call.
  const auto parallel = reinterpret_cast<Parallel>(dlsym(library, "GOMP_parallel"));
  Team team{.number = reinterpret_cast<int (*)()>(dlsym(library, "omp_get_thread_num")),
            .processors = &processors};
  if (parallel == nullptr || team.number == nullptr) return;
  parallel(bind_this_thread, &team, static_cast<unsigned>(processors.size()), 0);
}

}  // namespace katt::candidate
