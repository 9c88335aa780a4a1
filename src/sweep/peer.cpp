#include "sweep/peer.hpp"

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include <nlohmann/json.hpp>

#include "core/devices.hpp"
#include "core/error.hpp"
#include "core/text.hpp"
#include "io/printable.hpp"
#include "machine/machine.hpp"
#include "measure/statistics.hpp"
#include "plan/requests.hpp"
#include "process/candidate_file.hpp"
#include "process/peer_process.hpp"
#include "process/sandbox.hpp"
#include "tile/convert.hpp"

namespace katt::bench {
namespace {

using Json = nlohmann::json;

/// The reply to a request. Throws std::runtime_error when it is not a reply, or says "failed". A
/// candidate's reply has the number of the request.
Json reply_to(PeerProcess& process, Json request) {
  if (process.is_sealed()) request["id"] = process.next_number();
  const std::string line = process.ask(request.dump());
  Json reply = Json::parse(line, nullptr, false);
  if (!reply.is_object()) {
    throw std::runtime_error(process.noun() + " answered \"" + truncated(line, 60) +
                             "\", expected a JSON object");
  }
  if (process.is_sealed() && reply.value("id", Json()) != request["id"]) {
    throw std::runtime_error(process.noun() + " answered another request than it was asked");
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
  PeerCandidate(std::shared_ptr<PeerProcess> process, ForeignCase foreign, Placed inputs,
                Placed outputs, Json open, const Json& reply)
      : process_(std::move(process)),
        foreign_(std::move(foreign)),
        inputs_(std::move(inputs)),
        outputs_(std::move(outputs)),
        open_(std::move(open)),
        engine_(text_of(reply, "engine")),
        knows_inputs_(reply.contains("inputs")),
        in_place_(process_->is_sealed()),
        bytes_before_(process_->peak_bytes()) {}

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
      throw std::runtime_error(process_->noun() + " answered " + truncated(reply.dump(), 60) +
                               ", expected the seconds of a run");
    }
    return seconds->get<double>();
  }

  [[nodiscard]] double request_s(double /*seen_s*/) const override {
    return process_->last_ask_s();
  }

  double transport_s() override {
    while (transport_s_.size() < 15) {
      (void)reply_to(*process_, {{"do", "forget"}});
      transport_s_.push_back(process_->last_ask_s());
    }
    constexpr double most_s = 5e-5;  // a candidate gains nothing by slow answers
    const double median_s = median_interval(transport_s_).median;
    return in_place_ ? std::min(median_s, most_s) : median_s;
  }

  [[nodiscard]] bool runs_once() const override { return in_place_; }

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
      const auto i = static_cast<std::size_t>(tensor - foreign_.inputs.begin());
      write(*tensor, inputs_.tensor(i), change.first, change.count);
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
    if (!in_place_) (void)reply_to(*process_, {{"do", "forget"}});
    for (std::size_t i = 0; i < foreign_.outputs.size(); ++i) {
      const ForeignTensor& tensor = foreign_.outputs[i];
      std::memset(outputs_.tensor(i), 0xFF, count_of(tensor) * size_of(tensor.dtype));
    }
  }

  [[nodiscard]] std::optional<memory::Bytes> peak() const override { return peak_; }

  Errors verify() override {
    if (in_place_) look_at_memory();
    else if (const auto told = peak_of(reply_to(*process_, {{"do", "read"}}))) peak_ = told;
    std::vector<std::vector<float>> values;
    for (std::size_t i = 0; i < foreign_.outputs.size(); ++i) {
      values.push_back(read(foreign_.outputs[i], outputs_.tensor(i)));
    }
    return foreign_.verify(values);
  }

 private:
  /// The memory of a run, seen from outside.
  void look_at_memory() {
    if (peak_) return;
    const std::size_t now = process_->peak_bytes();
    const std::size_t tensors = process_->inputs().size() + process_->outputs().size();
    peak_ = {.host = std::max(tensors, now - std::min(now, bytes_before_)), .device = 0};
  }

  std::shared_ptr<PeerProcess> process_;
  ForeignCase foreign_;
  Placed inputs_, outputs_;
  Json open_;
  std::string engine_;
  bool knows_inputs_;
  bool in_place_;             ///< a candidate, which works on the shared memory and is stopped now
  std::size_t bytes_before_;  ///< its memory before the first run
  std::vector<InputChange> changes_{};  ///< that the peer does not know yet
  std::vector<double> transport_s_{};
  std::optional<memory::Bytes> peak_;  ///< after the peer has said it
};

CandidateOptions options_of(const Settings& settings) {
  return {.untrusted = settings.untrusted,
          .python_program = settings.candidate_program,
          .timeout_s = settings.peer_timeout_s};
}

/// The request that opens a case, without its tensors.
Json open_request(const Operator& op, const Point& point, const ForeignCase& foreign,
                  const Bound& bound) {
  Json axes = Json::object();
  for (const auto& [axis, value] : point.values) {
    std::visit([&, key = axis](const auto& held) { axes[key] = held; }, value);
  }
  return {{"do", "open"},
          {"op", op.name()},
          {"pass", point.pass},
          {"backend", name_of(point.backend)},
          {"device", devices::chosen()},
          {"threads", point.threads},
          {"processors", allowed_processors()},
          {"bound", bound.processors()},
          {"dtype", name_of(point.dtype)},
          {"axes", std::move(axes)},
          {"parameters", foreign.parameters}};
}

void write_all(const std::vector<ForeignTensor>& tensors, std::span<std::byte> memory,
               const std::vector<std::size_t>& offsets) {
  for (std::size_t i = 0; i < offsets.size(); ++i) {
    write(tensors[i], memory.data() + offsets[i], 0, count_of(tensors[i]));
  }
}

PeerEntry skipped(std::string reason) { return {Status::skipped(std::move(reason)), nullptr, 0}; }

}  // namespace

Peers::Peers(const Settings& settings, const StopFlag& stop)
    : program_(settings.peer_program.empty() ? usual_peer_program()
                                             : std::filesystem::path(settings.peer_program)),
      candidates_(settings.candidates),
      options_(options_of(settings)),
      stop_(stop) {}

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
  if (const auto file = candidates_.find(name); file != candidates_.end()) {
    return open_candidate(name, file->second, op, point, inputs, bound);
  }
  std::error_code error;
  if (!std::filesystem::exists(program_, error)) {
    return skipped("peer " + name + " is not installed: there is no " + program_.string() +
                   "; scripts/peers makes it");
  }
  auto foreign = inputs.foreign();
  if (!foreign) return skipped(op.name() + " cannot hand these inputs to a peer");

  std::shared_ptr<PeerProcess>& process = processes_[{name, slot}];
  if (!process || !process->alive()) {
    process = std::make_shared<PeerProcess>(launch_of_peer(name), stop_);
  }
  SharedOffsets layout;
  std::vector<std::size_t> in;
  std::vector<std::size_t> out;
  Json request = open_request(op, point, *foreign, bound);
  request["inputs"] = layout.place(foreign->inputs, in);
  request["outputs"] = layout.place(foreign->outputs, out);
  request["bytes"] = layout.bytes();
  const std::span<std::byte> shared = process->share(layout.bytes());
  write_all(foreign->inputs, shared, in);
  return entry_of(name, process, std::move(request), std::move(*foreign), {shared, std::move(in)},
                  {shared, std::move(out)});
}

PeerEntry Peers::open_candidate(const std::string& name, const CandidateFile& file,
                                const Operator& op, const Point& point, Case& inputs,
                                const Bound& bound) {
  auto foreign = inputs.foreign(true);
  if (!foreign) return skipped(op.name() + " cannot hand these inputs to a candidate");
  SharedOffsets input_layout, output_layout;
  std::vector<std::size_t> in;
  std::vector<std::size_t> out;
  Json request = open_request(op, point, *foreign, bound);
  request["inputs"] = input_layout.place(foreign->inputs, in);
  request["outputs"] = output_layout.place(foreign->outputs, out);
  request["bytes"] = input_layout.bytes();
  request["output_bytes"] = output_layout.bytes();
  const PeerLaunch launch = launch_of(file, options_, std::max(1, point.threads),
                                      input_layout.bytes() + output_layout.bytes());
  const auto process = std::make_shared<PeerProcess>(
      launch, PeerProcess::Sealed{input_layout.bytes(), output_layout.bytes()}, stop_);
  write_all(foreign->inputs, process->inputs(), in);
  about_[name] = file.about + (file.about.empty() ? "" : "; ") + "SHA-256 " + file.sha256 +
                 (options_.untrusted ? "; untrusted" : "");
  return entry_of(name, process, std::move(request), std::move(*foreign),
                  {process->inputs(), std::move(in)}, {process->outputs(), std::move(out)});
}

PeerEntry Peers::entry_of(const std::string& name, const std::shared_ptr<PeerProcess>& process,
                          nlohmann::json request, ForeignCase foreign, Placed inputs,
                          Placed outputs) {
  const Json reply = reply_to(*process, request);
  if (std::string reason = text_of(reply, "skipped"); !reason.empty()) return skipped(reason);
  if (std::string about = text_of(reply, "about"); !about.empty() && !process->is_sealed()) {
    about_[name] = about;
  }
  std::size_t output_bytes = 0;
  for (const ForeignTensor& tensor : foreign.outputs) {
    output_bytes += count_of(tensor) * size_of(tensor.dtype);
  }
  return {Status::ok(),
          std::make_unique<PeerCandidate>(process, std::move(foreign), std::move(inputs),
                                          std::move(outputs), std::move(request), reply),
          output_bytes};
}

PeerLaunch Peers::launch_of_peer(const std::string& name) const {
  PeerLaunch launch{.program = program_, .arguments = {name}, .timeout_s = options_.timeout_s};
  if (!options_.untrusted) return launch;
  return caged(std::move(launch), available_memory(Backend::openmp));
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

void check_candidates(SweepRequest& request) {
  static const std::vector<std::string> peers = split(KATT_PEERS, ',');
  Settings& settings = request.settings;
  if (settings.untrusted) {
    if (const std::string missing = missing_for_sandbox(); !missing.empty()) {
      throw InputError("--untrusted: this system lacks " + missing);
    }
    for (const SweepEntry& entry : request.entries) {
      for (const AxisValue& backend : asked_values(entry, "backend")) {
        if (backend != AxisValue(std::string(name_of(Backend::cuda)))) continue;
        throw InputError(
            "--untrusted: what uses a GPU writes to its driver, expected another backend than "
            "cuda");
      }
    }
  }
  const StopFlag stop{false};
  for (const SweepEntry& entry : request.entries) {
    for (const AxisText& axis : entry.axes) {
      if (axis.key != "candidate") continue;
      for (const NamedCandidate& one : read_candidates(axis)) {
        if (std::ranges::find(peers, one.name) != peers.end()) {
          throw InputError(axis.where + " " + one.path + ": " + one.name +
                           " is the name of a peer, expected another name, NAME=PATH");
        }
        const auto known = settings.candidates.find(one.name);
        if (known == settings.candidates.end()) {
          settings.candidates.emplace(
              one.name, inspect_candidate(axis.where, one.path, options_of(settings), stop));
        } else if (known->second.path != std::filesystem::absolute(one.path)) {
          throw InputError(axis.where + " " + one.path + ": " + one.name + " is " +
                           known->second.path.string() + " elsewhere, expected another name");
        }
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
