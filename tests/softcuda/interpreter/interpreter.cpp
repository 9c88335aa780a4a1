#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <thread>

#include "tests/softcuda/interpreter/machine.hpp"

// Launches: modules, blocks, and the scheduling of warps and of the diverged groups of lanes in a
// warp.

namespace softcuda {

void fault(const Warp& w, int lane, int error, const std::string& what) {
  const Block& b = *w.block;
  const int thread = w.index * warp_lanes + std::max(lane, 0);
  char place[200];
  std::snprintf(place, sizeof place, ", block (%u, %u, %u), %s %d, PTX line %d: ", b.id.x, b.id.y,
                b.id.z, lane < 0 ? "warp of thread" : "thread", thread, w.now ? w.now->line : 0);
  const std::string opcode = w.now ? b.program->opcodes[w.now->opcode] + ": " : "";
  throw DeviceFault(error, b.program->name + place + opcode + what);
}

namespace {

struct Totals {
  std::mutex lock;
  std::uint64_t launches = 0;
  std::map<std::string, std::uint64_t> by_opcode;
};
Totals& totals() {
  static Totals* t = new Totals;
  return *t;
}

std::mutex& modules_lock() {
  static std::mutex lock;
  return lock;
}

// ---- One warp's turn

/// Joins the ready groups at the same place and takes one to run: the one furthest behind, so that
/// the paths of a branch meet again. Returns false when none is ready.
bool take_group(Warp& w, std::mt19937& random, Group& taken) {
  auto& groups = w.groups;
  for (std::size_t a = 0; a < groups.size(); ++a)
    for (std::size_t b = a + 1; b < groups.size();) {
      const bool join = groups[a].pc == groups[b].pc && groups[a].state != Group::barrier &&
                        groups[b].state != Group::barrier;
      if (!join) {
        ++b;
        continue;
      }
      groups[a].mask |= groups[b].mask;
      groups[a].state = Group::ready;
      groups[b] = groups.back();
      groups.pop_back();
    }
  std::size_t best = groups.size(), ready = 0;
  for (std::size_t g = 0; g < groups.size(); ++g) {
    if (groups[g].state != Group::ready) continue;
    ++ready;
    const bool better = w.shuffle_groups ? random() % ready == 0
                                         : best == groups.size() || groups[g].pc < groups[best].pc;
    if (better) best = g;
  }
  w.shuffle_groups = false;
  if (best == groups.size()) return false;
  taken = groups[best];
  groups[best] = groups.back();
  groups.pop_back();
  return true;
}

/// Where the group has to stop, because others wait there or are ready further behind.
struct Meeting {
  std::uint32_t next = ~0U;    ///< the nearest place ahead at which another group is
  std::uint32_t behind = ~0U;  ///< the lowest place of a ready group
  Meeting(const Warp& w, std::uint32_t pc) {
    for (const auto& g : w.groups) {
      if (g.state == Group::barrier) continue;
      if (g.pc >= pc) next = std::min(next, g.pc);
      if (g.state == Group::ready) behind = std::min(behind, g.pc);
    }
  }
};

void end_lanes(Warp& w, Mask ended) {
  land_copies(w, ended, 0);
  end_bulk(w, ended);
  w.live &= ~ended;
  for (auto& g : w.groups)
    if (g.state == Group::lanes) g.state = Group::ready;  // nobody needs to wait for those any more
  if (w.live == 0) ++w.block->epoch;
}

/// Executes one group until it has to wait, meets another or uses up the budget.
void run_group(Warp& w, Group g, int& budget) {
  Block& block = *w.block;
  const Instruction* code = block.program->code.data();
  Meeting meeting(w, g.pc);
  const auto leave = [&](Group::State state) {
    g.state = state;
    w.groups.push_back(g);
  };
  while (true) {
    if (g.pc == meeting.next || budget <= 0) {
      if (budget <= 0) w.shuffle_groups = true;
      return leave(Group::ready);
    }
    --budget;
    const Instruction& i = code[g.pc];
    Mask m = g.mask;
    if (i.guarded) m &= i.negated ? ~w.pred(i.guard) : w.pred(i.guard);
    ++block.executed[i.opcode];
    if (m == 0) {
      ++g.pc;
      continue;
    }
    w.now = &i;
    switch (i.run(w, i, m)) {
      case Step::next: ++g.pc; break;
      case Step::jumped: {
        if (m != g.mask) w.groups.push_back({g.pc + 1, g.mask & ~m, Group::ready});
        g.mask = m;
        g.pc = i.target;
        meeting = Meeting(w, g.pc);
        if (meeting.behind < g.pc) return leave(Group::ready);
        break;
      }
      case Step::wait_lanes: --block.executed[i.opcode]; return leave(Group::lanes);
      case Step::barrier_again: return leave(Group::barrier);
      case Step::barrier: ++g.pc; return leave(Group::barrier);
      case Step::yield: ++g.pc; return leave(Group::yielded);
      case Step::retry: --block.executed[i.opcode]; return leave(Group::yielded);
      case Step::ended:
        g.mask &= ~m;
        end_lanes(w, m);
        if (g.mask == 0) return;
        ++g.pc;
        meeting = Meeting(w, g.pc);
        break;
    }
  }
}

/// Returns whether anything but a failed wait happened.
bool take_turn(Warp& w, std::mt19937& random) {
  for (auto& g : w.groups)
    if (g.state == Group::yielded) g.state = Group::ready;
  int budget = 100 + static_cast<int>(random() % 2000);
  const std::uint64_t epoch = w.block->epoch;
  bool worked = false;
  for (Group g; budget > 0 && take_group(w, random, g);) {
    run_group(w, g, budget);
    const bool waits = !w.groups.empty() && (w.groups.back().state == Group::yielded ||
                                             w.groups.back().state == Group::lanes);
    worked |= !waits;
  }
  return worked || w.block->epoch != epoch;
}

// ---- One block

/// Releases barriers at which all expected threads have arrived.
void release_barriers(Block& block) {
  unsigned live = 0;
  for (const auto& w : block.warps) live += w.live ? warp_lanes : 0;
  for (std::size_t id = 0; id < block.barriers.size(); ++id) {
    Barrier& b = block.barriers[id];
    if (b.arrived == 0) continue;
    const unsigned expected = b.expected ? b.expected : live;
    if (b.arrived < expected) continue;
    if (b.arrived > expected) {
      Warp& w = b.waiting.empty() ? block.warps[0] : *b.waiting.back();
      fault(w, -1, 719,
            "barrier " + std::to_string(id) + ": " + std::to_string(b.arrived) +
                " threads arrived, " + std::to_string(expected) + " expected");
    }
    for (Warp* w : b.waiting) {
      w->waiting_at = -1;
      ++w->lane_clock;
      if (block.races) race_acquire(*w, b.clocks);
      if (w->reduced == 1) w->reduced = 2, w->reduced_yes = b.yes, w->reduced_threads = b.threads;
      for (auto& g : w->groups)
        if (g.state == Group::barrier) g.state = Group::ready;
    }
    b = {};
    ++block.epoch;
  }
}

[[noreturn]] void report_deadlock(Block& block) {
  std::string text = "deadlock:";
  Warp* first = nullptr;
  for (auto& w : block.warps) {
    if (w.live == 0) continue;
    if (!first) first = &w;
    if (text.size() > 600) continue;
    text += " warp " + std::to_string(w.index);
    if (w.waiting_at >= 0) {
      const Barrier& b = block.barriers[static_cast<std::size_t>(w.waiting_at)];
      text += " at barrier " + std::to_string(w.waiting_at) + " (" + std::to_string(b.arrived) +
              " arrived" + (b.expected ? " of " + std::to_string(b.expected) : std::string()) +
              ");";
      continue;
    }
    for (const auto& g : w.groups) {
      char lanes[64];
      std::snprintf(lanes, sizeof lanes, " lanes %08x wait at line %d", g.mask,
                    block.program->code[g.pc].line);
      text += lanes + std::string(g.state == Group::yielded ? " (mbarrier);" : ";");
    }
  }
  fault(*first, -1, 719, text);
}

void check_at_end(Block& block) {
  check_bulk_at_end(block);
  check_wgmmas_at_end(block);
}

void run_block(Block& block, std::mt19937& random) {
  std::vector<Warp*> order;
  for (auto& w : block.warps) order.push_back(&w);
  int idle_rounds = 0;
  while (true) {
    std::erase_if(order, [](const Warp* w) { return w->live == 0; });
    if (!block.bulk_loads.empty() && random() % 4 == 0) land_bulk_load(block, random, 0);
    if (order.empty()) return check_at_end(block);
    if (order.size() > 1) std::shuffle(order.begin(), order.end(), random);
    bool worked = false;
    for (Warp* w : order) {
      if (w->waiting_at >= 0) continue;
      if (random() % 4 == 0) worked |= land_copy_arrivals(*w);
      worked |= take_turn(*w, random);
      release_barriers(block);
    }
    idle_rounds = worked ? 0 : idle_rounds + 1;
    if (idle_rounds > 100) report_deadlock(block);
  }
}

std::uint32_t special_value(const Block& b, std::string_view name, int thread, int lane) {
  const auto t = static_cast<unsigned>(thread), l = static_cast<unsigned>(lane);
  const auto threads = b.shape.x * b.shape.y * b.shape.z;
  const auto axis = [&](Dim3 d) {
    return name.back() == 'x' ? d.x : name.back() == 'y' ? d.y : d.z;
  };
  if (name.starts_with("%tid."))
    return axis({t % b.shape.x, t / b.shape.x % b.shape.y, t / b.shape.x / b.shape.y});
  if (name.starts_with("%ntid.")) return axis(b.shape);
  if (name.starts_with("%ctaid.")) return axis(b.id);
  if (name.starts_with("%nctaid.")) return axis(b.grid);
  if (name == "%laneid") return l;
  if (name == "%warpid") return t / warp_lanes;
  if (name == "%nwarpid") return (threads + warp_lanes - 1) / warp_lanes;
  if (name == "%lanemask_eq") return 1U << l;
  if (name == "%lanemask_lt") return (1U << l) - 1;
  if (name == "%lanemask_le") return (2U << l) - 1;
  if (name == "%lanemask_gt") return ~((2U << l) - 1);
  if (name == "%lanemask_ge") return ~((1U << l) - 1);
  if (name.starts_with("%clusterid.")) return axis(b.id);
  if (name.starts_with("%nclusterid.")) return axis(b.grid);
  if (name.starts_with("%cluster_nctaid.") || name == "%cluster_nctarank") return 1;
  if (name == "%total_smem_size") return static_cast<std::uint32_t>(b.shared_bytes);
  if (name == "%nsmid") return 1;
  if (name == "%dynamic_smem_size")
    return static_cast<std::uint32_t>(b.shared_bytes - (b.program->shared_static - shared_base));
  return 0;  // %smid
}

void start_warp(Block& block, Warp& w, bool first_block) {
  const auto threads = static_cast<int>(block.shape.x * block.shape.y * block.shape.z);
  const int first = w.index * warp_lanes, lanes = std::min(warp_lanes, threads - first);
  w.live = lanes == warp_lanes ? all_lanes : (1U << lanes) - 1;
  w.groups.assign(1, {0, w.live, Group::ready});
  w.carry = 0;
  w.copies.clear();
  w.copy_group.fill(0);
  w.wgmmas.clear();
  w.wgmma_group = 0;
  w.unfenced.clear();
  w.copy_arrivals.clear();
  w.bulk_stores.clear();
  w.bulk_group.fill(0);
  w.wgmmas_issued = 0;
  w.shadows.clear();
  w.reduced = 0;
  w.cluster_arrived = false;
  w.cluster_phase = 0;
  w.lane_clock = 0;
  w.waiting_at = -1;
  w.shuffle_groups = false;
  std::fill(w.local.begin(), w.local.end(), std::byte{0xFF});
  std::fill(w.call_parameters.begin(), w.call_parameters.end(), std::byte{0xFF});
  for (const auto& s : block.program->specials)
    if (first_block || s.name.starts_with("%ctaid") || s.name.starts_with("%clusterid"))
      for (int l = 0; l < warp_lanes; ++l)
        w.reg<std::uint32_t>(s.at)[l] = special_value(block, s.name, first + l, l);
}

/// Everything that a block needs, made once per launch and used for one block after another.
struct Stage {
  Block block;
  bool started = false;
  std::unique_ptr<Races, void (*)(Races*)> races{nullptr, delete_races};
  std::unique_ptr<std::byte[], void (*)(void*)> registers{nullptr, std::free},
      shared{nullptr, std::free};

  Stage(const Program& p, Dim3 grid, Dim3 shape, std::size_t dynamic_shared,
        const std::vector<std::byte>& parameters) {
    block.program = &p;
    block.grid = grid;
    block.shape = shape;
    block.parameters = &parameters;
    block.shared_bytes = p.shared_static - shared_base + dynamic_shared;
    const char* when = std::getenv("SOFTCUDA_WGMMA");
    block.late_wgmma = !(when && std::string_view(when) == "early");
    const std::size_t count =
        (std::size_t{shape.x} * shape.y * shape.z + warp_lanes - 1) / warp_lanes;
    registers.reset(allocate(p.registers.size() * count));
    shared.reset(allocate(block.shared_bytes));
    block.shared = shared.get();
    races.reset(new_races(count, block.shared_bytes));
    block.races = races.get();
    block.warps.resize(count);
    for (std::size_t n = 0; n < count; ++n) {
      Warp& w = block.warps[n];
      w.block = &block;
      w.index = static_cast<int>(n);
      w.registers = registers.get() + n * p.registers.size();
      std::memcpy(w.registers, p.registers.data(), p.registers.size());
      w.local.resize(p.local_bytes * warp_lanes);
      w.call_parameters.resize(p.call_parameter_bytes * warp_lanes);
    }
  }
  static std::byte* allocate(std::size_t bytes) {
    return static_cast<std::byte*>(std::aligned_alloc(1024, (bytes + 1024) / 1024 * 1024));
  }
  void run(Dim3 id, std::mt19937& random) {
    block.id = id;
    block.barriers = {};
    block.cluster_phase = 0;
    block.cluster_clocks.clear();
    block.bulk_loads.clear();
    block.issued.assign(block.warps.size() / 4 + 1, {});
    block.random = &random;
    if (block.races) race_start_block(block);
    std::memset(block.shared, 0xFF, block.shared_bytes);
    if (block.program->async_proxy) block.unfenced.assign(block.shared_bytes / 16 + 1, 0);
    for (auto& w : block.warps) start_warp(block, w, !started);
    started = true;
    run_block(block, random);
  }
};

Function& find_function(Module* m, const std::string& name) {
  const auto at = m->functions.find(name);
  if (at == m->functions.end() || !at->second.entry) throw DeviceFault(98, "no kernel " + name);
  return at->second;
}

/// Decodes the kernel at its first launch, and checks what it is launched with.
std::shared_ptr<Program> program_of(Module* m, const std::string& name, Dim3 shape,
                                    std::size_t parameter_bytes) {
  const std::lock_guard hold(modules_lock());
  Function& f = find_function(m, name);
  if (!f.program) f.program = decode(*m, f);
  if (f.cluster != 1) {
    throw DeviceFault(719, name + ": a cluster of " + std::to_string(f.cluster) +
                               " blocks is not supported by softcuda");
  }
  if (parameter_bytes < f.info.parameter_total) {
    throw DeviceFault(1, name + ": launched with too few parameters");
  }
  const std::size_t threads = std::size_t{shape.x} * shape.y * shape.z;
  if (threads == 0 || threads > static_cast<std::size_t>(f.info.max_threads)) {
    throw DeviceFault(9, name + ": " + std::to_string(threads) + " threads in a block, at most " +
                             std::to_string(f.info.max_threads));
  }
  return f.program;
}

/// How many threads of the host execute the blocks. The race check needs one.
std::uint64_t host_threads(std::uint64_t blocks) {
  if (is_set("SOFTCUDA_RACECHECK")) return 1;
  const char* text = std::getenv("SOFTCUDA_THREADS");
  const std::uint64_t wanted = text ? std::strtoull(text, nullptr, 10) : 1;
  return std::clamp<std::uint64_t>(wanted, 1, std::min<std::uint64_t>(blocks, 256));
}

/// A launch. Threads of the host take its blocks one after the other.
struct Launch {
  const Program& program;
  Dim3 grid, shape;
  std::size_t dynamic_shared;
  const std::vector<std::byte>& parameters;
  std::uint64_t blocks, threads;
  std::atomic<std::uint64_t> next{0};
  std::exception_ptr failure{};

  void work(std::mt19937 random) {
    std::vector<std::uint64_t> executed(program.opcodes.size());
    std::vector<BankCounts> banks(is_set("SOFTCUDA_BANKS") ? program.code.size() : 0);
    try {
      execute(random, executed, banks.empty() ? nullptr : banks.data());
    } catch (...) {
      const std::lock_guard hold(totals().lock);
      if (!failure) failure = std::current_exception();
      next = blocks;
    }
    note_banks(program, banks);
    const std::lock_guard hold(totals().lock);
    for (std::size_t n = 0; n < executed.size(); ++n) {
      if (executed[n]) totals().by_opcode[program.opcodes[n]] += executed[n];
    }
  }

  void execute(std::mt19937& random, std::vector<std::uint64_t>& executed, BankCounts* banks) {
    Stage stage(program, grid, shape, dynamic_shared, parameters);
    stage.block.executed = executed.data();
    stage.block.banks = banks;
    stage.block.parallel = threads > 1;
    for (std::uint64_t n = next++; n < blocks; n = next++) {
      stage.run({static_cast<unsigned>(n % grid.x), static_cast<unsigned>(n / grid.x % grid.y),
                 static_cast<unsigned>(n / grid.x / grid.y)},
                random);
    }
  }
};

}  // namespace

Module* load_module(const std::string& ptx) {
  auto m = std::make_unique<Module>();
  m->text = ptx;
  parse_module(*m);
  return m.release();
}

Variable find_variable(Module* m, const std::string& name) {
  const auto at = m->variables.find(name);
  return at == m->variables.end() ? Variable{0, 0} : at->second;
}

bool has_kernel(Module* m, const std::string& name) {
  const auto at = m->functions.find(name);
  return at != m->functions.end() && at->second.entry;
}

const KernelInfo& kernel_info(Module* m, const std::string& name) {
  const std::lock_guard hold(modules_lock());
  Function& f = find_function(m, name);
  complete_info(*m, f);
  return f.info;
}

void launch(Module* m, const std::string& name, Dim3 grid, Dim3 shape,
            std::size_t dynamic_shared_bytes, const std::vector<std::byte>& parameters) {
  const std::shared_ptr<Program> program = program_of(m, name, shape, parameters.size());
  static const char* seed = std::getenv("SOFTCUDA_SEED");
  std::mt19937 random(seed ? static_cast<unsigned>(std::strtoul(seed, nullptr, 10)) : 1);
  const std::uint64_t blocks = std::uint64_t{grid.x} * grid.y * grid.z;
  Launch run{*program, grid, shape, dynamic_shared_bytes, parameters, blocks, host_threads(blocks)};
  std::vector<std::thread> others;
  for (std::uint64_t n = 1; n < run.threads; ++n) {
    const auto own = static_cast<unsigned>(random() + n);
    others.emplace_back([&run, own] { run.work(std::mt19937(own)); });
  }
  run.work(random);
  for (auto& t : others) t.join();
  {
    const std::lock_guard hold(totals().lock);
    ++totals().launches;
  }
  if (run.failure) std::rethrow_exception(run.failure);
}

std::string statistics() {
  const std::lock_guard hold(totals().lock);
  std::vector<std::pair<std::uint64_t, std::string>> all;
  std::uint64_t sum = 0;
  for (const auto& [opcode, n] : totals().by_opcode) {
    all.emplace_back(n, opcode);
    sum += n;
  }
  std::sort(all.rbegin(), all.rend());
  std::string text = "softcuda: " + std::to_string(totals().launches) + " launches, " +
                     std::to_string(sum) + " warp instructions\n";
  for (const auto& [n, opcode] : all) text += "  " + std::to_string(n) + " " + opcode + "\n";
  return text;
}

}  // namespace softcuda
