#include "ranks/environment.hpp"

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <thread>

#include "core/error.hpp"
#include "core/stopwatch.hpp"
#include "ranks/link.hpp"
#include "ranks/mpi.hpp"

namespace katt::ranks {

namespace {

/// The number of ranks that a launcher started, this one among them; 0 without a launcher. Open
/// MPI's mpirun and PMI launchers put it into the environment.
int launched_ranks() {
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE"}) {
    if (const char* const text = std::getenv(name)) return std::atoi(text);
  }
  if (std::getenv("PMIX_RANK") == nullptr) return 0;
  const char* const tasks = std::getenv("SLURM_NTASKS");
  return tasks != nullptr ? std::atoi(tasks) : 1;
}

}  // namespace

bool mpi_takes_device_memory() { return impl::Link::takes_device_memory(); }

#if defined(KATT_HAS_MPI)

namespace {

/// A group of its own, so that ranks can meet here in every state of the other groups.
MPI_Comm failures = MPI_COMM_NULL;

}  // namespace

std::string mpi_version() {
  std::string text(MPI_MAX_LIBRARY_VERSION_STRING, '\0');
  int length = 0;
  MPI_Get_library_version(text.data(), &length);
  text.resize(static_cast<std::size_t>(length));
  return text.substr(0, text.find_first_of(",\n"));
}

Environment::Environment() {
  if (launched_ranks() == 0) return;
  int provided = 0;
  if (MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &provided) != MPI_SUCCESS) {
    throw std::runtime_error("MPI cannot be started");
  }
  started_ = true;
  MPI_Comm all = MPI_COMM_NULL;
  MPI_Comm_dup(MPI_COMM_WORLD, &all);
  MPI_Comm_dup(MPI_COMM_WORLD, &failures);
  impl::world_link() = std::make_shared<impl::Link>(std::make_unique<impl::Link::Mpi>(all));
}

Environment::~Environment() {
  if (!started_) return;
  impl::world_link().reset();
  MPI_Comm_free(&failures);
  MPI_Finalize();
}

bool Environment::agree_to_fail(const std::string& message, int status, double patience_s) const {
  if (!started_ || impl::world_link()->size() == 1) return true;
  const Stopwatch watch;
  MPI_Request all_here = MPI_REQUEST_NULL;
  MPI_Ibarrier(failures, &all_here);
  int agreed = 0;
  while (watch.seconds() < patience_s) {
    MPI_Test(&all_here, &agreed, MPI_STATUS_IGNORE);
    if (agreed != 0) return impl::world_link()->rank() == 0;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  std::fprintf(stderr, "katt: %s: %s\n", impl::world_link()->where().c_str(), message.c_str());
  std::fflush(stderr);
  MPI_Abort(MPI_COMM_WORLD, status);
  return false;
}

#else

std::string mpi_version() { return "none: built without MPI"; }

Environment::Environment() {
  if (const int ranks = launched_ranks(); ranks > 1) {
    throw InputError("started as one of " + std::to_string(ranks) +
                     " ranks, expected one: this build contains no MPI");
  }
}
Environment::~Environment() = default;

bool Environment::agree_to_fail(const std::string&, int, double) const { return true; }

#endif

}  // namespace katt::ranks
