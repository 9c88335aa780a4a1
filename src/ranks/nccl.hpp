#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "ranks/operations.hpp"

/// Device memory over NCCL, between ranks that have a device each. Only this file calls NCCL, and
/// loads it at the first use. Nothing here uses Kokkos.
namespace katt::ranks::impl {

/// A place in the order of a stream.
class Mark {
 public:
  /// Places the mark behind all work of the stream (cudaStream_t) so far.
  explicit Mark(void* stream);
  ~Mark();
  Mark(const Mark&) = delete;
  Mark& operator=(const Mark&) = delete;
  /// All later work of a stream waits for the mark.
  void hold_back(void* stream) const;
  /// True when the device has reached the mark. Throws std::runtime_error with the fault of a
  /// kernel before it.
  [[nodiscard]] bool reached() const;

 private:
  void* event_ = nullptr;
};

/// NCCL's communicator of some ranks of a group, and the stream on which it works. Its ranks meet
/// over MPI when its first operation begins; they use it when each rank has libnccl and a device of
/// its own. No call waits, so ranks may begin operations of several channels in different orders.
class Channel {
 public:
  /// `members`: ranks of the group; the first one leads. The same two ranks may have a channel for
  /// each direction and that of the group: `kind` distinguishes their messages.
  enum class Kind : std::uint8_t { group, pair };
  /// The channel calls `make_queue` at its first use.
  Channel(Link& link, Kind kind, std::vector<int> members, int device,
          std::function<std::unique_ptr<Queue>()> make_queue);
  ~Channel();
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;

  /// Operations begin in the order of their start.
  void line_up(Operation* operation);
  [[nodiscard]] Operation* next() const;
  void leave(const Operation* operation);

  /// Advances the meeting of the ranks; true when they have met. Throws Error.
  [[nodiscard]] bool has_met();
  /// After the meeting: true when the ranks use the channel.
  [[nodiscard]] bool is_used() const;

  [[nodiscard]] Queue& queue();
  [[nodiscard]] int device() const;

  /// Calls of NCCL on the queue's stream, of `count` elements. Ranks are indices of members.
  void all_reduce(void* values, std::int64_t count, Dtype dtype);
  void reduce_scatter(const void* values, void* part, std::int64_t part_count, Dtype dtype);
  void all_gather(const void* part, void* values, std::int64_t part_count, Dtype dtype);
  void broadcast(void* values, std::int64_t count, Dtype dtype, int root);
  /// Sends and receives between begin_group() and end_group() are one call.
  void begin_group();
  void send(const void* values, std::int64_t count, Dtype dtype, int to);
  void receive(void* values, std::int64_t count, Dtype dtype, int from);
  void end_group();
  /// True when all calls are on the stream. Throws an Error that names `op` for an error of NCCL or
  /// of another rank.
  [[nodiscard]] bool is_settled(const char* op);
  /// Throws such an error; a call in progress is not an error.
  void check(const char* op);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// An operation on a channel. When the ranks do not use it, `otherwise` makes the operation.
struct NcclRequest {
  std::shared_ptr<Link> link;
  std::shared_ptr<Channel> channel;
  std::unique_ptr<Mark> after;  ///< the operation follows
  std::function<std::unique_ptr<Operation>()> otherwise;
};

/// As make_collective(), make_broadcast() and make_transfer(). Sums of f32 in parts of equal length are NCCL's;
/// the others are exchanged, summed in the order of the ranks in f32 and rounded once, in rounds of about
/// `round_bytes`.
std::unique_ptr<Operation> make_nccl_collective(NcclRequest request, Collective kind, Elements from,
                                                Elements to, std::int64_t total,
                                                std::size_t round_bytes);
std::unique_ptr<Operation> make_nccl_broadcast(NcclRequest request, Elements values, int root);
std::unique_ptr<Operation> make_nccl_transfer(NcclRequest request, Direction direction,
                                              Elements values);

}  // namespace katt::ranks::impl
