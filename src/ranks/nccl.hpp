#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "ranks/operations.hpp"

/// Device memory over NCCL, between ranks that have a device each. The one place that calls NCCL, which is
/// loaded when it is first asked for. Nothing here knows Kokkos.
namespace katt::ranks::impl {

/// A place in the order of a stream.
class Mark {
 public:
  /// Behind all that the stream (cudaStream_t) has been asked for.
  explicit Mark(void* stream);
  ~Mark();
  Mark(const Mark&) = delete;
  Mark& operator=(const Mark&) = delete;
  /// What a stream is asked for from here on waits for the mark.
  void hold_back(void* stream) const;
  /// Whether the device has come here. Throws std::runtime_error with the fault of a kernel before it.
  [[nodiscard]] bool reached() const;

 private:
  void* event_ = nullptr;
};

/// NCCL's communicator of some ranks of a group, and the stream on which it works. Its ranks meet over MPI
/// when its first operation begins: it is used where each has libnccl and a device that no other has.
/// Nothing waits, so that ranks may begin operations of several channels in different orders.
class Channel {
 public:
  /// `members`: ranks of the group, the first of which leads. Between the same two there may be a channel of
  /// each direction and that of the group: `kind` tells their messages apart.
  enum class Kind : std::uint8_t { group, pair };
  /// `make_queue` is called once it is used.
  Channel(Link& link, Kind kind, std::vector<int> members, int device,
          std::function<std::unique_ptr<Queue>()> make_queue);
  ~Channel();
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;

  /// Operations begin in the order in which they were started.
  void line_up(Operation* operation);
  [[nodiscard]] Operation* next() const;
  void leave(const Operation* operation);

  /// Whether the ranks have met; goes on with that. Throws Error.
  [[nodiscard]] bool has_met();
  /// Once they have: whether they use it.
  [[nodiscard]] bool is_used() const;

  [[nodiscard]] Queue& queue();
  [[nodiscard]] int device() const;

  /// Calls of NCCL on the queue's stream, of `count` elements. Ranks are members, by their place.
  void all_reduce(void* values, std::int64_t count, Dtype dtype);
  void reduce_scatter(const void* values, void* part, std::int64_t part_count, Dtype dtype);
  void all_gather(const void* part, void* values, std::int64_t part_count, Dtype dtype);
  void broadcast(void* values, std::int64_t count, Dtype dtype, int root);
  /// Sends and receives between begin_group() and end_group() are one call.
  void begin_group();
  void send(const void* values, std::int64_t count, Dtype dtype, int to);
  void receive(void* values, std::int64_t count, Dtype dtype, int from);
  void end_group();
  /// Whether what was called is on the stream; an error of NCCL's or of another rank is thrown, an Error that
  /// names `op`.
  [[nodiscard]] bool is_settled(const char* op);
  /// Throws such an error; a call on its way is none.
  void check(const char* op);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// An operation on a channel. Where the ranks do not use it, `otherwise` makes the operation.
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
