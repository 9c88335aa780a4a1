#pragma once

#include <cstdint>
#include <memory>

#include "core/dtype.hpp"
#include "ranks/communicator.hpp"

namespace katt::ranks {

/// The MPI calls that a user would write in place of a Communicator's operations, in host memory:
/// the baseline of those. MPI chooses the algorithms and the order of sums, and rounds sums of f16
/// and bf16 after each term. Counts are below 2^31 elements. Throws Error.
class PlainMpi {
 public:
  /// All ranks of the group make one together.
  explicit PlainMpi(const Communicator& group);
  ~PlainMpi();
  PlainMpi(const PlainMpi&) = delete;
  PlainMpi& operator=(const PlainMpi&) = delete;

  /// MPI_Allreduce of n elements.
  void all_reduce(const void* from, void* to, std::int64_t n, Dtype dtype) const;
  /// MPI_Reduce_scatter: of n elements part_of() goes to each rank.
  void reduce_scatter(const void* from, void* part, std::int64_t n, Dtype dtype) const;
  /// MPI_Allgatherv: of n elements part_of() comes from each rank.
  void all_gather(const void* part, void* to, std::int64_t n, Dtype dtype) const;
  /// MPI_Sendrecv of n elements to the next rank and from the last one.
  void send_recv(const void* from, void* to, std::int64_t n, Dtype dtype) const;

 private:
  struct Group;
  std::unique_ptr<Group> group_;
};

}  // namespace katt::ranks
