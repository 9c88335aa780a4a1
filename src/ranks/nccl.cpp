#include "ranks/nccl.hpp"

#if defined(KATT_HAS_NCCL)

#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <nccl.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <deque>
#include <set>
#include <stdexcept>
#include <thread>
#include <utility>

#include "ranks/environment.hpp"

namespace katt::ranks {

namespace {

/// The functions of libnccl that this file calls, with the types of its header.
// clang-format off
#define KATT_NCCL_FUNCTIONS(X) \
  X(ncclGetVersion) X(ncclGetErrorString) X(ncclGetLastError) X(ncclGetUniqueId) \
  X(ncclCommInitRankConfig) X(ncclCommGetAsyncError) X(ncclCommFinalize) \
  X(ncclCommDestroy) X(ncclCommAbort) X(ncclAllReduce) X(ncclReduceScatter) \
  X(ncclAllGather) X(ncclBroadcast) X(ncclSend) X(ncclRecv) X(ncclGroupStart) \
  X(ncclGroupEnd)
// clang-format on

/// libnccl.so.2: the loader's, else the one that CMake found. The program does not link it: a
/// program of one rank saves its 340 MB.
struct Library {
  std::string problem;  ///< the reason why there is none, in one line
  int version = 0;
#define KATT_NCCL_POINTER(name) decltype(&::name) name = nullptr;
  KATT_NCCL_FUNCTIONS(KATT_NCCL_POINTER)
#undef KATT_NCCL_POINTER

  Library() {
    constexpr int least = 21800;
    void* handle = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) handle = dlopen(KATT_NCCL_LIBRARY, RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) {
      problem = "libnccl.so.2 is not on this machine";
      return;
    }
#define KATT_NCCL_LOAD(function)                                             \
  function = reinterpret_cast<decltype(function)>(dlsym(handle, #function)); \
  if (function == nullptr) problem = "libnccl.so.2 has no " #function;
    KATT_NCCL_FUNCTIONS(KATT_NCCL_LOAD)
#undef KATT_NCCL_LOAD
    if (!problem.empty()) return;
    if (ncclGetVersion(&version) != ncclSuccess || version < least) {
      problem = "libnccl.so.2 has the version code " + std::to_string(version) + ", expected " +
                std::to_string(least) + " or later";
    }
  }
};

const Library& library() {
  static const Library loaded;
  return loaded;
}

void check_cuda(cudaError_t error) {
  if (error != cudaSuccess) throw std::runtime_error(cudaGetErrorString(error));
}

}  // namespace

std::string nccl_version() {
  const Library& nccl = library();
  if (!nccl.problem.empty()) return "none: " + nccl.problem;
  return std::to_string(nccl.version / 10000) + "." + std::to_string(nccl.version / 100 % 100) +
         "." + std::to_string(nccl.version % 100);
}

namespace impl {

Mark::Mark(void* stream) {
  cudaEvent_t event = nullptr;
  check_cuda(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  event_ = event;
  check_cuda(cudaEventRecord(event, static_cast<cudaStream_t>(stream)));
}

Mark::~Mark() { (void)cudaEventDestroy(static_cast<cudaEvent_t>(event_)); }

void Mark::hold_back(void* stream) const {
  check_cuda(
      cudaStreamWaitEvent(static_cast<cudaStream_t>(stream), static_cast<cudaEvent_t>(event_), 0));
}

bool Mark::reached() const {
  const cudaError_t state = cudaEventQuery(static_cast<cudaEvent_t>(event_));
  if (state == cudaErrorNotReady) return false;
  check_cuda(state);
  return true;
}

namespace {

using Clock = std::chrono::steady_clock;

/// A rank's description of itself when it meets the others. NCCL, too, identifies a device by host
/// and bus.
struct Offer {
  std::array<char, 256> host{};
  std::array<char, 32> bus{};
  int has_library = 0;
};

struct Answer {
  int is_used = 0;
  ncclUniqueId id{};
};

Offer own_offer(const std::string& where, int device) {
  Offer offer;
  const std::string host = where.substr(where.find(" on ") + 4);
  std::memcpy(offer.host.data(), host.data(), std::min(host.size(), offer.host.size() - 1));
  offer.has_library = library().problem.empty() ? 1 : 0;
  check_cuda(cudaDeviceGetPCIBusId(offer.bus.data(), static_cast<int>(offer.bus.size()), device));
  return offer;
}

ncclDataType_t type_of(Dtype dtype) {
  switch (dtype) {
    case Dtype::f32: return ncclFloat32;
    case Dtype::f16: return ncclFloat16;
    case Dtype::bf16: break;
  }
  return ncclBfloat16;
}

}  // namespace

struct Channel::State {
  enum class Phase : std::uint8_t { gathering, answering, starting, used, unused };

  Link& link;
  std::vector<int> members;
  int place;  ///< index of this rank among the members
  int device;
  std::function<std::unique_ptr<Queue>()> make_queue;
  std::unique_ptr<Queue> queue;
  std::deque<Operation*> line;
  Phase phase = Phase::gathering;
  Messages offers, answers;
  std::vector<Offer> offered;
  Answer answer;
  ncclComm_t comm = nullptr;
  ncclResult_t called = ncclSuccess;  ///< the first error of the calls since the last is_settled()
  bool is_broken = false;

  State(Link& of, Kind kind, std::vector<int> ranks, int on_device,
        std::function<std::unique_ptr<Queue>()> queue_maker)
      : link(of),
        members(std::move(ranks)),
        place(static_cast<int>(std::ranges::find(members, of.rank()) - members.begin())),
        device(on_device),
        make_queue(std::move(queue_maker)),
        offers(of, "NCCL", Link::meeting_tag + (kind == Kind::group ? 0 : 2)),
        answers(of, "NCCL", Link::meeting_tag + (kind == Kind::group ? 1 : 3)),
        offered(place == 0 ? members.size() : 1) {
    offered[0] = own_offer(link.where(), device);
    if (place == 0) {
      for (std::size_t i = 1; i < members.size(); ++i) {
        offers.receive(&offered[i], sizeof(Offer), members[i]);
      }
    } else {
      offers.send(offered.data(), sizeof(Offer), members[0]);
      answers.receive(&answer, sizeof(Answer), members[0]);
    }
  }

  [[nodiscard]] std::string text_of(ncclResult_t code) const {
    std::string text = library().ncclGetErrorString(code);
    const char* const last = library().ncclGetLastError(comm);
    if (last != nullptr && *last != '\0') text += std::string(": ") + last;
    std::ranges::replace(text, '\n', ' ');
    return "NCCL: " + text;
  }

  [[noreturn]] void fail(const char* op, ncclResult_t code) {
    is_broken = true;
    link.fail(op, text_of(code));
  }

  [[nodiscard]] cudaStream_t stream() const { return static_cast<cudaStream_t>(queue->stream()); }

  void note(ncclResult_t code) {
    if (called == ncclSuccess && code != ncclInProgress) called = code;
  }

  /// The leader's identifier.
  void decide() {
    std::set<std::pair<std::string, std::string>> devices;
    bool all_have = true;
    for (const Offer& offer : offered) {
      devices.emplace(offer.host.data(), offer.bus.data());
      all_have = all_have && offer.has_library != 0;
    }
    answer.is_used = all_have && devices.size() == offered.size() ? 1 : 0;
    if (answer.is_used != 0) {
      const ncclResult_t code = library().ncclGetUniqueId(&answer.id);
      if (code != ncclSuccess) fail("group", code);
    }
    for (std::size_t i = 1; i < members.size(); ++i) {
      answers.send(&answer, sizeof(Answer), members[i]);
    }
  }

  void start() {
    if (answer.is_used == 0) {
      phase = Phase::unused;
      return;
    }
    queue = make_queue();
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;  // another rank may come here only after one of its messages has advanced
    check_cuda(cudaSetDevice(device));
    note(library().ncclCommInitRankConfig(&comm, static_cast<int>(members.size()), answer.id, place,
                                          &config));
    phase = Phase::starting;
  }

  /// Throws an error of a call or of another rank. True when no call is still in progress to the
  /// stream.
  bool is_settled(const char* op) {
    ncclResult_t state = std::exchange(called, ncclSuccess);
    if (state == ncclSuccess) {
      const ncclResult_t asked = library().ncclCommGetAsyncError(comm, &state);
      if (asked != ncclSuccess) state = asked;
    }
    if (state == ncclInProgress) return false;
    if (state != ncclSuccess) fail(op, state);
    return true;
  }

  /// As is_settled(), but waits as long as a launch takes: the next computation then hides the
  /// rest.
  bool settles_soon(const char* op) {
    const auto end = Clock::now() + std::chrono::microseconds(200);
    while (!is_settled(op)) {
      if (Clock::now() > end) return false;
    }
    return true;
  }

  void close() {
    if (comm == nullptr) return;
    const Library& nccl = library();
    ncclResult_t state = is_broken || phase != Phase::used ? ncclInternalError : ncclSuccess;
    if (state == ncclSuccess) {
      state = nccl.ncclCommFinalize(comm);
      const auto end = Clock::now() + std::chrono::seconds(10);
      while ((state == ncclSuccess || state == ncclInProgress) && Clock::now() < end) {
        if (nccl.ncclCommGetAsyncError(comm, &state) != ncclSuccess || state == ncclSuccess) break;
        std::this_thread::yield();
      }
    }
    if (state == ncclSuccess) {
      (void)nccl.ncclCommDestroy(comm);
    } else {
      (void)nccl.ncclCommAbort(comm);
    }
  }
};

Channel::Channel(Link& link, Kind kind, std::vector<int> members, int device,
                 std::function<std::unique_ptr<Queue>()> make_queue)
    : state_(
          std::make_unique<State>(link, kind, std::move(members), device, std::move(make_queue))) {}

Channel::~Channel() { state_->close(); }

void Channel::line_up(Operation* operation) { state_->line.push_back(operation); }
Operation* Channel::next() const { return state_->line.front(); }
void Channel::leave(const Operation* operation) { std::erase(state_->line, operation); }
bool Channel::is_used() const { return state_->phase == State::Phase::used; }
Queue& Channel::queue() { return *state_->queue; }
int Channel::device() const { return state_->device; }

bool Channel::has_met() {
  State& state = *state_;
  while (true) {
    switch (state.phase) {
      case State::Phase::gathering:
        if (!state.offers.finish(false)) return false;
        if (state.place == 0) state.decide();
        state.phase = State::Phase::answering;
        break;
      case State::Phase::answering:
        if (!state.answers.finish(false)) return false;
        state.start();
        break;
      case State::Phase::starting:
        if (!state.settles_soon("group")) return false;
        state.phase = State::Phase::used;
        break;
      case State::Phase::used:
      case State::Phase::unused: return true;
    }
  }
}

void Channel::all_reduce(void* values, std::int64_t count, Dtype dtype) {
  state_->note(library().ncclAllReduce(values, values, static_cast<std::size_t>(count),
                                       type_of(dtype), ncclSum, state_->comm, state_->stream()));
}

void Channel::reduce_scatter(const void* values, void* part, std::int64_t part_count, Dtype dtype) {
  state_->note(library().ncclReduceScatter(values, part, static_cast<std::size_t>(part_count),
                                           type_of(dtype), ncclSum, state_->comm,
                                           state_->stream()));
}

void Channel::all_gather(const void* part, void* values, std::int64_t part_count, Dtype dtype) {
  state_->note(library().ncclAllGather(part, values, static_cast<std::size_t>(part_count),
                                       type_of(dtype), state_->comm, state_->stream()));
}

void Channel::broadcast(void* values, std::int64_t count, Dtype dtype, int root) {
  state_->note(library().ncclBroadcast(values, values, static_cast<std::size_t>(count),
                                       type_of(dtype), root, state_->comm, state_->stream()));
}

void Channel::begin_group() { state_->note(library().ncclGroupStart()); }
void Channel::end_group() { state_->note(library().ncclGroupEnd()); }

void Channel::send(const void* values, std::int64_t count, Dtype dtype, int to) {
  state_->note(library().ncclSend(values, static_cast<std::size_t>(count), type_of(dtype), to,
                                  state_->comm, state_->stream()));
}

void Channel::receive(void* values, std::int64_t count, Dtype dtype, int from) {
  state_->note(library().ncclRecv(values, static_cast<std::size_t>(count), type_of(dtype), from,
                                  state_->comm, state_->stream()));
}

bool Channel::is_settled(const char* op) { return state_->settles_soon(op); }
void Channel::check(const char* op) { (void)state_->is_settled(op); }

}  // namespace impl
}  // namespace katt::ranks

#else

#include "ranks/environment.hpp"

namespace katt::ranks {
std::string nccl_version() { return "none: built without NCCL"; }
}  // namespace katt::ranks

#endif
