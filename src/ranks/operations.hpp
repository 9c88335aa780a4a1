#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "ranks/link.hpp"

/// The operations of a Communicator as rounds of messages, for every execution space.
namespace katt::ranks::impl {

/// Stages device memory that MPI cannot read through pinned host memory. Copies run in order and do
/// not wait.
class Staging {
 public:
  virtual ~Staging() = default;
  /// Pinned host memory, which lives as long as this object.
  [[nodiscard]] virtual std::byte* buffer(std::size_t bytes) = 0;
  virtual void load(std::byte* host, const std::byte* device, std::size_t bytes) = 0;
  virtual void store(std::byte* device, const std::byte* host, std::size_t bytes) = 0;
  virtual void wait() = 0;
};

/// One part from each of the ranks, in their order: rank r's begins at `received` + r · slot, this rank's is at
/// `own`.
struct Parts {
  const std::byte* received = nullptr;
  std::int64_t slot = 0;  ///< bytes
  const std::byte* own = nullptr;
  int rank = 0, ranks = 1;

  [[nodiscard]] const std::byte* of(int r) const { return r == rank ? own : received + r * slot; }
};

/// Work on device memory without staging: on a stream, in order; only wait() waits.
class Queue {
 public:
  virtual ~Queue() = default;
  [[nodiscard]] virtual void* stream() = 0;  ///< cudaStream_t
  /// Device memory, which lives as long as this object; the next call invalidates it.
  [[nodiscard]] virtual std::byte* buffer(std::size_t bytes) = 0;
  virtual void copy(std::byte* to, const std::byte* from, std::size_t bytes) = 0;
  /// out ← Σ parts in the order of the ranks and in f32, rounded once. `out` may be this rank's part.
  virtual void sum(const Parts& parts, std::int64_t count, Dtype dtype, std::byte* out) = 0;
  virtual void wait() = 0;
};

/// The way in which MPI reaches the tensors of an operation. With neither member MPI reads and
/// writes them on the host, with a queue on the device; with `staging` they pass through host
/// memory.
struct Reach {
  std::unique_ptr<Staging> staging{};
  std::unique_ptr<Queue> queue{};
};

/// Memory of a round of a sum on a device: a round is a few kernel launches. Tests change it.
inline std::size_t device_round_bytes = std::size_t{32} << 20;

enum class Collective : std::uint8_t { all_reduce, reduce_scatter, all_gather, all_to_all };

/// An operation between all ranks. `from` and `to` as in Communicator; every rank has a part of
/// `total` elements. Each round moves the same range of all parts:
///
///   send rank r's part to rank r, from everyone | all_reduce, reduce_scatter, all_to_all
///   sum what came, in the order of the ranks | all_reduce, reduce_scatter
///   send the own part to everyone | all_reduce, all_gather
///
/// `round_bytes`: about the memory for received terms of a sum, and for staging. `tag`: the tag of
/// the messages, Link::next_tag().
std::unique_ptr<Operation> make_collective(std::shared_ptr<Link> link, Collective kind, int tag,
                                           Elements from, Elements to, std::int64_t total,
                                           std::size_t round_bytes, Reach reach);

/// Elements of each part that move in a round of a sum.
[[nodiscard]] std::int64_t round_elements(std::int64_t total, int ranks, std::int64_t element,
                                          std::size_t round_bytes);

/// Sends along a binomial tree with the given root.
std::unique_ptr<Operation> make_broadcast(std::shared_ptr<Link> link, int tag, Elements values,
                                          int root, std::size_t round_bytes, Reach reach);

enum class Direction : std::uint8_t { send, receive };

std::unique_ptr<Operation> make_transfer(std::shared_ptr<Link> link, Direction direction, int tag,
                                         Elements values, int other, std::size_t round_bytes,
                                         Reach reach);

}  // namespace katt::ranks::impl
