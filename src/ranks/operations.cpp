#include "ranks/operations.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>
#include <vector>

#include <Kokkos_Core.hpp>

#include "tile/convert.hpp"

namespace katt::ranks::impl {

namespace {

/// Rounds without memory of their own end only to keep a message below 2^31 bytes.
constexpr std::int64_t longest_message = std::int64_t{1} << 30;
constexpr std::size_t whole_rounds = static_cast<std::size_t>(-1);

constexpr const char* name_of(Collective kind) {
  switch (kind) {
    case Collective::all_reduce: return "all_reduce";
    case Collective::reduce_scatter: return "reduce_scatter";
    case Collective::all_gather: return "all_gather";
    case Collective::all_to_all: break;
  }
  return "all_to_all";
}

/// out ← Σ parts, in their order and in f32. `out` may be one of them.
template <class T>
void sum_parts(const Parts& parts, std::int64_t count, std::byte* out) {
  constexpr std::int64_t block = 2048;
  std::array<float, block> sum, term;
  const auto of = [](const std::byte* data, std::int64_t begin, std::int64_t n) {
    return std::span(reinterpret_cast<const T*>(data) + begin, static_cast<std::size_t>(n));
  };
  for (std::int64_t begin = 0; begin < count; begin += block) {
    const std::int64_t n = std::min(block, count - begin);
    const auto length = static_cast<std::size_t>(n);
    convert(of(parts.of(0), begin, n), std::span(sum).first(length));
    for (int r = 1; r < parts.ranks; ++r) {
      convert(of(parts.of(r), begin, n), std::span(term).first(length));
      for (std::int64_t i = 0; i < n; ++i) sum[i] += term[i];
    }
    convert(std::span<const float>(sum).first(length),
            std::span(reinterpret_cast<T*>(out) + begin, length));
  }
}

class CollectiveRounds final : public Operation {
 public:
  CollectiveRounds(std::shared_ptr<Link> link, Collective kind, int tag, Elements from, Elements to,
                   std::int64_t total, std::size_t round_bytes, Reach reach)
      : link_(std::move(link)),
        messages_(*link_, name_of(kind), tag),
        device_(std::move(reach.staging)),
        queue_(std::move(reach.queue)),
        kind_(kind),
        from_(static_cast<std::byte*>(from.data)),
        to_(static_cast<std::byte*>(to.data)),
        dtype_(from.dtype),
        element_(static_cast<std::int64_t>(size_of(from.dtype))),
        total_(total),
        part_(part_of(total, link_->size(), 0).count) {
    round_ = round_elements(total, link_->size(), element_,
                            sums() || device_ ? round_bytes : whole_rounds);
    const auto slots = static_cast<std::size_t>(round_ * element_ * link_->size());
    if (device_) {
      staged_from_ = device_->buffer(slots);
      staged_to_ = kind_ == Collective::all_to_all ? device_->buffer(slots) : staged_from_;
    }
    if (!sums()) return;
    if (queue_) {
      received_ = queue_->buffer(slots);
      return;
    }
    memory_ = decltype(memory_)(
        Kokkos::view_alloc(Kokkos::WithoutInitializing, "katt::ranks::received"), slots);
    received_ = memory_.data();
  }

  bool advance(bool to_the_end) override {
    while (true) {
      if (!messages_.finish(to_the_end)) return false;
      switch (phase_) {
        case Phase::begin:
          if (done_ >= part_) {
            if (device_) device_->wait();
            if (queue_) queue_->wait();
            return true;
          }
          begin_round();
          break;
        case Phase::exchanged:
          if (sums()) sum();
          if (gathers()) {
            spread();
          } else {
            end_round();
          }
          break;
        case Phase::gathered: end_round(); break;
      }
    }
  }

 private:
  enum class Phase : std::uint8_t { begin, exchanged, gathered };

  [[nodiscard]] bool sums() const {
    return kind_ == Collective::all_reduce || kind_ == Collective::reduce_scatter;
  }
  [[nodiscard]] bool gathers() const {
    return kind_ == Collective::all_reduce || kind_ == Collective::all_gather;
  }

  /// Bytes of rank r's part in this round, and their offset among all bytes.
  [[nodiscard]] std::size_t bytes(int r) const {
    const std::int64_t left = part_of(total_, link_->size(), r).count - done_;
    return static_cast<std::size_t>(std::clamp<std::int64_t>(left, 0, round_) * element_);
  }
  [[nodiscard]] std::int64_t offset(int r) const { return (r * part_ + done_) * element_; }
  [[nodiscard]] std::int64_t slot(int r) const { return r * round_ * element_; }

  /// Rank r's part of the tensors that are read and written, in host memory.
  [[nodiscard]] std::byte* source(int r) const {
    return device_ ? staged_from_ + slot(r) : from_ + offset(r);
  }
  [[nodiscard]] std::byte* target(int r) const {
    if (device_) return staged_to_ + slot(r);
    return kind_ == Collective::reduce_scatter ? to_ + done_ * element_ : to_ + offset(r);
  }

  template <class F>
  void for_others(F&& f) const {
    // Every rank begins with its neighbour, so that not all send to the same rank.
    for (int step = 1; step < link_->size(); ++step) f((link_->rank() + step) % link_->size());
  }

  void begin_round() {
    const int own = link_->rank();
    if (kind_ == Collective::all_gather) {
      const std::byte* const part = from_ + done_ * element_;
      if (device_) {
        device_->load(target(own), part, bytes(own));
        device_->wait();
      } else if (part != target(own)) {
        copy(target(own), part, bytes(own));
      }
      spread();
      return;
    }
    if (device_) {
      for (int r = 0; r < link_->size(); ++r) device_->load(source(r), from_ + offset(r), bytes(r));
      device_->wait();
    }
    for_others([&](int r) {
      std::byte* const to = sums() ? received_ + slot(r) : target(r);
      if (bytes(own) > 0) messages_.receive(to, bytes(own), r);
    });
    for_others([&](int r) {
      if (bytes(r) > 0) messages_.send(source(r), bytes(r), r);
    });
    if (!sums()) copy(target(own), source(own), bytes(own));
    phase_ = Phase::exchanged;
  }

  void copy(std::byte* to, const std::byte* from, std::size_t count) {
    if (queue_) {
      queue_->copy(to, from, count);
      queue_->wait();  // MPI may read this memory next
    } else {
      std::memmove(to, from, count);
    }
  }

  void sum() {
    const int own = link_->rank();
    const Parts parts{.received = received_,
                      .slot = slot(1),
                      .own = source(own),
                      .rank = own,
                      .ranks = link_->size()};
    const std::int64_t count = static_cast<std::int64_t>(bytes(own)) / element_;
    if (queue_) {
      queue_->sum(parts, count, dtype_, target(own));
      queue_->wait();
      return;
    }
    visit_dtype(dtype_, [&]<class T>() { sum_parts<T>(parts, count, target(own)); });
  }

  /// Sends the rank's own part to every rank.
  void spread() {
    const int own = link_->rank();
    for_others([&](int r) {
      if (bytes(r) > 0) messages_.receive(target(r), bytes(r), r);
    });
    for_others([&](int r) {
      if (bytes(own) > 0) messages_.send(target(own), bytes(own), r);
    });
    phase_ = Phase::gathered;
  }

  void end_round() {
    if (device_ && kind_ == Collective::reduce_scatter) {
      const int own = link_->rank();
      device_->store(to_ + done_ * element_, target(own), bytes(own));
      device_->wait();
    } else if (device_) {
      for (int r = 0; r < link_->size(); ++r) device_->store(to_ + offset(r), target(r), bytes(r));
      device_->wait();
    }
    done_ += round_;
    phase_ = Phase::begin;
  }

  std::shared_ptr<Link> link_;
  Messages messages_;
  std::unique_ptr<Staging> device_;
  std::unique_ptr<Queue> queue_;
  Collective kind_;
  std::byte* from_;
  std::byte* to_;
  Dtype dtype_;
  std::int64_t element_;  ///< bytes
  std::int64_t total_;
  std::int64_t part_;   ///< elements of the first part, the longest
  std::int64_t round_;  ///< elements of each part in a round
  std::int64_t done_ = 0;
  Phase phase_ = Phase::begin;
  std::byte* staged_from_ = nullptr;
  std::byte* staged_to_ = nullptr;
  std::byte* received_ = nullptr;
  Kokkos::View<std::byte*, Kokkos::HostSpace> memory_;
};

/// Pieces of a tensor that travel in one direction; a rank receives each piece and sends it on
/// before the next.
class Stream final : public Operation {
 public:
  /// From the rank `source` (−1 when the data is here) to the targets.
  Stream(std::shared_ptr<Link> link, const char* op, int tag, Elements values,
         std::size_t round_bytes, Reach reach, int source, std::vector<int> targets)
      : link_(std::move(link)),
        messages_(*link_, op, tag),
        device_(std::move(reach.staging)),
        data_(static_cast<std::byte*>(values.data)),
        bytes_(static_cast<std::size_t>(values.count) * size_of(values.dtype)),
        source_(source),
        targets_(std::move(targets)) {
    const std::size_t most = device_ ? round_bytes : static_cast<std::size_t>(longest_message);
    round_ = std::clamp<std::size_t>(bytes_, 1, most);
    if (device_) staged_ = device_->buffer(round_);
  }

  bool advance(bool to_the_end) override {
    while (true) {
      if (!messages_.finish(to_the_end)) return false;
      if (is_received_) {
        is_received_ = false;
        if (device_ && source_ >= 0) {
          device_->store(data_ + done_, here(), length());
          device_->wait();
        }
        for (const int target : targets_) messages_.send(here(), length(), target);
        done_ += length();
        continue;
      }
      if (done_ >= bytes_) return true;
      is_received_ = true;
      if (source_ >= 0) {
        messages_.receive(here(), length(), source_);
      } else if (device_) {
        device_->load(here(), data_ + done_, length());
        device_->wait();
      }
    }
  }

 private:
  [[nodiscard]] std::byte* here() const { return device_ ? staged_ : data_ + done_; }
  [[nodiscard]] std::size_t length() const { return std::min(round_, bytes_ - done_); }

  std::shared_ptr<Link> link_;
  Messages messages_;
  std::unique_ptr<Staging> device_;
  std::byte* data_;
  std::size_t bytes_;
  std::size_t round_ = 1;
  std::size_t done_ = 0;
  int source_;
  std::vector<int> targets_;
  std::byte* staged_ = nullptr;
  bool is_received_ = false;  ///< the block has been requested
};

}  // namespace

std::int64_t round_elements(std::int64_t total, int ranks, std::int64_t element,
                            std::size_t round_bytes) {
  const std::int64_t most = round_bytes == whole_rounds
                                ? longest_message
                                : static_cast<std::int64_t>(round_bytes) / ranks;
  const std::int64_t part = part_of(total, ranks, 0).count;
  return std::min(std::max<std::int64_t>(1, part), std::max<std::int64_t>(16, most / element));
}

std::unique_ptr<Operation> make_collective(std::shared_ptr<Link> link, Collective kind, int tag,
                                           Elements from, Elements to, std::int64_t total,
                                           std::size_t round_bytes, Reach reach) {
  return std::make_unique<CollectiveRounds>(std::move(link), kind, tag, from, to, total,
                                            round_bytes, std::move(reach));
}

std::unique_ptr<Operation> make_broadcast(std::shared_ptr<Link> link, int tag, Elements values,
                                          int root, std::size_t round_bytes, Reach reach) {
  // Ranks count from the root; a rank's parent has the same number without its lowest bit.
  const int size = link->size();
  const int place = (link->rank() - root + size) % size;
  const auto rank_at = [&](int at) { return (at + root) % size; };
  std::vector<int> children;
  for (int bit = 1; bit < size && (place & bit) == 0; bit *= 2) {
    if (place + bit < size) children.push_back(rank_at(place + bit));
  }
  std::ranges::reverse(children);  // the largest part of the tree first
  const int parent = place == 0 ? -1 : rank_at(place & (place - 1));
  return std::make_unique<Stream>(std::move(link), "broadcast", tag, values, round_bytes,
                                  std::move(reach), parent, std::move(children));
}

std::unique_ptr<Operation> make_transfer(std::shared_ptr<Link> link, Direction direction, int tag,
                                         Elements values, int other, std::size_t round_bytes,
                                         Reach reach) {
  const bool sends = direction == Direction::send;
  return std::make_unique<Stream>(std::move(link), sends ? "send" : "recv", tag, values,
                                  round_bytes, std::move(reach), sends ? -1 : other,
                                  sends ? std::vector{other} : std::vector<int>{});
}

}  // namespace katt::ranks::impl
