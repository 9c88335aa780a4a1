#include "sweep/peer.hpp"

#include <algorithm>
#include <stdexcept>

#include <nlohmann/json.hpp>

#include "core/devices.hpp"
#include "core/error.hpp"
#include "core/text.hpp"
#include "io/json_input.hpp"
#include "io/printable.hpp"
#include "machine/machine.hpp"
#include "plan/requests.hpp"
#include "process/candidate_file.hpp"
#include "process/peer_process.hpp"
#include "process/sandbox.hpp"
#include "process/sha256.hpp"
#include "sweep/peers/peer_candidate.hpp"
#include "sweep/peers/shared_tensors.hpp"

namespace katt::bench {
namespace {

CandidateOptions options_of(const Settings& settings) {
  return {.untrusted = settings.untrusted,
          .python_program = settings.candidate_program,
          .timeout_s = settings.peer_timeout_s};
}

/// The request that opens a case, without its tensors.
nlohmann::json open_request(const Operator& op, const Point& point, const ForeignCase& foreign,
                            const Bound& bound) {
  nlohmann::json axes = nlohmann::json::object();
  for (const auto& [axis, value] : point.values) {
    axes[axis] = io::impl::json_of<nlohmann::json>(value);
  }
  nlohmann::json request = {{"do", "open"},
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
  if (foreign.rule_file) request["rule_file"] = foreign.rule_file->string();
  return request;
}

PeerEntry skipped(std::string reason) { return {Status::skipped(std::move(reason)), nullptr, 0}; }

}  // namespace

const std::vector<std::string>& installed_peers() {
  static const std::vector<std::string> names = split(KATT_PEERS, ',');
  return names;
}

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
  if (foreign->rule_file && foreign->rule_file->empty()) {
    return skipped(op.name() + " has a score rule in C++, which a peer cannot read");
  }
  std::shared_ptr<PeerProcess>& process = processes_[{name, slot}];
  if (!process || !process->alive()) {
    process = std::make_shared<PeerProcess>(launch_of_peer(name), stop_);
  }
  SharedOffsets layout;
  OpenCase open;
  open.process = process;
  open.foreign = std::move(*foreign);
  open.request = open_request(op, point, open.foreign, bound);
  open.request["inputs"] = layout.place(open.foreign.inputs, open.inputs);
  open.request["outputs"] = layout.place(open.foreign.outputs, open.outputs);
  open.request["bytes"] = layout.bytes();
  open.input_memory = open.output_memory = process->share(layout.bytes());
  return entry_of(name, std::move(open));
}

PeerEntry Peers::open_candidate(const std::string& name, const CandidateFile& file,
                                const Operator& op, const Point& point, Case& inputs,
                                const Bound& bound) {
  auto foreign = inputs.foreign(true);
  if (!foreign || foreign->rule_file) {
    return skipped(op.name() + " cannot hand these inputs to a candidate");
  }
  if (sha256_of_file(file.path) != file.sha256) {
    throw std::runtime_error(file.path.string() + ": has changed since the sweep began");
  }
  SharedOffsets in, out;
  OpenCase open;
  open.foreign = std::move(*foreign);
  open.request = open_request(op, point, open.foreign, bound);
  open.request["inputs"] = in.place(open.foreign.inputs, open.inputs);
  open.request["outputs"] = out.place(open.foreign.outputs, open.outputs);
  open.request["bytes"] = in.bytes();
  open.request["output_bytes"] = out.bytes();
  open.process = std::make_shared<PeerProcess>(
      launch_of(file, options_, std::max(1, point.threads), in.bytes() + out.bytes()),
      PeerProcess::Sealed{in.bytes(), out.bytes()}, stop_);
  open.input_memory = open.process->inputs();
  open.output_memory = open.process->outputs();
  measure_transport(open);
  if (!file.is_python()) open.bytes_before = open.process->peak_bytes();
  about_[name] = file.description(options_.untrusted);
  return entry_of(name, std::move(open));
}

PeerEntry Peers::entry_of(const std::string& name, OpenCase open) {
  write_all(open.foreign.inputs, open.input_memory, open.inputs);
  const bool is_sealed = open.process->is_sealed();
  const nlohmann::json reply = reply_to(*open.process, open.request);
  if (std::string reason = text_of(reply, "skipped"); !reason.empty()) return skipped(reason);
  if (std::string about = text_of(reply, "about"); !about.empty() && !is_sealed) {
    about_[name] = about;
  }
  std::size_t output_bytes = 0;
  for (const ForeignTensor& tensor : open.foreign.outputs) {
    output_bytes += count_of(tensor) * size_of(tensor.dtype);
  }
  return {Status::ok(),
          is_sealed ? sealed_candidate(std::move(open)) : peer_candidate(std::move(open), reply),
          output_bytes};
}

PeerLaunch Peers::launch_of_peer(const std::string& name) const {
  PeerLaunch launch{.program = program_, .arguments = {name}, .timeout_s = options_.timeout_s};
  if (!options_.untrusted) return launch;
  return caged(std::move(launch), available_memory(Backend::openmp));
}

std::string Peers::about() const { return nlohmann::json(about_).dump(); }

void check_peers(const SweepRequest& request) {
  if (!request.settings.peer_program.empty()) return;
  const std::vector<std::string>& known = installed_peers();
  for (const SweepEntry& entry : request.entries) {
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
  const std::vector<std::string>& peers = installed_peers();
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
        if (std::error_code error; !std::filesystem::exists(one.path, error)) {
          throw InputError(axis.where + " " + one.path + ": no such file" + comma_note(axis));
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
