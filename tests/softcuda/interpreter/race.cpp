#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <set>
#include <string_view>
#include <unordered_map>

#include "tests/softcuda/interpreter/machine.hpp"

// The race check (SOFTCUDA_RACECHECK): happens-before by vector clocks of the warps. It keeps, for
// each word of four bytes of shared memory, the last write and the last read of every warp; for
// each word of global memory the last block that wrote and that read it. Accesses to different
// bytes of a word do not conflict.

namespace softcuda {

std::mutex& AtomicGuard::lock() {
  static std::mutex* const m = new std::mutex;
  return *m;
}

namespace {
using u32 = std::uint32_t;
using u64 = std::uint64_t;

/// Bytes of a word of four, a bit each.
using Bytes = std::uint8_t;

/// The bytes of word `word` that lie in [address, address + bytes).
Bytes bytes_in(u64 word, u64 address, std::size_t bytes) {
  const u64 first = std::max(address, 4 * word), last = std::min(address + bytes, 4 * word + 4);
  return static_cast<Bytes>((1U << (last - 4 * word)) - (1U << (first - 4 * word)));
}

struct Note {  ///< an access; clock 0: there was none
  u32 clock = 0, lane_clock = 0;
  std::int32_t line = 0;
  std::int16_t warp = 0;
  std::int8_t lane = 0;
  Access kind = Access::read;
  Bytes bytes = 0;
};
/// The last block that wrote a word of global memory, or that read it.
struct Visit {
  u32 block = 0;  ///< from 1; 0: there was none
  std::int32_t line = 0;
  bool atomic = false;
  Bytes bytes = 0;

  bool conflicts(const Visit& other) const {
    return block != 0 && block != other.block && (bytes & other.bytes) != 0 &&
           !(atomic && other.atomic);
  }
  void take(const Visit& other) {
    const Bytes before = block == other.block ? bytes : Bytes{0};
    *this = other;
    bytes |= before;
  }
};
struct GlobalWord {
  Visit written, read;
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
  std::unordered_map<u64, GlobalWord> global;
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

void check(Warp& w, int lane, u64 address, Access kind, Bytes bytes, const Note& before) {
  if (before.clock == 0 || (bytes & before.bytes) == 0 || !conflict(kind, before.kind)) return;
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

namespace {

void access_global(Warp& w, int lane, u64 word, Bytes bytes, Access kind) {
  Races& r = *w.block->races;
  GlobalWord& g = r.global[word];
  const Visit now{r.block, w.now->line, kind == Access::atomic, bytes};
  if (!r.synchronised && g.written.conflicts(now)) {
    tell(w, lane, false, word * 4, kind, "write by another block", g.written.line);
  }
  if (!r.synchronised && is_write(kind) && g.read.conflicts(now)) {
    tell(w, lane, false, word * 4, kind, "read by another block", g.read.line);
  }
  (is_write(kind) ? g.written : g.read).take(now);
}

void access_shared(Warp& w, int lane, u64 word, Bytes bytes, Access kind) {
  Races& r = *w.block->races;
  const auto self = static_cast<std::size_t>(w.index);
  const u64 index = word - shared_base / 4, address = 4 * word;
  Note& written = r.written[index];
  check(w, lane, address, kind, bytes, written);
  Note* const read = &r.read[index * r.warps];
  for (std::size_t n = 0; n < r.warps && is_write(kind); ++n) {
    check(w, lane, address, kind, bytes, read[n]);
  }
  Note now{w.clocks[self],
           w.lane_clock,
           w.now->line,
           static_cast<std::int16_t>(w.index),
           static_cast<std::int8_t>(lane),
           kind,
           bytes};
  if (kind == Access::async_write) {
    now.warp = static_cast<std::int16_t>(r.warps);
    now.clock = static_cast<u32>(++w.block->epoch & 0x3FFFFFFF);
  }
  (is_write(kind) ? written : read[self]) = now;
}

}  // namespace

void race_access_slowly(Warp& w, int lane, bool shared, u64 address, std::size_t bytes,
                        Access kind) {
  lane = std::max(lane, 0);
  for (u64 word = address / 4; word <= (address + bytes - 1) / 4; ++word) {
    const Bytes touched = bytes_in(word, address, bytes);
    if (shared) access_shared(w, lane, word, touched, kind);
    else access_global(w, lane, word, touched, kind);
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
