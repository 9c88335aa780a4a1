#include "sweep/peer.hpp"

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include <nlohmann/json.hpp>

#include "core/devices.hpp"
#include "core/error.hpp"
#include "core/stopwatch.hpp"
#include "core/text.hpp"
#include "io/printable.hpp"
#include "measure/statistics.hpp"
#include "process/peer_process.hpp"
#include "tile/convert.hpp"

namespace katt::bench {
namespace {

using Json = nlohmann::json;

/// The reply to a request. Throws std::runtime_error when it is not a reply, or says "failed".
Json reply_to(PeerProcess& process, const Json& request) {
  const std::string line = process.ask(request.dump());
  Json reply = Json::parse(line, nullptr, false);
  if (!reply.is_object()) {
    throw std::runtime_error("the peer answered \"" + truncated(line, 60) +
                             "\", expected a JSON object");
  }
  if (const auto reason = reply.find("failed"); reason != reply.end()) {
    throw std::runtime_error(reason->is_string() ? reason->get<std::string>() : reason->dump());
  }
  return reply;
}

std::string text_of(const Json& reply, const char* key) {
  const auto found = reply.find(key);
  return found != reply.end() && found->is_string() ? found->get<std::string>() : std::string();
}

/// The peer's memory in a reply, "host_bytes" and "device_bytes"; nothing when the reply has
/// neither. Throws std::runtime_error when one of them is missing or is not a count.
std::optional<memory::Bytes> peak_of(const Json& reply) {
  const auto host = reply.find("host_bytes");
  const auto device = reply.find("device_bytes");
  if (host == reply.end() && device == reply.end()) return std::nullopt;
  for (const auto& count : {host, device}) {
    if (count == reply.end() || !count->is_number_unsigned()) {
      throw std::runtime_error("the peer answered " + truncated(reply.dump(), 60) +
                               ", expected host_bytes and device_bytes, each a whole number");
    }
  }
  return memory::Bytes{host->get<std::size_t>(), device->get<std::size_t>()};
}

std::size_t count_of(const ForeignTensor& tensor) {
  std::size_t count = 1;
  for (const std::int64_t extent : tensor.shape) count *= static_cast<std::size_t>(extent);
  return count;
}

/// Calls f with the element type of a tensor.
template <class F>
void visit_element(const ForeignTensor& tensor, const F& f) {
  if (!tensor.integers.empty()) f.template operator()<std::int64_t>();
  else if (tensor.dtype == Dtype::f32) f.template operator()<float>();
  else if (tensor.dtype == Dtype::f16) f.template operator()<f16>();
  else f.template operator()<bf16>();
}

/// Offsets of tensors in the shared memory, each on a boundary of 64 bytes.
class SharedOffsets {
 public:
  Json place(const std::vector<ForeignTensor>& tensors, std::vector<std::size_t>& offsets) {
    Json list = Json::array();
    for (const ForeignTensor& tensor : tensors) {
      offsets.push_back(bytes_);
      std::size_t size = 0;
      visit_element(tensor, [&]<class T>() { size = sizeof(T); });
      list.push_back({{"name", tensor.name},
                      {"dtype", tensor.integers.empty() ? name_of(tensor.dtype) : "i64"},
                      {"shape", tensor.shape},
                      {"offset", bytes_}});
      bytes_ = (bytes_ + count_of(tensor) * size + 63) / 64 * 64;
    }
    return list;
  }
  [[nodiscard]] std::size_t bytes() const { return bytes_; }

 private:
  std::size_t bytes_ = 0;
};

/// Puts `count` elements of a tensor, from `first` on, where the tensor begins at `target`.
void write(const ForeignTensor& tensor, std::byte* target, std::size_t first, std::size_t count) {
  visit_element(tensor, [&]<class T>() {
    T* const place = reinterpret_cast<T*>(target) + first;
    if constexpr (std::is_same_v<T, std::int64_t>) {
      std::ranges::copy(tensor.integers.subspan(first, count), place);
    } else {
      convert(tensor.values.subspan(first, count), std::span(place, count));
    }
  });
}

std::vector<float> read(const ForeignTensor& tensor, const std::byte* source) {
  std::vector<float> values(count_of(tensor));
  visit_element(tensor, [&]<class T>() {
    if constexpr (!std::is_same_v<T, std::int64_t>) {
      convert(std::span(reinterpret_cast<const T*>(source), values.size()), std::span(values));
    }
  });
  return values;
}

/// An open case of a peer.
class PeerCandidate final : public Candidate {
 public:
  /// `open`: the request that has opened the case, and `reply` the peer's answer.
  PeerCandidate(std::shared_ptr<PeerProcess> process, ForeignCase foreign,
                std::span<std::byte> shared, std::vector<std::size_t> inputs,
                std::vector<std::size_t> outputs, Json open, const Json& reply)
      : process_(std::move(process)),
        foreign_(std::move(foreign)),
        shared_(shared),
        inputs_(std::move(inputs)),
        outputs_(std::move(outputs)),
        open_(std::move(open)),
        engine_(text_of(reply, "engine")),
        knows_inputs_(reply.contains("inputs")) {}

  ~PeerCandidate() override {
    if (!process_->alive()) return;
    try {
      (void)process_->ask(Json{{"do", "close"}}.dump());
    } catch (const std::exception&) {  // the process is dead now, and the next case starts another
    }
  }

  void run() override { (void)timed(1); }
  void fence() override {}  // a run is over when the reply is here

  std::optional<double> timed(int runs) override {
    const Json reply = reply_to(*process_, {{"do", "run"}, {"times", runs}});
    const auto seconds = reply.find("seconds");
    if (seconds == reply.end() || !seconds->is_number() || !(seconds->get<double>() > 0)) {
      throw std::runtime_error("the peer answered " + truncated(reply.dump(), 60) +
                               ", expected the seconds of a run");
    }
    return seconds->get<double>();
  }

  double transport_s() override {
    if (transport_s_.empty()) {
      for (int i = 0; i < 15; ++i) {
        const Stopwatch watch;
        (void)reply_to(*process_, {{"do", "forget"}});
        transport_s_.push_back(watch.seconds());
      }
    }
    return median_interval(transport_s_).median;
  }

  void inputs_changed(std::span<const InputChange> changes, bool all) override {
    if (all) changes_.clear();
    changes_.insert(changes_.end(), changes.begin(), changes.end());
  }

  void take_inputs() override {
    if (changes_.empty()) return;
    Json changed = Json::array();
    for (const InputChange& change : changes_) {
      const auto tensor = std::ranges::find(foreign_.inputs, change.name, &ForeignTensor::name);
      if (tensor == foreign_.inputs.end()) continue;
      write(*tensor, shared_.data() + inputs_[tensor - foreign_.inputs.begin()], change.first,
            change.count);
      changed.push_back({{"name", change.name}, {"first", change.first}, {"count", change.count}});
    }
    changes_.clear();
    if (knows_inputs_) {
      (void)reply_to(*process_, {{"do", "inputs"}, {"changed", std::move(changed)}});
    } else {
      (void)reply_to(*process_, {{"do", "close"}});
      (void)reply_to(*process_, open_);
    }
  }

  [[nodiscard]] int process() const override { return process_->id(); }
  [[nodiscard]] std::string engine() const override { return engine_; }

  void poison() override {
    (void)reply_to(*process_, {{"do", "forget"}});
    for (std::size_t i = 0; i < outputs_.size(); ++i) {
      const ForeignTensor& tensor = foreign_.outputs[i];
      std::memset(shared_.data() + outputs_[i], 0xFF, count_of(tensor) * size_of(tensor.dtype));
    }
  }

  [[nodiscard]] std::optional<memory::Bytes> peak() const override { return peak_; }

  Errors verify() override {
    if (const auto told = peak_of(reply_to(*process_, {{"do", "read"}}))) peak_ = told;
    std::vector<std::vector<float>> values;
    for (std::size_t i = 0; i < outputs_.size(); ++i) {
      values.push_back(read(foreign_.outputs[i], shared_.data() + outputs_[i]));
    }
    return foreign_.verify(values);
  }

 private:
  std::shared_ptr<PeerProcess> process_;
  ForeignCase foreign_;
  std::span<std::byte> shared_;
  std::vector<std::size_t> inputs_, outputs_;  ///< offsets
  Json open_;
  std::string engine_;
  bool knows_inputs_;
  std::vector<InputChange> changes_{};  ///< that the peer does not know yet
  std::vector<double> transport_s_{};
  std::optional<memory::Bytes> peak_;  ///< after the peer has said it
};

}  // namespace

Peers::Peers(std::filesystem::path program, double timeout_s, const StopFlag& stop)
    : program_(std::move(program)), timeout_s_(timeout_s), stop_(stop) {}

Peers::~Peers() = default;

PeerEntry Peers::enter(const std::string& name, const Operator& op, const Point& point,
                       Case& inputs, const Bound& bound, std::size_t slot) {
  try {
    return open(name, op, point, inputs, bound, slot);
  } catch (const std::bad_alloc&) {
    return {Status::failed("out of memory"), nullptr, 0};
  } catch (const std::exception& error) {
    const std::string text = error.what();
    return {Status::failed(text.substr(0, text.find('\n'))), nullptr, 0};
  }
}

PeerEntry Peers::open(const std::string& name, const Operator& op, const Point& point, Case& inputs,
                      const Bound& bound, std::size_t slot) {
  const auto skipped = [](std::string reason) {
    return PeerEntry{Status::skipped(std::move(reason)), nullptr, 0};
  };
  std::error_code error;
  if (!std::filesystem::exists(program_, error)) {
    return skipped("peer " + name + " is not installed: there is no " + program_.string() +
                   "; scripts/peers makes it");
  }
  auto foreign = inputs.foreign();
  if (!foreign) return skipped(op.name() + " cannot hand these inputs to a peer");

  std::shared_ptr<PeerProcess>& process = processes_[{name, slot}];
  if (!process || !process->alive()) {
    process = std::make_shared<PeerProcess>(program_, name, timeout_s_, stop_);
  }
  SharedOffsets layout;
  std::vector<std::size_t> in;
  std::vector<std::size_t> out;
  Json axes = Json::object();
  for (const auto& [axis, value] : point.values) {
    std::visit([&, key = axis](const auto& held) { axes[key] = held; }, value);
  }
  Json request{{"do", "open"},
               {"op", op.name()},
               {"pass", point.pass},
               {"backend", name_of(point.backend)},
               {"device", devices::chosen()},
               {"threads", point.threads},
               {"processors", allowed_processors()},
               {"bound", bound.processors()},
               {"dtype", name_of(point.dtype)},
               {"axes", std::move(axes)},
               {"parameters", foreign->parameters},
               {"inputs", layout.place(foreign->inputs, in)},
               {"outputs", layout.place(foreign->outputs, out)}};
  request["bytes"] = layout.bytes();
  const std::span<std::byte> shared = process->share(layout.bytes());
  for (std::size_t i = 0; i < in.size(); ++i) {
    write(foreign->inputs[i], shared.data() + in[i], 0, count_of(foreign->inputs[i]));
  }

  const Json reply = reply_to(*process, request);
  if (std::string reason = text_of(reply, "skipped"); !reason.empty()) return skipped(reason);
  if (std::string about = text_of(reply, "about"); !about.empty()) about_[name] = about;
  std::size_t output_bytes = 0;
  for (const ForeignTensor& tensor : foreign->outputs) {
    output_bytes += count_of(tensor) * size_of(tensor.dtype);
  }
  return {Status::ok(),
          std::make_unique<PeerCandidate>(process, std::move(*foreign), shared, std::move(in),
                                          std::move(out), std::move(request), reply),
          output_bytes};
}

std::string Peers::about() const { return Json(about_).dump(); }

void check_peers(std::span<const SweepEntry> entries) {
  static const std::vector<std::string> known = split(KATT_PEERS, ',');
  for (const SweepEntry& entry : entries) {
    for (const AxisText& axis : entry.axes) {
      if (axis.key != "peer") continue;
      for (const std::string& name : split(axis.text, ',')) {
        if (std::ranges::find(known, name) != known.end()) continue;
        const std::string near = suggestion(name, known);
        throw InputError(axis.where + " " + io::impl::printable(name) + ": unknown; " +
                         (near.empty() ? "" : near + " ") + "expected the name of a peer: " +
                         join(known, ", ") + ", or --peer-program, which runs others");
      }
    }
  }
}

std::filesystem::path usual_peer_program() {
  std::error_code error;
  const auto program = std::filesystem::read_symlink("/proc/self/exe", error);
  return program.parent_path().parent_path() / "peers" / "bin" / "katt-peers";
}

}  // namespace katt::bench
