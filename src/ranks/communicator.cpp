#include "ranks/communicator.hpp"

#include <algorithm>
#include <array>
#include <exception>
#include <numeric>
#include <thread>
#include <utility>
#include <vector>

#include <Kokkos_Core.hpp>

#include "core/execution.hpp"
#include "core/stopwatch.hpp"
#include "memory/transfer.hpp"
#include "ranks/device_queue.hpp"
#include "ranks/link.hpp"
#include "ranks/nccl.hpp"
#include "ranks/operations.hpp"
#include "ranks/traffic.hpp"

namespace katt::ranks {

namespace {

/// Memory of a round of messages, if it needs memory.
constexpr std::size_t round_bytes = std::size_t{4} << 20;
/// Two ranks exchange everything in one message: a rank that waits for another's message sends no
/// more.
constexpr std::size_t whole_message = std::size_t{1} << 30;

/// The way in which MPI reaches the tensors of an operation. The data that it reads is complete.
template <class Exec>
impl::Reach reach_of(const Exec& exec) {
  exec.fence("katt::ranks: before an operation");
#if defined(KATT_HAS_CUDA)
  if constexpr (!memory::host_accessible<Exec>) {
    const bool is_direct = impl::Link::takes_device_memory();
    impl::note_transport(is_direct ? impl::Transport::device_memory : impl::Transport::staged);
    if (is_direct) return {.queue = std::make_unique<impl::CudaQueue>(exec)};
    return {.staging = std::make_unique<impl::StagedDevice<Exec>>(exec)};
  }
#endif
  return {};
}

/// The operation of a single rank: to ← from.
template <class Exec>
Request copied(const Exec& exec, impl::Elements from, impl::Elements to) {
  using Unmanaged = Kokkos::MemoryTraits<Kokkos::Unmanaged>;
  using Memory = typename Exec::memory_space;
  const std::size_t bytes = static_cast<std::size_t>(from.count) * size_of(from.dtype);
  if (from.data != to.data && bytes > 0) {
    Kokkos::deep_copy(
        exec, Kokkos::View<std::byte*, Memory, Unmanaged>(static_cast<std::byte*>(to.data), bytes),
        Kokkos::View<const std::byte*, Memory, Unmanaged>(static_cast<const std::byte*>(from.data),
                                                          bytes));
    exec.fence("katt::ranks: of one rank");
  }
  return {};
}

void expect(const char* op, const char* name, impl::Elements tensor, Dtype dtype,
            std::int64_t count, const std::string& why) {
  if (tensor.count != count) {
    throw InputError(std::string(op) + ": " + name + ": holds " + std::to_string(tensor.count) +
                     " elements, expected " + std::to_string(count) + why);
  }
  if (tensor.dtype != dtype) {
    throw InputError(std::string(op) + ": " + name + ": holds " +
                     std::string(name_of(tensor.dtype)) + ", expected " +
                     std::string(name_of(dtype)));
  }
}

/// Counts the time of a call of an operation.
class Inside {
 public:
  Inside() = default;
  ~Inside() { impl::counted().inside_s += watch_.seconds(); }
  Inside(const Inside&) = delete;
  Inside& operator=(const Inside&) = delete;

 private:
  Stopwatch watch_;
};

/// An operation between the ranks of a group, or from one to another.
struct Ends {
  int from = -1, to = -1;
};

/// Starts sending at once.
Request started(std::unique_ptr<impl::Operation> operation) {
  Request request(std::move(operation));
  (void)request.advance();
  return request;
}

/// An operation over MPI, made by over_mpi(Reach), or, for tensors on a device, over NCCL, made by
/// over_nccl(NcclRequest).
template <class Exec, class OverMpi, class OverNccl>
Request started(const std::shared_ptr<impl::Link>& link, Ends ends, const Exec& exec,
                OverMpi over_mpi, OverNccl over_nccl) {
#if defined(KATT_HAS_NCCL)
  if constexpr (!memory::host_accessible<Exec>) {
    static const bool is_hooked = [] {
      Kokkos::push_finalize_hook(impl::close_channels);
      return true;
    }();
    (void)is_hooked;
    const int device = device_of(exec);
    KOKKOS_IMPL_CUDA_SAFE_CALL(cudaSetDevice(device));
    const auto channel = link->channel(ends.from, ends.to, [&] {
      std::vector<int> members{ends.from, ends.to};
      const bool is_group = ends.from < 0;
      if (is_group) {
        members.resize(static_cast<std::size_t>(link->size()));
        std::iota(members.begin(), members.end(), 0);
      }
      return std::make_shared<impl::Channel>(
          *link, is_group ? impl::Channel::Kind::group : impl::Channel::Kind::pair,
          std::move(members), device, [device]() -> std::unique_ptr<impl::Queue> {
            return std::make_unique<impl::CudaQueue>(instance_on(device));
          });
    });
    if (channel->device() != device) {
      throw InputError("a group of ranks works on device " + std::to_string(channel->device()) +
                       ", expected its tensors there; they are on device " +
                       std::to_string(device));
    }
    return started(over_nccl(
        impl::NcclRequest{.link = link,
                          .channel = channel,
                          .after = std::make_unique<impl::Mark>(exec.cuda_stream()),
                          .otherwise = [exec, over_mpi] { return over_mpi(reach_of(exec)); }}));
  }
#endif
  (void)link, (void)ends, (void)over_nccl;
  return started(over_mpi(reach_of(exec)));
}

template <class Exec>
Request started(const std::shared_ptr<impl::Link>& link, impl::Collective kind, const Exec& exec,
                impl::Elements from, impl::Elements to, std::int64_t total) {
  return started(
      link, {}, exec,
      [=, tag = link->next_tag()](impl::Reach reach) {
        const std::size_t bytes = reach.queue ? impl::device_round_bytes : round_bytes;
        return impl::make_collective(link, kind, tag, from, to, total, bytes, std::move(reach));
      },
      [=](auto request) {
        return impl::make_nccl_collective(std::move(request), kind, from, to, total,
                                          impl::device_round_bytes);
      });
}

}  // namespace

std::size_t summing_bytes(std::int64_t n, Dtype dtype, int ranks) {
  if (ranks == 1 || n == 0) return 0;
  const auto element = static_cast<std::int64_t>(size_of(dtype));
  return static_cast<std::size_t>(impl::round_elements(n, ranks, element, round_bytes) * element *
                                  ranks);
}

Part part_of(std::int64_t n, int ranks, int rank) {
  const std::int64_t longest = (n + ranks - 1) / ranks;
  const std::int64_t begin = std::min(n, longest * rank);
  return {begin, std::min(longest, n - begin)};
}

namespace {

/// All running operations of all groups.
std::vector<impl::Operation*>& under_way() {
  static std::vector<impl::Operation*> all;
  return all;
}

Stopwatch since_first;  ///< of those under way without a pause

void begin(impl::Operation* operation) {
  if (under_way().empty()) since_first = {};
  under_way().push_back(operation);
}

void forget(impl::Operation* operation) {
  std::erase(under_way(), operation);
  if (under_way().empty()) impl::counted().under_way_s += since_first.seconds();
}

/// Waits for one operation. Another rank may first wait for a different operation, so all
/// operations advance meanwhile.
void complete(impl::Operation& operation) {
  if (under_way().size() == 1) {
    operation.advance(true);
    return;
  }
  while (!operation.advance(false)) {
    for (impl::Operation* const other : under_way()) (void)other->advance(false);
    std::this_thread::yield();
  }
}

}  // namespace

Request::Request() = default;

Request::Request(std::unique_ptr<impl::Operation> operation) : operation_(std::move(operation)) {
  begin(operation_.get());
}

Request::Request(Request&& other) noexcept = default;

Request& Request::operator=(Request&& other) noexcept {
  if (this == &other) return *this;
  wait();
  operation_ = std::move(other.operation_);
  return *this;
}

Request::~Request() {
  if (!operation_) return;
  if (std::uncaught_exceptions() > 0) {
    forget(operation_.get());
    (void)operation_.release();  // NOLINT: MPI may still read and write its memory
    return;
  }
  wait();
}

void Request::end() {
  forget(operation_.get());
  operation_.reset();
}

bool Request::advance() {
  const Inside inside;
  if (operation_ && operation_->advance(false)) end();
  return operation_ == nullptr;
}

void Request::wait() {
  if (!operation_) return;
  const Inside inside;
  complete(*operation_);
  end();
}

Traffic traffic() { return impl::counted(); }

namespace {

std::array<bool, 3>& used_transports() {
  static std::array<bool, 3> used{};
  return used;
}

}  // namespace

std::string device_transports() {
  constexpr std::array names{"NCCL", "MPI, from device memory",
                             "MPI, staged through pinned host memory"};
  std::string text;
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (used_transports()[i]) text += (text.empty() ? "" : "; ") + std::string(names[i]);
  }
  return text;
}

namespace impl {

void note_transport(Transport used) { used_transports()[static_cast<std::size_t>(used)] = true; }

Traffic& counted() {
  static Traffic traffic;
  return traffic;
}

}  // namespace impl

Communicator::Communicator() : link_(std::make_shared<impl::Link>()) {}
Communicator::Communicator(std::shared_ptr<impl::Link> link) : link_(std::move(link)) {}

Communicator world() {
  return impl::world_link() ? Communicator(impl::world_link()) : Communicator();
}

int Communicator::rank() const { return link_->rank(); }
int Communicator::size() const { return link_->size(); }
int Communicator::ranks_on_host() const { return link_->ranks_on_host(); }
const std::string& Communicator::where() const { return link_->where(); }

Communicator Communicator::split(int color, int key) const {
  return Communicator(link_->split(color, key));
}

void Communicator::barrier() const {
  if (size() > 1) link_->barrier();
}

std::vector<double> Communicator::gather(double value) const {
  std::vector<double> all(static_cast<std::size_t>(size()), value);
  if (size() > 1) {
    link_->gather(std::as_bytes(std::span(&value, 1)), std::as_writable_bytes(std::span(all)));
  }
  return all;
}

double Communicator::sum(double value) const {
  const std::vector<double> all = gather(value);
  double total = all[0];
  for (std::size_t r = 1; r < all.size(); ++r) total += all[r];
  return total;
}

std::string Communicator::broadcast_text(const std::string& text, int root) const {
  if (size() == 1) return text;
  std::int64_t length = std::ssize(text);
  link_->broadcast(std::as_writable_bytes(std::span(&length, 1)), root);
  std::string result = rank() == root ? text : std::string(static_cast<std::size_t>(length), ' ');
  link_->broadcast(std::as_writable_bytes(std::span(result)), root);
  return result;
}

void Communicator::send_message(std::span<const std::byte> bytes, int to) const {
  link_->send_message(bytes, to);
}
Message Communicator::receive_message() const { return link_->receive_message(); }
bool Communicator::has_message() const { return link_->has_message(); }

template <class Exec>
Request Communicator::start_all_reduce(const Exec& exec, impl::Elements values) const {
  if (size() == 1 || values.count == 0) return {};
  return started(link_, impl::Collective::all_reduce, exec, values, values, values.count);
}

template <class Exec>
Request Communicator::start_reduce_scatter(const Exec& exec, impl::Elements values,
                                           impl::Elements part) const {
  expect("reduce_scatter", "part", part, values.dtype, part_of(values.count, size(), rank()).count,
         ", rank " + std::to_string(rank()) + "'s part of " + std::to_string(values.count));
  if (size() == 1) return copied(exec, values, part);
  return started(link_, impl::Collective::reduce_scatter, exec, values, part, values.count);
}

template <class Exec>
Request Communicator::start_all_gather(const Exec& exec, impl::Elements part,
                                       impl::Elements values) const {
  expect("all_gather", "part", part, values.dtype, part_of(values.count, size(), rank()).count,
         ", rank " + std::to_string(rank()) + "'s part of " + std::to_string(values.count));
  if (size() == 1) return copied(exec, part, values);
  return started(link_, impl::Collective::all_gather, exec, part, values, values.count);
}

template <class Exec>
Request Communicator::start_all_to_all(const Exec& exec, impl::Elements from,
                                       impl::Elements to) const {
  if (from.count % size() != 0) {
    throw InputError("all_to_all: from: holds " + std::to_string(from.count) +
                     " elements, expected a multiple of the " + std::to_string(size()) + " ranks");
  }
  expect("all_to_all", "to", to, from.dtype, from.count, ", as many as from");
  if (size() == 1) return copied(exec, from, to);
  return started(link_, impl::Collective::all_to_all, exec, from, to, from.count);
}

template <class Exec>
Request Communicator::start_broadcast(const Exec& exec, impl::Elements values, int root) const {
  if (root < 0 || root >= size()) {
    throw InputError("broadcast: root " + std::to_string(root) + ", expected 0 to " +
                     std::to_string(size() - 1));
  }
  if (size() == 1) return {};
  return started(
      link_, {}, exec,
      [=, link = link_, tag = link_->next_tag()](impl::Reach reach) {
        return impl::make_broadcast(link, tag, values, root, round_bytes, std::move(reach));
      },
      [=](auto request) { return impl::make_nccl_broadcast(std::move(request), values, root); });
}

namespace {

template <class Exec>
Request transferred(const std::shared_ptr<impl::Link>& link, impl::Direction direction,
                    const Exec& exec, impl::Elements values, int other) {
  const bool sends = direction == impl::Direction::send;
  const int tag = sends ? link->next_tag_to(other) : link->next_tag_from(other);
  return started(
      link, sends ? Ends{link->rank(), other} : Ends{other, link->rank()}, exec,
      [=](impl::Reach reach) {
        return impl::make_transfer(link, direction, tag, values, other, whole_message,
                                   std::move(reach));
      },
      [=](auto request) {
        return impl::make_nccl_transfer(std::move(request), direction, values);
      });
}

void expect_other(const char* op, int other, const Communicator& ranks) {
  if (other >= 0 && other < ranks.size() && other != ranks.rank()) return;
  throw InputError(std::string(op) + ": rank " + std::to_string(other) +
                   ", expected another one of " + std::to_string(ranks.size()) + " than " +
                   std::to_string(ranks.rank()));
}

}  // namespace

template <class Exec>
Request Communicator::start_send(const Exec& exec, impl::Elements values, int to) const {
  expect_other("send", to, *this);
  return transferred(link_, impl::Direction::send, exec, values, to);
}

template <class Exec>
Request Communicator::start_recv(const Exec& exec, impl::Elements values, int from) const {
  expect_other("recv", from, *this);
  return transferred(link_, impl::Direction::receive, exec, values, from);
}

#define KATT_INSTANTIATE_COMMUNICATOR(Exec)                                                     \
  template Request Communicator::start_all_reduce<Exec>(const Exec&, impl::Elements) const;     \
  template Request Communicator::start_reduce_scatter<Exec>(const Exec&, impl::Elements,        \
                                                            impl::Elements) const;              \
  template Request Communicator::start_all_gather<Exec>(const Exec&, impl::Elements,            \
                                                        impl::Elements) const;                  \
  template Request Communicator::start_all_to_all<Exec>(const Exec&, impl::Elements,            \
                                                        impl::Elements) const;                  \
  template Request Communicator::start_broadcast<Exec>(const Exec&, impl::Elements, int) const; \
  template Request Communicator::start_send<Exec>(const Exec&, impl::Elements, int) const;      \
  template Request Communicator::start_recv<Exec>(const Exec&, impl::Elements, int) const;

KATT_FOR_EACH_EXEC(KATT_INSTANTIATE_COMMUNICATOR)

}  // namespace katt::ranks
