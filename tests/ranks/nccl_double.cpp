// A double of libnccl.so.2 for machines without GPUs: the functions that ranks/nccl.cpp loads, over
// MPI and the CUDA runtime's copies. It keeps NCCL's promises and enforces NCCL's requirements: it
// fails calls on a communicator that is not ready or has another call in progress, two ranks on one
// device, and sends without a partner's receive. It has non-blocking communicators only; a call is
// in progress until its data has come. No program links it: tests/cli/test_device_transports.py
// puts its folder before those of the library.
//
// KATT_NCCL_DOUBLE_FAIL=NAME:RANK makes that call fail on that rank of MPI_COMM_WORLD.
#define OMPI_SKIP_MPICXX 1
#include <cuda_runtime_api.h>
#include <mpi.h>
#include <nccl.h>

#include <cstdlib>
#include <cstring>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace {

using Bytes = std::vector<char>;

/// The 128 bytes of a unique id.
struct Id {
  int creator;  ///< of MPI_COMM_WORLD
  int number;   ///< of those that it made

  [[nodiscard]] int tag() const { return 100000 + 8 * (creator * 1000 + number); }
};

int world_rank() {
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  return rank;
}

/// Messages that are on their way, and what to do when they have come.
struct Transfer {
  std::vector<MPI_Request> requests;
  std::list<Bytes> sent, received;
  std::function<ncclResult_t(Transfer&)> end;

  void send(Bytes bytes, int to, int tag) {
    const Bytes& kept = sent.emplace_back(std::move(bytes));
    MPI_Isend(kept.data(), static_cast<int>(kept.size()), MPI_BYTE, to, tag, MPI_COMM_WORLD,
              &requests.emplace_back());
  }
  Bytes& receive(std::size_t bytes, int from, int tag) {
    Bytes& to = received.emplace_back(bytes);
    MPI_Irecv(to.data(), static_cast<int>(bytes), MPI_BYTE, from, tag, MPI_COMM_WORLD,
              &requests.emplace_back());
    return to;
  }
  [[nodiscard]] bool is_done() {
    int done = 0;
    MPI_Testall(static_cast<int>(requests.size()), requests.data(), &done, MPI_STATUSES_IGNORE);
    return done != 0;
  }
};

struct Place {
  int rank;
  int world;
  char bus[32];
};

}  // namespace

struct ncclComm {
  Id id{};
  int rank = 0, size = 0;
  std::vector<int> world;  ///< ranks of MPI_COMM_WORLD
  std::unique_ptr<Transfer> under_way;
  ncclResult_t state = ncclInProgress;
  bool is_finalized = false;
  std::string last_error;

  ncclResult_t advance() {
    while (state == ncclInProgress && under_way && under_way->is_done()) {
      const std::unique_ptr<Transfer> ended = std::move(under_way);
      const ncclResult_t result = ended->end ? ended->end(*ended) : ncclSuccess;
      if (!under_way) state = result;
    }
    return state;
  }
};

namespace {

thread_local std::string last_error;

ncclResult_t refuse(ncclComm_t comm, ncclResult_t code, const std::string& why) {
  last_error = why;
  if (comm != nullptr) comm->last_error = why;
  return code;
}

bool is_to_fail(const char* name) {
  const char* const wanted = std::getenv("KATT_NCCL_DOUBLE_FAIL");
  return wanted != nullptr && wanted == std::string(name) + ":" + std::to_string(world_rank());
}

std::size_t size_of(ncclDataType_t type) { return type == ncclFloat32 ? 4 : 2; }

ncclResult_t from_device(void* host, const void* device, std::size_t bytes, cudaStream_t stream) {
  if (bytes == 0) return ncclSuccess;
  const bool good =
      cudaMemcpyAsync(host, device, bytes, cudaMemcpyDeviceToHost, stream) == cudaSuccess &&
      cudaStreamSynchronize(stream) == cudaSuccess;
  return good ? ncclSuccess : ncclUnhandledCudaError;
}

ncclResult_t to_device(void* device, const void* host, std::size_t bytes, cudaStream_t stream) {
  if (bytes == 0) return ncclSuccess;
  const bool good =
      cudaMemcpyAsync(device, host, bytes, cudaMemcpyHostToDevice, stream) == cudaSuccess &&
      cudaStreamSynchronize(stream) == cudaSuccess;
  return good ? ncclSuccess : ncclUnhandledCudaError;
}

/// A send or a receive of a group.
struct PointToPoint {
  ncclComm_t comm;
  bool sends;
  void* data;
  std::size_t bytes;
  int peer;
  cudaStream_t stream;
};

int groups_open = 0;
std::vector<PointToPoint> grouped;

/// True when a call is allowed now.
ncclResult_t enter(ncclComm_t comm, const char* name) {
  if (comm == nullptr)
    return refuse(comm, ncclInvalidArgument, std::string(name) + ": no communicator");
  if (is_to_fail(name)) {
    comm->state = ncclSystemError;
    return refuse(comm, ncclSystemError, std::string(name) + ": asked to fail");
  }
  const ncclResult_t state = comm->advance();
  if (state == ncclSuccess && !comm->is_finalized) return ncclSuccess;
  return refuse(comm, ncclInvalidUsage,
                std::string(name) + ": while another call is on its way, or at the end");
}

void begin(ncclComm_t comm) {
  comm->under_way = std::make_unique<Transfer>();
  comm->state = ncclInProgress;
}

/// Everyone's bytes to everyone; `end` gets them in the order of the ranks.
ncclResult_t exchange(ncclComm_t comm, const char* name, const void* from, std::size_t bytes,
                      cudaStream_t stream,
                      std::function<ncclResult_t(const std::vector<Bytes>&)> end) {
  if (const ncclResult_t entered = enter(comm, name); entered != ncclSuccess) return entered;
  Bytes own(bytes);
  if (from_device(own.data(), from, bytes, stream) != ncclSuccess) return ncclUnhandledCudaError;
  begin(comm);
  Transfer& transfer = *comm->under_way;
  const int tag = comm->id.tag() + 2;
  for (int r = 0; r < comm->size; ++r) {
    (void)transfer.receive(bytes, comm->world[static_cast<std::size_t>(r)], tag);
  }
  for (int r = 0; r < comm->size; ++r) {
    transfer.send(own, comm->world[static_cast<std::size_t>(r)], tag);
  }
  transfer.end = [end = std::move(end)](Transfer& done) {
    return end({done.received.begin(), done.received.end()});
  };
  return ncclInProgress;
}

/// Σ from the last rank to the first, as a ring might: callers must not count on another order.
ncclResult_t sum(const std::vector<Bytes>& all, std::vector<float>& total) {
  total.assign(all[0].size() / sizeof(float), 0.0F);
  std::vector<float> term(total.size());
  for (std::size_t r = all.size(); r-- > 0;) {
    std::memcpy(term.data(), all[r].data(), all[r].size());
    for (std::size_t i = 0; i < total.size(); ++i) total[i] += term[i];
  }
  return ncclSuccess;
}

ncclResult_t end_group() {
  std::map<ncclComm_t, std::vector<PointToPoint>> by_comm;
  for (const PointToPoint& one : grouped) by_comm[one.comm].push_back(one);
  grouped.clear();
  ncclResult_t result = ncclSuccess;
  for (auto& [comm, all] : by_comm) {
    begin(comm);
    Transfer& transfer = *comm->under_way;
    const int tag = comm->id.tag() + 3;
    std::vector<std::pair<const Bytes*, PointToPoint>> arrives;
    for (const PointToPoint& one : all) {
      const int peer = comm->world[static_cast<std::size_t>(one.peer)];
      if (one.sends) {
        Bytes bytes(one.bytes);
        if (from_device(bytes.data(), one.data, one.bytes, one.stream) != ncclSuccess) {
          return ncclUnhandledCudaError;
        }
        transfer.send(std::move(bytes), peer, tag);
      } else {
        // Earlier work on the stream may still use this memory.
        if (cudaStreamSynchronize(one.stream) != cudaSuccess) return ncclUnhandledCudaError;
        arrives.emplace_back(&transfer.receive(one.bytes, peer, tag), one);
      }
    }
    transfer.end = [arrives](Transfer&) {
      for (const auto& [bytes, one] : arrives) {
        if (to_device(one.data, bytes->data(), one.bytes, one.stream) != ncclSuccess) {
          return ncclUnhandledCudaError;
        }
      }
      return ncclSuccess;
    };
    result = ncclInProgress;
  }
  return result;
}

ncclResult_t point_to_point(const char* name, PointToPoint one) {
  const bool is_in_group = groups_open > 0 && !grouped.empty() && grouped.back().comm == one.comm;
  if (!is_in_group) {
    const ncclResult_t entered = enter(one.comm, name);
    if (entered != ncclSuccess) return entered;
  }
  if (one.peer < 0 || one.peer >= one.comm->size) {
    return refuse(one.comm, ncclInvalidArgument, std::string(name) + ": peer");
  }
  grouped.push_back(one);
  return groups_open > 0 ? ncclSuccess : end_group();
}

/// The rank has said where it works; the creator tells everyone.
ncclResult_t meet(ncclComm_t comm, Transfer& told) {
  std::vector<Place> places(static_cast<std::size_t>(comm->size));
  if (world_rank() == comm->id.creator) {
    for (const Bytes& one : told.received) {
      Place said;
      std::memcpy(&said, one.data(), sizeof said);
      places[static_cast<std::size_t>(said.rank)] = said;
    }
  }
  comm->under_way = std::make_unique<Transfer>();
  const std::size_t bytes = places.size() * sizeof(Place);
  (void)comm->under_way->receive(bytes, comm->id.creator, comm->id.tag() + 1);
  if (world_rank() == comm->id.creator) {
    for (const Place& place : places) {
      comm->under_way->send(Bytes(reinterpret_cast<const char*>(places.data()),
                                  reinterpret_cast<const char*>(places.data()) + bytes),
                            place.world, comm->id.tag() + 1);
    }
  }
  comm->under_way->end = [comm](Transfer& met) {
    std::vector<Place> all(static_cast<std::size_t>(comm->size));
    std::memcpy(all.data(), met.received.front().data(), met.received.front().size());
    for (std::size_t i = 0; i < all.size(); ++i) {
      for (std::size_t j = 0; j < i; ++j) {
        if (std::strcmp(all[i].bus, all[j].bus) == 0) {
          return refuse(comm, ncclInvalidUsage, "Duplicate GPU detected");
        }
      }
      comm->world.push_back(all[i].world);
    }
    return ncclSuccess;
  };
  return ncclInProgress;
}

}  // namespace

extern "C" {

ncclResult_t ncclGetVersion(int* version) {
  *version = NCCL_VERSION_CODE;
  return ncclSuccess;
}

const char* ncclGetErrorString(ncclResult_t code) {
  switch (code) {
    case ncclSuccess: return "no error";
    case ncclSystemError: return "unhandled system error";
    case ncclInvalidUsage: return "invalid usage";
    case ncclInvalidArgument: return "invalid argument";
    default: return "unhandled error";
  }
}

const char* ncclGetLastError(ncclComm_t comm) {
  return comm != nullptr ? comm->last_error.c_str() : last_error.c_str();
}

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  static int made = 0;
  if (is_to_fail("ncclGetUniqueId")) return refuse(nullptr, ncclSystemError, "asked to fail");
  const Id next{world_rank(), made++};
  std::memset(id, 0, sizeof *id);
  std::memcpy(id, &next, sizeof next);
  return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int ranks, ncclUniqueId id, int rank,
                                    ncclConfig_t* config) {
  if (config == nullptr || config->blocking != 0) {
    return refuse(nullptr, ncclInvalidArgument, "a non-blocking configuration is expected");
  }
  *comm = new ncclComm;
  ncclComm& made = **comm;
  std::memcpy(&made.id, &id, sizeof made.id);
  made.rank = rank;
  made.size = ranks;
  if (is_to_fail("ncclCommInitRankConfig")) {
    made.state = ncclSystemError;
    return refuse(*comm, ncclSystemError, "ncclCommInitRankConfig: asked to fail");
  }
  int device = 0;
  Place said{rank, world_rank(), {}};
  if (cudaGetDevice(&device) != cudaSuccess ||
      cudaDeviceGetPCIBusId(said.bus, sizeof said.bus, device) != cudaSuccess) {
    return ncclUnhandledCudaError;
  }
  made.under_way = std::make_unique<Transfer>();
  if (world_rank() == made.id.creator) {
    for (int r = 0; r < ranks; ++r) {
      (void)made.under_way->receive(sizeof said, MPI_ANY_SOURCE, made.id.tag());
    }
  }
  Bytes bytes(sizeof said);
  std::memcpy(bytes.data(), &said, sizeof said);
  made.under_way->send(std::move(bytes), made.id.creator, made.id.tag());
  made.under_way->end = [opened = *comm](Transfer& told) { return meet(opened, told); };
  return ncclInProgress;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* state) {
  *state = comm->advance();
  return ncclSuccess;
}

ncclResult_t ncclCommFinalize(ncclComm_t comm) {
  if (comm->advance() != ncclSuccess) return refuse(comm, ncclInvalidUsage, "finalize");
  comm->is_finalized = true;
  return ncclSuccess;
}

ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  if (!comm->is_finalized) return refuse(comm, ncclInvalidUsage, "destroy before finalize");
  delete comm;
  return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t) { return ncclSuccess; }  // messages may still come to it

ncclResult_t ncclAllReduce(const void* from, void* to, size_t count, ncclDataType_t type,
                           ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
  if (type != ncclFloat32 || op != ncclSum) return refuse(comm, ncclInvalidArgument, "sum of f32");
  const std::size_t bytes = count * size_of(type);
  return exchange(comm, "ncclAllReduce", from, bytes, stream, [=](const std::vector<Bytes>& all) {
    std::vector<float> total;
    (void)sum(all, total);
    return to_device(to, total.data(), total.size() * sizeof(float), stream);
  });
}

ncclResult_t ncclReduceScatter(const void* from, void* to, size_t count, ncclDataType_t type,
                               ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
  if (type != ncclFloat32 || op != ncclSum) return refuse(comm, ncclInvalidArgument, "sum of f32");
  const std::size_t parts = comm == nullptr ? 1 : static_cast<std::size_t>(comm->size);
  const std::size_t bytes = count * size_of(type) * parts;
  const auto end = [=](const std::vector<Bytes>& all) {
    std::vector<float> total;
    (void)sum(all, total);
    return to_device(to, total.data() + count * static_cast<std::size_t>(comm->rank),
                     count * sizeof(float), stream);
  };
  return exchange(comm, "ncclReduceScatter", from, bytes, stream, end);
}

ncclResult_t ncclAllGather(const void* from, void* to, size_t count, ncclDataType_t type,
                           ncclComm_t comm, cudaStream_t stream) {
  const std::size_t bytes = count * size_of(type);
  return exchange(comm, "ncclAllGather", from, bytes, stream, [=](const std::vector<Bytes>& all) {
    Bytes joined;
    for (const Bytes& one : all) joined.insert(joined.end(), one.begin(), one.end());
    return to_device(to, joined.data(), joined.size(), stream);
  });
}

ncclResult_t ncclBroadcast(const void* from, void* to, size_t count, ncclDataType_t type, int root,
                           ncclComm_t comm, cudaStream_t stream) {
  const std::size_t bytes = count * size_of(type);
  return exchange(comm, "ncclBroadcast", from, bytes, stream, [=](const std::vector<Bytes>& all) {
    const Bytes& values = all[static_cast<std::size_t>(root)];
    return to_device(to, values.data(), values.size(), stream);
  });
}

ncclResult_t ncclSend(const void* from, size_t count, ncclDataType_t type, int peer,
                      ncclComm_t comm, cudaStream_t stream) {
  return point_to_point("ncclSend",
                        {comm, true, const_cast<void*>(from), count * size_of(type), peer, stream});
}

ncclResult_t ncclRecv(void* to, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return point_to_point("ncclRecv", {comm, false, to, count * size_of(type), peer, stream});
}

ncclResult_t ncclGroupStart() {
  ++groups_open;
  return ncclSuccess;
}

ncclResult_t ncclGroupEnd() { return --groups_open > 0 ? ncclSuccess : end_group(); }

}  // extern "C"
