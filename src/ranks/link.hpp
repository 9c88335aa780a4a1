#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "ranks/communicator.hpp"

/// The one place that calls MPI.
namespace katt::ranks::impl {

class Channel;

/// A group of ranks. Without MPI it is this process alone, and only the first few functions may be
/// called.
class Link : public std::enable_shared_from_this<Link> {
 public:
  Link();  ///< this process alone
  ~Link();
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;

  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] int size() const { return size_; }
  [[nodiscard]] int ranks_on_host() const { return ranks_on_host_; }
  [[nodiscard]] const std::string& where() const { return where_; }

  /// A tag for the messages of an operation. All ranks start the same operations of all ranks in
  /// the same order; two ranks count the operations between them in each direction.
  [[nodiscard]] int next_tag();
  [[nodiscard]] int next_tag_to(int other);
  [[nodiscard]] int next_tag_from(int other);

  /// The first of four tags for the ranks' messages before they use NCCL; no operation has them.
  static constexpr int meeting_tag = 1 << 14;

  /// NCCL's channel from one rank to another, or of the group for (-1, -1); `make` makes it the
  /// first time.
  std::shared_ptr<Channel> channel(int from, int to,
                                   const std::function<std::shared_ptr<Channel>()>& make);
  /// True when MPI reads and writes the memory of a device.
  [[nodiscard]] static bool takes_device_memory();

  [[nodiscard]] std::shared_ptr<Link> split(int color, int key);
  void barrier();
  void gather(std::span<const std::byte> part, std::span<std::byte> all);
  void broadcast(std::span<std::byte> bytes, int root);
  void send_message(std::span<const std::byte> bytes, int to);
  [[nodiscard]] Message receive_message();
  [[nodiscard]] bool has_message();

  struct Mpi;  ///< MPI's handles of the group
  explicit Link(std::unique_ptr<Mpi> mpi);
  [[nodiscard]] Mpi& mpi() { return *mpi_; }
  /// Throws Error when the code of an MPI call is not success.
  void check(const char* op, int code) const;
  [[noreturn]] void fail(const char* op, const std::string& reason) const;

 private:
  friend void close_channels();
  int rank_ = 0, size_ = 1, ranks_on_host_ = 1;
  int tag_ = 0;
  std::vector<int> tags_to_, tags_from_;
  std::map<std::pair<int, int>, std::shared_ptr<Channel>> channels_;
  std::string where_ = "rank 0 of 1";
  std::unique_ptr<Mpi> mpi_;
};

/// Messages of one operation in flight; at most 2^31 − 1 bytes each.
class Messages {
 public:
  /// `op` names the operation in errors and must outlive the object.
  Messages(Link& link, const char* op, int tag);
  ~Messages();
  Messages(const Messages&) = delete;
  Messages& operator=(const Messages&) = delete;

  void send(const void* from, std::size_t bytes, int to);
  void receive(void* to, std::size_t bytes, int from);
  /// True when all messages have arrived and the sent bytes may change. Throws Error, also when a
  /// message has another size than expected.
  [[nodiscard]] bool finish(bool wait);

 private:
  struct Pending;
  Link& link_;
  const char* op_;
  int tag_;
  std::unique_ptr<Pending> pending_;
};

/// Ends all channels, before the program releases their devices.
void close_channels();

/// The group of all ranks; null when this process is alone.
std::shared_ptr<Link>& world_link();

}  // namespace katt::ranks::impl
