#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "dist/link.hpp"

/// The operations of a Communicator as rounds of messages, whatever the execution space.
namespace katt::dist::impl {

/// Device memory as MPI sees it: through pinned host memory. Copies are in order and do not wait.
class Device {
 public:
  virtual ~Device() = default;
  /// Pinned host memory, which lives as long as this object.
  [[nodiscard]] virtual std::byte* buffer(std::size_t bytes) = 0;
  virtual void load(std::byte* host, const std::byte* device, std::size_t bytes) = 0;
  virtual void store(std::byte* device, const std::byte* host, std::size_t bytes) = 0;
  virtual void wait() = 0;
};

enum class Collective : std::uint8_t { all_reduce, reduce_scatter, all_gather, all_to_all };

/// An operation between all ranks. `from` and `to` as in Communicator; of `total` elements every
/// rank has a part. Each round moves the same range of all parts:
///
///   of rank r's part to rank r, from everyone | all_reduce, reduce_scatter, all_to_all
///   sum of what came, in the order of the ranks | all_reduce, reduce_scatter
///   of the own part to everyone | all_reduce, all_gather
///
/// `round_bytes`: about the memory for what is received to be summed, and for staging. `device` is null
/// where the host reads and writes the tensors.
std::unique_ptr<Operation> make_collective(std::shared_ptr<Link> link, Collective kind,
                                           Elements from, Elements to, std::int64_t total,
                                           std::size_t round_bytes, std::unique_ptr<Device> device);

/// Elements of each part that move in a round of a sum.
[[nodiscard]] std::int64_t round_elements(std::int64_t total, int ranks, std::int64_t element,
                                          std::size_t round_bytes);

/// Along a binomial tree whose root is a rank.
std::unique_ptr<Operation> make_broadcast(std::shared_ptr<Link> link, Elements values, int root,
                                          std::size_t round_bytes, std::unique_ptr<Device> device);

enum class Direction : std::uint8_t { send, receive };

std::unique_ptr<Operation> make_transfer(std::shared_ptr<Link> link, Direction direction,
                                         Elements values, int other, std::size_t round_bytes,
                                         std::unique_ptr<Device> device);

}  // namespace katt::dist::impl
