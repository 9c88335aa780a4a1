#include "measure/profile.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>

#include <Kokkos_Core.hpp>

#include "core/stopwatch.hpp"
#include "core/text.hpp"
#include "measure/ceilings.hpp"
#include "op/matrix_ceiling.hpp"

namespace katt::bench {
namespace {

struct Node {
  std::string name;
  std::int64_t calls = 0;
  double time_s = 0;
  nn::CallWork work{};  ///< of all calls
  std::vector<std::size_t> children{};
};

struct Open {
  std::size_t node = 0;
  Stopwatch watch{};
};

}  // namespace

struct Profiler::State {
  std::thread::id thread = std::this_thread::get_id();
  Kokkos::Tools::Experimental::EventSet previous{};
  std::vector<Node> nodes{Node{}};  // the first is the root
  std::vector<Open> open{Open{}};

  /// The living Profiler, for callbacks, which carry no pointer of ours.
  static inline State* current = nullptr;

  /// The node of that name inside the innermost open one.
  std::size_t inside(std::string_view name) {
    const std::size_t parent = open.back().node;
    for (const std::size_t known : nodes[parent].children) {
      if (nodes[known].name == name) return known;
    }
    nodes.push_back({.name = std::string(name)});
    nodes[parent].children.push_back(nodes.size() - 1);
    return nodes.size() - 1;
  }

  void begin(std::string_view name) {
    if (std::this_thread::get_id() != thread) return;
    const std::size_t node = inside(name);
    open.push_back({.node = node});
  }

  void add(std::string_view name, const nn::CallWork& work) {
    if (std::this_thread::get_id() != thread) return;
    nn::CallWork& all = nodes[inside(name)].work;
    all.flops += work.flops;
    all.bytes += work.bytes;
  }

  void end() {
    if (std::this_thread::get_id() != thread || open.size() == 1) return;
    Node& node = nodes[open.back().node];
    node.time_s += open.back().watch.seconds();
    ++node.calls;
    open.pop_back();
  }
};

namespace {

using State = Profiler::State;
using Kokkos::Tools::Experimental::EventSet;

/// A kernel's two callbacks, which also call the callbacks of an earlier tool.
template <auto BeginMember, auto EndMember>
struct Kernel {
  static void begin(const char* label, std::uint32_t device, std::uint64_t* id) {
    if (const auto before = State::current->previous.*BeginMember) before(label, device, id);
    State::current->begin(label);
  }
  static void end(std::uint64_t id) {
    State::current->end();
    if (const auto before = State::current->previous.*EndMember) before(id);
  }
};

using For = Kernel<&EventSet::begin_parallel_for, &EventSet::end_parallel_for>;
using Reduce = Kernel<&EventSet::begin_parallel_reduce, &EventSet::end_parallel_reduce>;
using Scan = Kernel<&EventSet::begin_parallel_scan, &EventSet::end_parallel_scan>;

void on_push(const char* name) {
  if (const auto before = State::current->previous.push_region) before(name);
  State::current->begin(name);
}

void on_pop() {
  State::current->end();
  if (const auto before = State::current->previous.pop_region) before();
}

/// Sets the callbacks of regions and kernels, and keeps all others, such as those of the memory
/// tracker.
void set(const EventSet& callbacks) {
  using namespace Kokkos::Tools::Experimental;
  set_push_region_callback(callbacks.push_region);
  set_pop_region_callback(callbacks.pop_region);
  set_begin_parallel_for_callback(callbacks.begin_parallel_for);
  set_end_parallel_for_callback(callbacks.end_parallel_for);
  set_begin_parallel_reduce_callback(callbacks.begin_parallel_reduce);
  set_end_parallel_reduce_callback(callbacks.end_parallel_reduce);
  set_begin_parallel_scan_callback(callbacks.begin_parallel_scan);
  set_end_parallel_scan_callback(callbacks.end_parallel_scan);
}

}  // namespace

Profiler::Profiler() : state_(std::make_unique<State>()) {}

Profiler::~Profiler() { stop(); }

void Profiler::start() {
  if (State::current != nullptr) throw std::logic_error("a Profiler gathers already");
  State::current = state_.get();
  state_->previous = Kokkos::Tools::Experimental::get_callbacks();
  EventSet ours{};
  ours.push_region = on_push;
  ours.pop_region = on_pop;
  ours.begin_parallel_for = For::begin;
  ours.end_parallel_for = For::end;
  ours.begin_parallel_reduce = Reduce::begin;
  ours.end_parallel_reduce = Reduce::end;
  ours.begin_parallel_scan = Scan::begin;
  ours.end_parallel_scan = Scan::end;
  set(ours);
  nn::call_observer() = this;
}

void Profiler::call(std::string_view name, const nn::CallWork& work) { state_->add(name, work); }

void Profiler::stop() {
  if (State::current != state_.get()) return;
  nn::call_observer() = nullptr;
  set(state_->previous);
  state_->open.resize(1);  // an open region does not count
  State::current = nullptr;
}

std::vector<io::ProfileRow> Profiler::rows() const {
  std::vector<io::ProfileRow> rows;
  const std::function<void(std::size_t, std::int64_t)> add = [&](std::size_t at,
                                                                 std::int64_t depth) {
    const Node& node = state_->nodes[at];
    if (at != 0) {
      rows.push_back({.name = node.name,
                      .depth = depth,
                      .calls = static_cast<double>(node.calls),
                      .time_s = node.time_s,
                      .flops = node.work.flops,
                      .bytes = node.work.bytes});
    }
    for (const std::size_t child : node.children) add(child, at == 0 ? 0 : depth + 1);
  };
  add(0, 0);
  return rows;
}

io::Profile Profiler::mean(std::int64_t runs, double time_s) const {
  const auto count = static_cast<double>(runs);
  io::Profile result{.runs = runs, .time_s = time_s / count, .rows = rows()};
  for (io::ProfileRow& row : result.rows) {
    row.calls /= count;
    row.time_s /= count;
    row.flops /= count;
    row.bytes /= count;
  }
  return result;
}

io::Profile profile(Candidate& candidate, double time_s) {
  constexpr double wanted_s = 0.1;
  const double runs = std::clamp(std::ceil(wanted_s / std::max(time_s, 1e-9)), 2.0, 100.0);
  double whole_s = 0;
  Profiler profiler;
  for (double run = 0; run < runs; ++run) {
    candidate.restore();
    candidate.fence();
    profiler.start();
    const Stopwatch watch;
    candidate.run();
    candidate.fence();
    whole_s += watch.seconds();
    profiler.stop();
  }
  return profiler.mean(static_cast<std::int64_t>(runs), whole_s);
}

void hold_against(io::Profile& profile, std::span<const io::CeilingRow> ceilings, Backend backend,
                  int threads, Dtype dtype) {
  constexpr std::string_view products[]{"katt::attention", "katt::linear",
                                        "katt::linear_cross_entropy", "katt::swiglu_mlp"};
  for (io::ProfileRow& row : profile.rows) {
    if (row.flops <= 0 && row.bytes <= 0) continue;
    const bool product =
        std::find(std::begin(products), std::end(products), row.name) != std::end(products);
    const Work work{.flops = row.flops,
                    .bytes = row.bytes,
                    .compute_ceiling = product ? matrix_ceiling(backend, dtype) : "",
                    .traffic = product || row.name == "katt::ternary_linear" ? "read" : "copy"};
    const NearestCeiling nearest = nearest_ceiling(ceilings, backend, threads, work, row.time_s);
    row.ceiling = nearest.name;
    row.ceiling_fraction = nearest.fraction;
  }
}

namespace {

std::string line_of(const io::ProfileRow& row, bool phase, double whole_s) {
  const auto counted = [](double value, const std::string& text) {
    return value > 0 ? text : std::string("-");
  };
  char flops[32];
  std::snprintf(flops, sizeof flops, "%.4g", row.flops * 1e-9);
  char share[64] = "-";
  if (!row.ceiling.empty()) {
    std::snprintf(share, sizeof share, "%.2f %s", row.ceiling_fraction, row.ceiling.c_str());
  }
  char line[256];
  std::snprintf(line, sizeof line, "%-10s %-30s %9.6g %10s %6.1f %% %10s %10s  %s",
                phase ? row.name.c_str() : "", phase ? "" : row.name.c_str(), row.calls,
                human_seconds(row.time_s).c_str(), 100 * row.time_s / whole_s,
                counted(row.flops, flops).c_str(),
                counted(row.bytes, human_bytes(row.bytes)).c_str(), share);
  return line;
}

}  // namespace

std::vector<std::string> table_lines(const io::Profile& profile) {
  char head[256];
  std::snprintf(head, sizeof head, "%-10s %-30s %9s %10s %8s %10s %10s  %s", "phase", "operator",
                "calls", "time", "share", "GFLOP", "traffic", "of ceiling");
  std::vector<std::string> lines{head};
  double outside_s = profile.time_s;
  for (std::size_t i = 0; i < profile.rows.size(); ++i) {
    const io::ProfileRow& phase = profile.rows[i];
    if (phase.depth != 0) continue;
    outside_s -= phase.time_s;
    io::ProfileRow whole = phase;
    std::vector<io::ProfileRow> parts;
    double rest_s = phase.time_s;
    for (std::size_t k = i + 1; k < profile.rows.size() && profile.rows[k].depth > 0; ++k) {
      const io::ProfileRow& part = profile.rows[k];
      if (part.depth != 1) continue;
      parts.push_back(part);
      rest_s -= part.time_s;
      whole.flops += part.flops;
      whole.bytes += part.bytes;
    }
    lines.push_back(line_of(whole, true, profile.time_s));
    if (parts.empty()) continue;
    std::stable_sort(parts.begin(), parts.end(),
                     [](const auto& a, const auto& b) { return a.time_s > b.time_s; });
    for (const io::ProfileRow& part : parts) lines.push_back(line_of(part, false, profile.time_s));
    lines.push_back(
        line_of({.name = "rest", .time_s = std::max(rest_s, 0.0)}, false, profile.time_s));
  }
  lines.push_back(
      line_of({.name = "rest", .time_s = std::max(outside_s, 0.0)}, true, profile.time_s));
  return lines;
}

std::string shares_text(const io::Profile& profile) {
  std::vector<io::ProfileRow> shares;
  double rest_s = profile.time_s;
  for (const io::ProfileRow& row : profile.rows) {
    if (row.depth > 0) continue;
    shares.push_back(row);
    rest_s -= row.time_s;
  }
  std::stable_sort(shares.begin(), shares.end(),
                   [](const auto& a, const auto& b) { return a.time_s > b.time_s; });
  shares.push_back({.name = "rest", .time_s = std::max(rest_s, 0.0)});
  std::vector<std::string> parts;
  for (const io::ProfileRow& row : shares) {
    char text[32];
    std::snprintf(text, sizeof text, " %.1f %%", 100 * row.time_s / profile.time_s);
    parts.push_back(row.name + text);
  }
  return join(parts, ", ");
}

}  // namespace katt::bench
