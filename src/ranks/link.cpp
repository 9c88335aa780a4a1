#include "ranks/link.hpp"

#include <stdexcept>
#include <utility>

#include "ranks/mpi.hpp"
#include "ranks/traffic.hpp"

namespace katt::ranks::impl {

std::shared_ptr<Link>& world_link() {
  static std::shared_ptr<Link> link;
  return link;
}

namespace {

/// MPI promises 2^15 tags: a quarter of them serve operations of all ranks, the next quarter
/// operations of two ranks.
constexpr int tags = 1 << 13;

std::vector<std::weak_ptr<Link>>& with_channels() {
  static std::vector<std::weak_ptr<Link>> links;
  return links;
}

int next(std::vector<int>& counts, int other) {
  int& count = counts[static_cast<std::size_t>(other)];
  return tags + (count = (count + 1) % tags);
}

}  // namespace

int Link::next_tag() { return tag_ = (tag_ + 1) % tags; }
int Link::next_tag_to(int other) { return next(tags_to_, other); }
int Link::next_tag_from(int other) { return next(tags_from_, other); }

std::shared_ptr<Channel> Link::channel(int from, int to,
                                       const std::function<std::shared_ptr<Channel>()>& make) {
  if (channels_.empty()) with_channels().push_back(weak_from_this());
  std::shared_ptr<Channel>& found = channels_[{from, to}];
  if (!found) found = make();
  return found;
}

void close_channels() {
  for (const auto& link : with_channels()) {
    if (const auto one = link.lock()) one->channels_.clear();
  }
  with_channels().clear();
}

void Link::fail(const char* op, const std::string& reason) const {
  throw Error(where_ + ": " + op + ": " + reason);
}

#if defined(KATT_HAS_MPI)

namespace {

std::string text_of(int code) {
  std::string text(MPI_MAX_ERROR_STRING, '\0');
  int length = 0;
  MPI_Error_string(code, text.data(), &length);
  text.resize(static_cast<std::size_t>(length));
  return text;
}

std::string host_name() {
  std::string name(MPI_MAX_PROCESSOR_NAME, '\0');
  int length = 0;
  MPI_Get_processor_name(name.data(), &length);
  name.resize(static_cast<std::size_t>(length));
  return name;
}

}  // namespace

Link::Mpi::Mpi(MPI_Comm group) : tensors(group) {
  MPI_Comm_dup(group, &messages);
  MPI_Comm_set_errhandler(tensors, MPI_ERRORS_RETURN);
  MPI_Comm_set_errhandler(messages, MPI_ERRORS_RETURN);
}

Link::Mpi::~Mpi() {
  int finalized = 0;
  MPI_Finalized(&finalized);
  if (finalized != 0) return;
  MPI_Comm_free(&messages);
  MPI_Comm_free(&tensors);
}

Link::Link() = default;
Link::~Link() = default;

Link::Link(std::unique_ptr<Mpi> mpi) : mpi_(std::move(mpi)) {
  int world_rank = 0, world_size = 1;
  MPI_Comm_rank(MPI_COMM_WORLD, &world_rank);
  MPI_Comm_size(MPI_COMM_WORLD, &world_size);
  where_ = "rank " + std::to_string(world_rank) + " of " + std::to_string(world_size) + " on " +
           host_name();
  check("group", MPI_Comm_rank(mpi_->tensors, &rank_));
  check("group", MPI_Comm_size(mpi_->tensors, &size_));
  tags_to_.resize(static_cast<std::size_t>(size_));
  tags_from_.resize(static_cast<std::size_t>(size_));
  MPI_Comm host = MPI_COMM_NULL;
  check("group",
        MPI_Comm_split_type(mpi_->tensors, MPI_COMM_TYPE_SHARED, rank_, MPI_INFO_NULL, &host));
  MPI_Comm_size(host, &ranks_on_host_);
  MPI_Comm_free(&host);
}

void Link::check(const char* op, int code) const {
  if (code != MPI_SUCCESS) fail(op, text_of(code));
}

std::shared_ptr<Link> Link::split(int color, int key) {
  if (mpi_ == nullptr) return shared_from_this();
  MPI_Comm part = MPI_COMM_NULL;
  check("split", MPI_Comm_split(mpi_->tensors, color, key, &part));
  return std::make_shared<Link>(std::make_unique<Mpi>(part));
}

bool Link::takes_device_memory() {
#if defined(MPIX_CUDA_AWARE_SUPPORT)
  return MPIX_Query_cuda_support() == 1;
#else
  return false;
#endif
}

void Link::barrier() { check("barrier", MPI_Barrier(mpi_->tensors)); }

void Link::gather(std::span<const std::byte> part, std::span<std::byte> all) {
  const int bytes = static_cast<int>(part.size());
  check("gather",
        MPI_Allgather(part.data(), bytes, MPI_BYTE, all.data(), bytes, MPI_BYTE, mpi_->tensors));
}

void Link::broadcast(std::span<std::byte> bytes, int root) {
  check("broadcast",
        MPI_Bcast(bytes.data(), static_cast<int>(bytes.size()), MPI_BYTE, root, mpi_->tensors));
}

void Link::send_message(std::span<const std::byte> bytes, int to) {
  check("send_message",
        MPI_Send(bytes.data(), static_cast<int>(bytes.size()), MPI_BYTE, to, 0, mpi_->messages));
}

Message Link::receive_message() {
  MPI_Message handle = MPI_MESSAGE_NULL;
  MPI_Status status;
  check("receive_message", MPI_Mprobe(MPI_ANY_SOURCE, 0, mpi_->messages, &handle, &status));
  int bytes = 0;
  MPI_Get_count(&status, MPI_BYTE, &bytes);
  Message message{status.MPI_SOURCE, std::vector<std::byte>(static_cast<std::size_t>(bytes))};
  check("receive_message",
        MPI_Mrecv(message.bytes.data(), bytes, MPI_BYTE, &handle, MPI_STATUS_IGNORE));
  return message;
}

bool Link::has_message() {
  int found = 0;
  check("has_message", MPI_Iprobe(MPI_ANY_SOURCE, 0, mpi_->messages, &found, MPI_STATUS_IGNORE));
  return found != 0;
}

struct Messages::Pending {
  std::vector<MPI_Request> requests;
  std::vector<std::size_t> expected;  ///< bytes; −1 for a message that is sent
};

Messages::Messages(Link& link, const char* op, int tag)
    : link_(link), op_(op), tag_(tag), pending_(std::make_unique<Pending>()) {}
Messages::~Messages() = default;

void Messages::send(const void* from, std::size_t bytes, int to) {
  pending_->expected.push_back(static_cast<std::size_t>(-1));
  counted().sent_bytes += static_cast<double>(bytes);
  counted().messages += 1;
  link_.check(op_, MPI_Isend(from, static_cast<int>(bytes), MPI_BYTE, to, tag_, link_.mpi().tensors,
                             &pending_->requests.emplace_back()));
}

void Messages::receive(void* to, std::size_t bytes, int from) {
  pending_->expected.push_back(bytes);
  link_.check(op_, MPI_Irecv(to, static_cast<int>(bytes), MPI_BYTE, from, tag_, link_.mpi().tensors,
                             &pending_->requests.emplace_back()));
}

bool Messages::finish(bool wait) {
  std::vector<MPI_Request>& requests = pending_->requests;
  if (requests.empty()) return true;
  const int count = static_cast<int>(requests.size());
  std::vector<MPI_Status> statuses(requests.size());
  int done = 1;
  const int code = wait ? MPI_Waitall(count, requests.data(), statuses.data())
                        : MPI_Testall(count, requests.data(), &done, statuses.data());
  if (code == MPI_ERR_IN_STATUS) {
    for (const MPI_Status& status : statuses) {
      if (status.MPI_ERROR != MPI_ERR_PENDING) link_.check(op_, status.MPI_ERROR);
    }
  }
  link_.check(op_, code);
  if (done == 0) return false;
  for (std::size_t i = 0; i < requests.size(); ++i) {
    int bytes = 0;
    if (pending_->expected[i] == static_cast<std::size_t>(-1)) continue;
    MPI_Get_count(&statuses[i], MPI_BYTE, &bytes);
    if (static_cast<std::size_t>(bytes) == pending_->expected[i]) continue;
    link_.fail(op_, "rank " + std::to_string(statuses[i].MPI_SOURCE) + " sent " +
                        std::to_string(bytes) + " bytes, expected " +
                        std::to_string(pending_->expected[i]));
  }
  requests.clear();
  pending_->expected.clear();
  return true;
}

#else

struct Link::Mpi {};
struct Messages::Pending {};

namespace {
[[noreturn]] void without_mpi() { throw std::logic_error("a message in a build without MPI"); }
}  // namespace

Link::Link() = default;
Link::~Link() = default;
Link::Link(std::unique_ptr<Mpi> mpi) : mpi_(std::move(mpi)) {}
void Link::check(const char*, int) const { without_mpi(); }
bool Link::takes_device_memory() { return false; }
std::shared_ptr<Link> Link::split(int, int) { return shared_from_this(); }
void Link::barrier() { without_mpi(); }
void Link::gather(std::span<const std::byte>, std::span<std::byte>) { without_mpi(); }
void Link::broadcast(std::span<std::byte>, int) { without_mpi(); }
void Link::send_message(std::span<const std::byte>, int) { without_mpi(); }
Message Link::receive_message() { without_mpi(); }
bool Link::has_message() { return false; }
Messages::Messages(Link& link, const char* op, int tag) : link_(link), op_(op), tag_(tag) {}
Messages::~Messages() = default;
void Messages::send(const void*, std::size_t, int) { without_mpi(); }
void Messages::receive(void*, std::size_t, int) { without_mpi(); }
bool Messages::finish(bool) { return true; }

#endif

}  // namespace katt::ranks::impl
