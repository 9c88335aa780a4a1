// SOFTCUDA_RACECHECK: happens-before by vector clocks of the warps. Per 4 bytes of shared memory the last writer and the last read of
// every warp; of global memory, between blocks of a launch, the last writer and reader. 1: the first race is a fault; report: all are printed.
#include <cstdio>
#include <cstdlib>
#include <set>
#include <string_view>
#include <unordered_map>

#include "tests/softcuda/interpreter/machine.hpp"

namespace softcuda {

std::mutex& AtomicGuard::lock() {
  static std::mutex* const m = new std::mutex;
  return *m;
}

namespace {
using u32 = std::uint32_t;
using u64 = std::uint64_t;

struct Note {  ///< an access; clock 0: there was none
  u32 clock = 0, lane_clock = 0;
  std::int32_t line = 0;
  std::int16_t warp = 0;
  std::int8_t lane = 0;
  Access kind = Access::read;
};
struct Foreign {               ///< of global memory
  u32 writer = 0, reader = 0;  ///< blocks, from 1
  std::int32_t write_line = 0, read_line = 0;
  bool write_atomic = false, read_atomic = false;
};
struct GlobalRaces {
  std::mutex lock;
  std::unordered_map<u64, Foreign> words;
};
}  // namespace

struct Races {
  std::size_t warps;
  bool report;
  std::vector<Note> written;
  std::vector<Note> read;  ///< by warp
  struct Phases {
    Clocks arriving, complete;
  };
  std::unordered_map<u32, Phases> mbarriers;
  u32 block = 0;
  bool synchronised = false;  ///< this block has used an atomic on global memory
  std::unordered_map<u64, Foreign> global;
  std::set<std::pair<std::int32_t, std::int32_t>> reported;
};

namespace {
void join(Clocks& to, const Clocks& from) {
  if (to.size() < from.size()) to.resize(from.size());
  for (std::size_t n = 0; n < from.size(); ++n) to[n] = std::max(to[n], from[n]);
}
const char* name_of(Access a) {
  return a == Access::read     ? "read"
         : a == Access::write  ? "write"
         : a == Access::atomic ? "atomic"
                               : "bulk copy";
}
void tell(Warp& w, int lane, bool shared, u64 address, Access kind, const std::string& other,
          std::int32_t other_line) {
  Races& r = *w.block->races;
  if (!r.reported.insert({w.now->line, other_line}).second) return;
  const std::string text =
      std::string("race on ") + (shared ? "shared memory at " : "global memory at ") +
      std::to_string(address) + ": " + name_of(kind) + " here, and " + other + " in PTX line " +
      std::to_string(other_line) + ", with nothing that orders them";
  if (!r.report) fault(w, lane, 719, text);
  try {
    fault(w, lane, 719, text);
  } catch (const DeviceFault& e) {
    std::fprintf(stderr, "softcuda: %s\n", e.what());
  }
}
bool is_write(Access a) { return a != Access::read; }
bool conflict(Access a, Access b) {
  return (is_write(a) || is_write(b)) && !(a == Access::atomic && b == Access::atomic);
}

void check(Warp& w, int lane, u64 address, Access kind, const Note& before) {
  if (before.clock == 0 || !conflict(kind, before.kind)) return;
  bool ordered = before.clock <= w.clocks[static_cast<std::size_t>(before.warp)];
  if (before.warp == w.index &&
      before.kind !=
          Access::async_write)  // lanes of one warp: __syncwarp or a barrier between them
    ordered = before.lane == lane || before.lane_clock < w.lane_clock ||
              before.line == w.now->line || kind == Access::async_write;
  if (ordered) return;
  const bool proxy = before.kind == Access::async_write;
  tell(w, lane, true, address, kind,
       std::string(name_of(before.kind)) +
           (proxy ? "" : " by thread " + std::to_string(before.warp * warp_lanes + before.lane)),
       before.line);
}
}  // namespace

Races* new_races(std::size_t warps, std::size_t shared_bytes) {
  const char* mode = std::getenv("SOFTCUDA_RACECHECK");
  if (!mode || !*mode || std::string_view(mode) == "0") return nullptr;
  auto* r = new Races;
  r->warps = warps;
  r->report = std::string_view(mode) == "report";
  r->written.resize(shared_bytes / 4 + 2);
  r->read.resize((shared_bytes / 4 + 2) * warps);
  return r;
}
void delete_races(Races* r) { delete r; }

void race_start_block(Block& b) {
  Races& r = *b.races;
  ++r.block;
  r.synchronised = false;
  std::fill(r.written.begin(), r.written.end(), Note{});
  std::fill(r.read.begin(), r.read.end(), Note{});
  r.mbarriers.clear();
  for (auto& w : b.warps) {
    w.clocks.assign(r.warps + 1, 0);
    w.clocks[static_cast<std::size_t>(w.index)] = 1;
  }
}

void race_access_slowly(Warp& w, int lane, bool shared, u64 address, std::size_t bytes,
                        Access kind) {
  Races& r = *w.block->races;
  lane = std::max(lane, 0);
  if (!shared) {
    for (u64 word = address / 4; word <= (address + bytes - 1) / 4; ++word) {
      Foreign& f = r.global[word];
      const bool atomic = kind == Access::atomic;
      if (f.writer && f.writer != r.block && !(f.write_atomic && atomic) && !r.synchronised)
        tell(w, lane, false, word * 4, kind, "write by another block", f.write_line);
      if (is_write(kind) && f.reader && f.reader != r.block && !(f.read_atomic && atomic) &&
          !r.synchronised)
        tell(w, lane, false, word * 4, kind, "read by another block", f.read_line);
      if (is_write(kind)) f.writer = r.block, f.write_line = w.now->line, f.write_atomic = atomic;
      else f.reader = r.block, f.read_line = w.now->line, f.read_atomic = atomic;
    }
    return;
  }
  const auto self = static_cast<std::size_t>(w.index);
  for (u64 word = (address - shared_base) / 4; word <= (address - shared_base + bytes - 1) / 4;
       ++word) {
    Note& written = r.written[word];
    check(w, lane, shared_base + 4 * word, kind, written);
    Note* const read = &r.read[word * r.warps];
    if (is_write(kind))
      for (std::size_t n = 0; n < r.warps; ++n)
        check(w, lane, shared_base + 4 * word, kind, read[n]);
    Note now{w.clocks[self],
             w.lane_clock,
             w.now->line,
             static_cast<std::int16_t>(w.index),
             static_cast<std::int8_t>(lane),
             kind};
    if (kind == Access::async_write) {
      now.warp = static_cast<std::int16_t>(r.warps);
      now.clock = r.written.size() ? static_cast<u32>(++w.block->epoch & 0x3FFFFFFF) : 0;
      written = now;
    } else if (is_write(kind)) {
      written = now;
    } else {
      read[self] = now;
    }
  }
}

void race_release(Warp& w, Clocks& to) {
  join(to, w.clocks);
  ++w.clocks[static_cast<std::size_t>(w.index)];
  ++w.lane_clock;
}
void race_acquire(Warp& w, const Clocks& from) {
  join(w.clocks, from);
  ++w.lane_clock;
}
void race_arrive(Warp& w, u32 mbarrier) {
  race_release(w, w.block->races->mbarriers[mbarrier].arriving);
}
void race_complete(Block& b, u32 mbarrier) {
  auto& phases = b.races->mbarriers[mbarrier];
  if (phases.arriving.empty()) phases.arriving.resize(b.races->warps + 1);
  phases.arriving.back() = static_cast<u32>(b.epoch & 0x3FFFFFFF);  // the bulk copies up to now
  phases.complete = phases.arriving;
}
void race_wait(Warp& w, u32 mbarrier) {
  race_acquire(w, w.block->races->mbarriers[mbarrier].complete);
}
void race_global_sync(Warp& w) { w.block->races->synchronised = true; }

}  // namespace softcuda
