#pragma once

#if defined(_OPENMP)
#include <omp.h>
#endif

namespace katt {

/// While it lives, library calls made from this thread (OpenBLAS in its OpenMP flavour) use the
/// given number of threads: that of the execution space instance on whose behalf they are made.
class LibraryThreads {
 public:
#if defined(_OPENMP)
  explicit LibraryThreads(int threads) : before_(omp_get_max_threads()) {
    omp_set_num_threads(threads);
  }
  ~LibraryThreads() { omp_set_num_threads(before_); }

 private:
  int before_;

 public:
#else
  explicit LibraryThreads(int /*threads*/) {}
#endif
  LibraryThreads(const LibraryThreads&) = delete;
  LibraryThreads& operator=(const LibraryThreads&) = delete;
};

}  // namespace katt
