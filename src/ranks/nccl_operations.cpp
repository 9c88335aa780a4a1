#include <algorithm>
#include <optional>
#include <thread>
#include <utility>

#include "ranks/nccl.hpp"
#include "ranks/traffic.hpp"

#if defined(KATT_HAS_NCCL)

namespace katt::ranks::impl {

namespace {

/// Calls on a channel, one after the other.
class OnChannel : public Operation {
 public:
  OnChannel(const char* op, NcclRequest request) : op_(op), request_(std::move(request)) {
    channel().line_up(this);
  }

  bool advance(bool to_the_end) override {
    while (!otherwise_ && !step()) {
      if (!to_the_end) return false;
      std::this_thread::yield();
    }
    return !otherwise_ || otherwise_->advance(to_the_end);
  }

 protected:
  /// Makes the next call; false when there is none.
  virtual bool call() = 0;

  [[nodiscard]] Channel& channel() { return *request_.channel; }
  [[nodiscard]] const Link& link() const { return *request_.link; }
  static void count(std::int64_t bytes) {
    counted().sent_bytes += static_cast<double>(bytes);
    counted().messages += 1;
  }

 private:
  enum class Phase : std::uint8_t { waiting, calling, on_stream };

  /// True when the operation is done, or uses another way.
  bool step() {
    if (phase_ == Phase::waiting) {
      if (!channel().has_met()) return false;
      // A wait for this operation also waits for the operations before it.
      if (channel().next() != this) (void)channel().next()->advance(false);
      if (channel().next() != this) return false;
      if (!channel().is_used()) {
        otherwise_ = request_.otherwise();
        channel().leave(this);
        return true;
      }
      note_transport(Transport::nccl);
      request_.after->hold_back(channel().queue().stream());
      phase_ = Phase::calling;
    }
    if (phase_ == Phase::calling) {
      do {
        if (!channel().is_settled(op_)) return false;
      } while (call());
      if (!channel().is_settled(op_)) return false;
      end_.emplace(channel().queue().stream());
      channel().leave(this);
      phase_ = Phase::on_stream;
    }
    channel().check(op_);  // error of another rank, for which this one would wait
    return end_->reached();
  }

  const char* op_;
  NcclRequest request_;
  Phase phase_ = Phase::waiting;
  std::optional<Mark> end_;
  std::unique_ptr<Operation> otherwise_;
};

class OneCall final : public OnChannel {
 public:
  OneCall(const char* op, NcclRequest request, std::function<void(Channel&)> f, std::int64_t bytes)
      : OnChannel(op, std::move(request)), f_(std::move(f)), bytes_(bytes) {}

 protected:
  bool call() override {
    if (!f_) return false;
    std::exchange(f_, nullptr)(channel());
    count(bytes_);
    return true;
  }

 private:
  std::function<void(Channel&)> f_;
  std::int64_t bytes_;
};

/// Sums in the order of the ranks: in each round a rank receives all contributions to its part,
/// sums them and, for all_reduce, sends the sum to every rank.
class ExchangedSum final : public OnChannel {
 public:
  ExchangedSum(const char* op, NcclRequest request, Elements from, Elements to, std::int64_t total,
               std::size_t round_bytes, bool gathers)
      : OnChannel(op, std::move(request)),
        from_(static_cast<std::byte*>(from.data)),
        to_(static_cast<std::byte*>(to.data)),
        dtype_(from.dtype),
        element_(static_cast<std::int64_t>(size_of(from.dtype))),
        total_(total),
        part_(part_of(total, link().size(), 0).count),
        round_(round_elements(total, link().size(), element_, round_bytes)),
        gathers_(gathers) {}

 protected:
  bool call() override {
    if (done_ >= part_) return false;
    const int own = link().rank();
    if (!is_exchanged_) {
      received_ =
          channel().queue().buffer(static_cast<std::size_t>(round_ * element_ * link().size()));
      channel().begin_group();
      for_others([&](int r) {
        if (elements(own) > 0) channel().receive(received_ + slot() * r, elements(own), dtype_, r);
        if (elements(r) > 0) send(from_ + offset(r), elements(r), r);
      });
      channel().end_group();
      is_exchanged_ = true;
      return true;
    }
    std::byte* const sum = gathers_ ? to_ + offset(own) : to_ + done_ * element_;
    channel().queue().sum({.received = received_,
                           .slot = slot(),
                           .own = from_ + offset(own),
                           .rank = own,
                           .ranks = link().size()},
                          elements(own), dtype_, sum);
    if (gathers_) {
      channel().begin_group();
      for_others([&](int r) {
        if (elements(r) > 0) channel().receive(to_ + offset(r), elements(r), dtype_, r);
        if (elements(own) > 0) send(sum, elements(own), r);
      });
      channel().end_group();
    }
    done_ += round_;
    is_exchanged_ = false;
    return true;
  }

 private:
  /// Bytes of rank r's part in this round.
  [[nodiscard]] std::int64_t elements(int r) const {
    return std::clamp<std::int64_t>(part_of(total_, link().size(), r).count - done_, 0, round_);
  }
  [[nodiscard]] std::int64_t offset(int r) const { return (r * part_ + done_) * element_; }
  [[nodiscard]] std::int64_t slot() const { return round_ * element_; }

  template <class F>
  void for_others(F&& f) const {
    for (int step = 1; step < link().size(); ++step) f((link().rank() + step) % link().size());
  }

  void send(const std::byte* values, std::int64_t n, int to) {
    channel().send(values, n, dtype_, to);
    count(n * element_);
  }

  std::byte* from_;
  std::byte* to_;
  Dtype dtype_;
  std::int64_t element_;  ///< bytes
  std::int64_t total_;
  std::int64_t part_;   ///< elements of the first part, the longest
  std::int64_t round_;  ///< elements of each part in a round
  std::int64_t done_ = 0;
  bool gathers_;
  bool is_exchanged_ = false;
  std::byte* received_ = nullptr;
};

std::byte* bytes_at(const Elements& elements, std::int64_t begin) {
  return static_cast<std::byte*>(elements.data) +
         begin * static_cast<std::int64_t>(size_of(elements.dtype));
}

/// Sends every rank's part to every rank; the parts may differ in length.
void gather_parts(Channel& channel, const Link& link, Elements part, Elements values) {
  const Part own = part_of(values.count, link.size(), link.rank());
  std::byte* const place = bytes_at(values, own.begin);
  if (part.data != place && own.count > 0) {
    channel.queue().copy(place, static_cast<const std::byte*>(part.data),
                         static_cast<std::size_t>(own.count) * size_of(part.dtype));
  }
  channel.begin_group();
  for (int step = 1; step < link.size(); ++step) {
    const int r = (link.rank() + step) % link.size();
    const Part other = part_of(values.count, link.size(), r);
    if (other.count > 0) {
      channel.receive(bytes_at(values, other.begin), other.count, values.dtype, r);
    }
    if (own.count > 0) channel.send(part.data, own.count, values.dtype, r);
  }
  channel.end_group();
}

void turn_parts(Channel& channel, const Link& link, Elements from, Elements to) {
  const std::int64_t part = from.count / link.size();
  const std::int64_t own = part * link.rank();
  channel.queue().copy(bytes_at(to, own), bytes_at(from, own),
                       static_cast<std::size_t>(part) * size_of(from.dtype));
  channel.begin_group();
  for (int step = 1; step < link.size(); ++step) {
    const int r = (link.rank() + step) % link.size();
    channel.receive(bytes_at(to, part * r), part, to.dtype, r);
    channel.send(bytes_at(from, part * r), part, from.dtype, r);
  }
  channel.end_group();
}

}  // namespace

std::unique_ptr<Operation> make_nccl_collective(NcclRequest request, Collective kind, Elements from,
                                                Elements to, std::int64_t total,
                                                std::size_t round_bytes) {
  const Link& link = *request.link;  // lives as long as the request
  const int size = link.size();
  const bool is_even = total % size == 0;
  const auto bytes = total * static_cast<std::int64_t>(size_of(from.dtype));
  const std::int64_t passed = bytes * (size - 1) / size;  // the parts that a rank sends
  const auto one_call = [&](const char* op, std::int64_t sent, std::function<void(Channel&)> f) {
    if (total == 0) f = nullptr;
    return std::make_unique<OneCall>(op, std::move(request), std::move(f), sent);
  };
  switch (kind) {
    case Collective::all_reduce:
      if (from.dtype != Dtype::f32) break;
      return one_call("all_reduce", 2 * passed,
                      [=](Channel& channel) { channel.all_reduce(to.data, total, to.dtype); });
    case Collective::reduce_scatter:
      if (from.dtype != Dtype::f32 || !is_even) break;
      return one_call("reduce_scatter", passed, [=](Channel& channel) {
        channel.reduce_scatter(from.data, to.data, total / size, to.dtype);
      });
    case Collective::all_gather:
      return one_call("all_gather", passed, [=, &link](Channel& channel) {
        if (is_even) {
          channel.all_gather(from.data, to.data, total / size, to.dtype);
        } else {
          gather_parts(channel, link, from, to);
        }
      });
    case Collective::all_to_all:
      return one_call("all_to_all", passed,
                      [=, &link](Channel& channel) { turn_parts(channel, link, from, to); });
  }
  const bool gathers = kind == Collective::all_reduce;
  return std::make_unique<ExchangedSum>(gathers ? "all_reduce" : "reduce_scatter",
                                        std::move(request), from, to, total, round_bytes, gathers);
}

std::unique_ptr<Operation> make_nccl_broadcast(NcclRequest request, Elements values, int root) {
  const std::int64_t bytes = values.count * static_cast<std::int64_t>(size_of(values.dtype));
  std::function<void(Channel&)> f;
  if (values.count > 0) {
    f = [=](Channel& channel) { channel.broadcast(values.data, values.count, values.dtype, root); };
  }
  const bool sends = request.link->rank() == root;
  return std::make_unique<OneCall>("broadcast", std::move(request), std::move(f),
                                   sends ? bytes : 0);
}

std::unique_ptr<Operation> make_nccl_transfer(NcclRequest request, Direction direction,
                                              Elements values) {
  const bool sends = direction == Direction::send;
  std::function<void(Channel&)> f;
  if (values.count > 0) {
    // The first of the channel's two members sends.
    f = [=](Channel& channel) {
      if (sends) {
        channel.send(values.data, values.count, values.dtype, 1);
      } else {
        channel.receive(values.data, values.count, values.dtype, 0);
      }
    };
  }
  const std::int64_t bytes = values.count * static_cast<std::int64_t>(size_of(values.dtype));
  return std::make_unique<OneCall>(sends ? "send" : "recv", std::move(request), std::move(f),
                                   sends ? bytes : 0);
}

}  // namespace katt::ranks::impl

#endif
