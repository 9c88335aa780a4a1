#include "sweep/peers/peer_candidate.hpp"

#include <sched.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <stdexcept>
#include <string>
#include <utility>

#include "core/text.hpp"
#include "measure/statistics.hpp"
#include "sweep/peers/shared_tensors.hpp"

namespace katt::bench {

nlohmann::json reply_to(PeerProcess& process, nlohmann::json request) {
  if (process.is_sealed()) request["id"] = process.next_number();
  const std::string line = process.ask(request.dump());
  nlohmann::json reply = nlohmann::json::parse(line, nullptr, false);
  if (!reply.is_object()) {
    throw std::runtime_error(process.noun() + " answered \"" + truncated(line, 60) +
                             "\", expected a JSON object");
  }
  if (process.is_sealed() && reply.value("id", nlohmann::json()) != request["id"]) {
    throw std::runtime_error(process.noun() + " answered another request than it was asked");
  }
  if (const auto reason = reply.find("failed"); reason != reply.end()) {
    throw std::runtime_error(reason->is_string() ? reason->get<std::string>() : reason->dump());
  }
  return reply;
}

std::string text_of(const nlohmann::json& reply, const char* key) {
  const auto found = reply.find(key);
  return found != reply.end() && found->is_string() ? found->get<std::string>() : std::string();
}

void measure_transport(OpenCase& open) {
  for (const double work_s : {0.0, 1e-4, 1e-3}) {
    std::vector<double> seconds;
    for (int i = 0; i < 11; ++i) {
      const nlohmann::json reply =
          reply_to(*open.process,
                   {{"do", "spin"}, {"seconds", work_s}, {"bound", open.request.at("bound")}});
      seconds.push_back(open.process->last_ask_s() - reply.at("seconds").get<double>());
      open.sleepers = reply.at("sleepers").get<std::vector<pid_t>>();
    }
    open.transport.push_back({work_s, std::max(0.0, median_interval(seconds).median)});
  }
}

namespace {

/// The peer's memory in a reply, "host_bytes" and "device_bytes"; nothing when the reply has
/// neither. Throws std::runtime_error when one of them is missing or is not a count.
std::optional<memory::Bytes> peak_of(const nlohmann::json& reply) {
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

/// Base of both kinds of candidates in another process.
class ForeignCandidate : public Candidate {
 public:
  explicit ForeignCandidate(OpenCase open) : open_(std::move(open)) {}

  ~ForeignCandidate() override {
    if (!child().alive()) return;
    try {
      (void)child().ask(nlohmann::json{{"do", "close"}}.dump());
      if (!child().is_sealed()) (void)child().share(0);  // the next case needs the memory
    } catch (const std::exception&) {  // the process is dead now, and the next case starts another
    }
  }

  void run() final { (void)timed(1); }
  void fence() final {}  // a run is over when the reply is here

  std::optional<double> timed(int runs) final {
    const nlohmann::json reply = reply_to(child(), {{"do", "run"}, {"times", runs}});
    const auto seconds = reply.find("seconds");
    if (seconds == reply.end() || !seconds->is_number() || !(seconds->get<double>() > 0)) {
      throw std::runtime_error(child().noun() + " answered " + truncated(reply.dump(), 60) +
                               ", expected the seconds of a run");
    }
    return seconds->get<double>();
  }

  [[nodiscard]] double request_s(double /*seen_s*/) const final {
    return open_.process->last_ask_s();
  }

  /// The transport measured beside the longest work that fits into the last request.
  double transport_s() final {
    if (open_.transport.empty()) open_.transport.push_back({0, forget_s()});
    const double last_s = open_.process->last_ask_s();
    double found_s = open_.transport.front().seconds;
    for (const auto& [work_s, seconds] : open_.transport) {
      if (work_s + seconds <= last_s) found_s = seconds;
    }
    return found_s;
  }

  void inputs_changed(std::span<const InputChange> changes, bool all) final {
    if (all) changes_.clear();
    changes_.insert(changes_.end(), changes.begin(), changes.end());
  }

  [[nodiscard]] int process() const final { return open_.process->id(); }
  [[nodiscard]] std::optional<memory::Bytes> peak() const final { return peak_; }

 protected:
  PeerProcess& child() { return *open_.process; }

  /// Seconds of a request without work.
  double forget_s() {
    std::vector<double> seconds;
    for (int i = 0; i < 15; ++i) {
      (void)reply_to(child(), {{"do", "forget"}});
      seconds.push_back(child().last_ask_s());
    }
    return median_interval(seconds).median;
  }

  /// Writes the changed elements to the shared memory, and returns them for a request.
  nlohmann::json write_changes() {
    nlohmann::json changed = nlohmann::json::array();
    for (const InputChange& change : changes_) {
      const auto& inputs = open_.foreign.inputs;
      const auto tensor = std::ranges::find(inputs, change.name, &ForeignTensor::name);
      if (tensor == inputs.end()) continue;
      const std::size_t offset = open_.inputs[static_cast<std::size_t>(tensor - inputs.begin())];
      write(*tensor, open_.input_memory.data() + offset, change.first, change.count);
      changed.push_back({{"name", change.name}, {"first", change.first}, {"count", change.count}});
    }
    changes_.clear();
    return changed;
  }

  void poison_memory() {
    for (std::size_t i = 0; i < open_.outputs.size(); ++i) {
      const ForeignTensor& tensor = open_.foreign.outputs[i];
      std::memset(open_.output_memory.data() + open_.outputs[i], 0xFF,
                  count_of(tensor) * size_of(tensor.dtype));
    }
  }

  Errors verify_memory() {
    std::vector<std::vector<float>> values;
    for (std::size_t i = 0; i < open_.outputs.size(); ++i) {
      values.push_back(
          read(open_.foreign.outputs[i], open_.output_memory.data() + open_.outputs[i]));
    }
    return open_.foreign.verify(values);
  }

  OpenCase open_;
  std::vector<InputChange> changes_{};  ///< that the other program does not know yet
  std::optional<memory::Bytes> peak_;   ///< once it is known
};

class PeerCandidate final : public ForeignCandidate {
 public:
  PeerCandidate(OpenCase open, const nlohmann::json& reply)
      : ForeignCandidate(std::move(open)),
        engine_(text_of(reply, "engine")),
        knows_inputs_(reply.contains("inputs")) {}

  void take_inputs() override {
    if (changes_.empty()) return;
    nlohmann::json changed = write_changes();
    if (knows_inputs_) {
      (void)reply_to(child(), {{"do", "inputs"}, {"changed", std::move(changed)}});
    } else {
      (void)reply_to(child(), {{"do", "close"}});
      (void)reply_to(child(), open_.request);
    }
  }

  void poison() override {
    (void)reply_to(child(), {{"do", "forget"}});
    poison_memory();
  }

  Errors verify() override {
    if (const auto told = peak_of(reply_to(child(), {{"do", "read"}}))) peak_ = told;
    return verify_memory();
  }

  [[nodiscard]] std::string engine() const override { return engine_; }

 private:
  std::string engine_;
  bool knows_inputs_;
};

class SealedCandidate final : public ForeignCandidate {
 public:
  explicit SealedCandidate(OpenCase open)
      : ForeignCandidate(std::move(open)),
        bytes_before_(open_.bytes_before ? *open_.bytes_before : child().resident_bytes()) {}

  void take_inputs() override { (void)write_changes(); }
  void poison() override { poison_memory(); }

  Errors verify() override {
    check_sleepers();
    const std::size_t now = child().peak_bytes();
    const std::size_t tensors = open_.input_memory.size() + open_.output_memory.size();
    peak_ = {.host = std::max(tensors, now - std::min(now, bytes_before_)), .device = 0};
    return verify_memory();
  }

  /// Runs of one request would have the same inputs: the kernel could know that, and compute once.
  [[nodiscard]] bool runs_once() const override { return true; }

 private:
  /// A kernel that moves or ends a sleeper would be given a transport that its requests do not take.
  void check_sleepers() {
    const auto bound = open_.request.at("bound").get<std::vector<int>>();
    const auto threads = "/proc/" + std::to_string(child().id()) + "/task/";
    for (std::size_t i = 0; i < open_.sleepers.size(); ++i) {
      cpu_set_t allowed;
      CPU_ZERO(&allowed);
      if (!std::filesystem::exists(threads + std::to_string(open_.sleepers[i])) ||
          sched_getaffinity(open_.sleepers[i], sizeof allowed, &allowed) != 0 ||
          CPU_COUNT(&allowed) != 1 || !CPU_ISSET(bound[i + 1], &allowed)) {
        throw std::runtime_error(
            "the candidate moved or ended a thread that its transport was measured with");
      }
    }
  }

  std::size_t bytes_before_;  ///< its memory before the first run
};

}  // namespace

std::unique_ptr<Candidate> peer_candidate(OpenCase open, const nlohmann::json& reply) {
  return std::make_unique<PeerCandidate>(std::move(open), reply);
}

std::unique_ptr<Candidate> sealed_candidate(OpenCase open) {
  return std::make_unique<SealedCandidate>(std::move(open));
}

}  // namespace katt::bench
