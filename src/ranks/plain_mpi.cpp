#include "ranks/plain_mpi.hpp"

#include <cstring>
#include <string>
#include <vector>

#include "ranks/mpi.hpp"

namespace katt::ranks {

#if defined(KATT_HAS_MPI)

namespace {

template <class T>
void add_half(void* from, void* to, int* count, MPI_Datatype*) {
  const T* const a = static_cast<const T*>(from);
  T* const b = static_cast<T*>(to);
  for (int i = 0; i < *count; ++i) {
    b[i] = static_cast<T>(static_cast<float>(a[i]) + static_cast<float>(b[i]));
  }
}

}  // namespace

struct PlainMpi::Group {
  MPI_Comm ranks = MPI_COMM_SELF;
  MPI_Op add_f16 = MPI_OP_NULL, add_bf16 = MPI_OP_NULL;
  int rank = 0, size = 1;
  std::string where;

  void check(const char* op, int code) const {
    if (code == MPI_SUCCESS) return;
    std::string text(MPI_MAX_ERROR_STRING, '\0');
    int length = 0;
    MPI_Error_string(code, text.data(), &length);
    throw Error(where + ": " + op + ": " + text.substr(0, static_cast<std::size_t>(length)));
  }
  [[nodiscard]] static MPI_Datatype type(Dtype dtype) {
    return dtype == Dtype::f32 ? MPI_FLOAT : MPI_UINT16_T;
  }
  [[nodiscard]] MPI_Op sum(Dtype dtype) const {
    return dtype == Dtype::f32 ? MPI_SUM : dtype == Dtype::f16 ? add_f16 : add_bf16;
  }
  struct Parts {
    std::vector<int> counts, begins;
  };
  [[nodiscard]] Parts parts(std::int64_t n) const {
    Parts all;
    for (int r = 0; r < size; ++r) {
      const Part part = part_of(n, size, r);
      all.counts.push_back(static_cast<int>(part.count));
      all.begins.push_back(static_cast<int>(part.begin));
    }
    return all;
  }
};

PlainMpi::PlainMpi(const Communicator& group) : group_(std::make_unique<Group>()) {
  group_->rank = group.rank();
  group_->size = group.size();
  group_->where = group.where();
  if (group.size() == 1) return;
  std::vector<int> members;
  for (const double rank : group.gather(world().rank())) members.push_back(static_cast<int>(rank));
  MPI_Group all = MPI_GROUP_NULL, some = MPI_GROUP_NULL;
  MPI_Comm_group(MPI_COMM_WORLD, &all);
  MPI_Group_incl(all, group.size(), members.data(), &some);
  group_->check("group", MPI_Comm_create_group(MPI_COMM_WORLD, some, 0, &group_->ranks));
  MPI_Group_free(&some);
  MPI_Group_free(&all);
  MPI_Comm_set_errhandler(group_->ranks, MPI_ERRORS_RETURN);
  MPI_Op_create(add_half<f16>, 1, &group_->add_f16);
  MPI_Op_create(add_half<bf16>, 1, &group_->add_bf16);
}

PlainMpi::~PlainMpi() {
  if (group_->size == 1) return;
  MPI_Op_free(&group_->add_f16);
  MPI_Op_free(&group_->add_bf16);
  MPI_Comm_free(&group_->ranks);
}

void PlainMpi::all_reduce(const void* from, void* to, std::int64_t n, Dtype dtype) const {
  if (group_->size == 1) {
    std::memcpy(to, from, static_cast<std::size_t>(n) * size_of(dtype));
    return;
  }
  group_->check("MPI_Allreduce", MPI_Allreduce(from, to, static_cast<int>(n), Group::type(dtype),
                                               group_->sum(dtype), group_->ranks));
}

void PlainMpi::reduce_scatter(const void* from, void* part, std::int64_t n, Dtype dtype) const {
  if (group_->size == 1) return all_reduce(from, part, n, dtype);
  const Group::Parts parts = group_->parts(n);
  group_->check("MPI_Reduce_scatter",
                MPI_Reduce_scatter(from, part, parts.counts.data(), Group::type(dtype),
                                   group_->sum(dtype), group_->ranks));
}

void PlainMpi::all_gather(const void* part, void* to, std::int64_t n, Dtype dtype) const {
  if (group_->size == 1) return all_reduce(part, to, n, dtype);
  const Group::Parts parts = group_->parts(n);
  group_->check("MPI_Allgatherv",
                MPI_Allgatherv(part, parts.counts[static_cast<std::size_t>(group_->rank)],
                               Group::type(dtype), to, parts.counts.data(), parts.begins.data(),
                               Group::type(dtype), group_->ranks));
}

void PlainMpi::send_recv(const void* from, void* to, std::int64_t n, Dtype dtype) const {
  if (group_->size == 1) return all_reduce(from, to, n, dtype);
  const int next = (group_->rank + 1) % group_->size;
  const int last = (group_->rank + group_->size - 1) % group_->size;
  group_->check("MPI_Sendrecv", MPI_Sendrecv(from, static_cast<int>(n), Group::type(dtype), next, 0,
                                             to, static_cast<int>(n), Group::type(dtype), last, 0,
                                             group_->ranks, MPI_STATUS_IGNORE));
}

#else

struct PlainMpi::Group {};

PlainMpi::PlainMpi(const Communicator&) : group_(std::make_unique<Group>()) {}
PlainMpi::~PlainMpi() = default;

// The operations of one rank, without MPI.
void PlainMpi::all_reduce(const void* from, void* to, std::int64_t n, Dtype dtype) const {
  std::memcpy(to, from, static_cast<std::size_t>(n) * size_of(dtype));
}
void PlainMpi::reduce_scatter(const void* from, void* part, std::int64_t n, Dtype dtype) const {
  all_reduce(from, part, n, dtype);
}
void PlainMpi::all_gather(const void* part, void* to, std::int64_t n, Dtype dtype) const {
  all_reduce(part, to, n, dtype);
}
void PlainMpi::send_recv(const void* from, void* to, std::int64_t n, Dtype dtype) const {
  all_reduce(from, to, n, dtype);
}

#endif

}  // namespace katt::ranks
