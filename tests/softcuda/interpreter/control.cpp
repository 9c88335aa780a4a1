#include <algorithm>
#include <chrono>
#include <cstdio>

#include "tests/softcuda/interpreter/machine.hpp"

// Branches, barriers, shuffles and votes: what involves several lanes, but no matrices.

namespace softcuda {
namespace {

using u32 = std::uint32_t;
using u64 = std::uint64_t;

Step branch(Warp&, const Instruction&, Mask) { return Step::jumped; }
Step end(Warp&, const Instruction&, Mask) { return Step::ended; }
Step nothing(Warp&, const Instruction&, Mask) { return Step::next; }
/// fence.proxy.async: what these lanes wrote to shared memory is there for wgmma.
Step proxy_fence(Warp& w, const Instruction&, Mask) {
  for (const u32 chunk : w.unfenced) w.block->unfenced[chunk] = 0;
  w.unfenced.clear();
  return Step::next;
}
Step trap(Warp& w, const Instruction&, Mask m) { fault(w, __builtin_ctz(m), 719, "trap"); }

/// True when every lane that the member masks name (and that has not returned) is here.
bool all_here(Warp& w, const u32* members, Mask m) {
  Mask named = 0;
  for (Mask rest = m; rest; rest &= rest - 1) {
    const int l = __builtin_ctz(rest);
    if (!(members[l] >> l & 1))
      fault(w, l, 719, "a lane executes a .sync instruction whose member mask does not name it");
    named |= members[l];
  }
  return (named & w.live & ~m) == 0;
}

Step warp_barrier(Warp& w, const Instruction& i, Mask m) {
  if (!all_here(w, w.reg<u32>(i.a), m)) return Step::wait_lanes;
  ++w.lane_clock;
  return Step::next;
}

enum class Shuffle { up, down, butterfly, index };
template <Shuffle mode>
Step shuffle(Warp& w, const Instruction& i, Mask m) {
  if (!all_here(w, w.reg<u32>(i.e), m)) return Step::wait_lanes;
  u32 source[warp_lanes], result[warp_lanes];
  std::memcpy(source, w.reg<u32>(i.a), sizeof source);
  Mask in_range = 0;
  for (Mask rest = m; rest; rest &= rest - 1) {
    const int l = __builtin_ctz(rest);
    const int b = static_cast<int>(w.reg<u32>(i.b)[l] & 31);
    const u32 c = w.reg<u32>(i.c)[l];
    const int clamp = static_cast<int>(c & 31), segment = static_cast<int>(c >> 8 & 31);
    const int most = (l & segment) | (clamp & ~segment), least = l & segment;
    int j = 0;
    bool valid = false;
    if (mode == Shuffle::up) j = l - b, valid = j >= most;
    if (mode == Shuffle::down) j = l + b, valid = j <= most;
    if (mode == Shuffle::butterfly) j = l ^ b, valid = j <= most;
    if (mode == Shuffle::index) j = least | (b & ~segment), valid = j <= most;
    if (!valid) j = l;
    result[l] = (m >> j & 1) ? source[j] : ~u32{0};  // from a lane that takes no part: poison
    in_range |= static_cast<Mask>(valid) << l;
  }
  for (Mask rest = m; rest; rest &= rest - 1)
    w.reg<u32>(i.d)[__builtin_ctz(rest)] = result[__builtin_ctz(rest)];
  if (i.list_size > 0) {
    Mask& p = w.pred(w.block->program->lists[i.list]);
    p = (p & ~m) | in_range;
  }
  return Step::next;
}

enum class Vote { all, any, uni, ballot };
template <Vote mode>
Step vote(Warp& w, const Instruction& i, Mask m) {
  if (!all_here(w, w.reg<u32>(i.b), m)) return Step::wait_lanes;
  const Mask yes = w.pred(i.a) & m;
  if (mode == Vote::ballot) {
    for (Mask rest = m; rest; rest &= rest - 1) w.reg<u32>(i.d)[__builtin_ctz(rest)] = yes;
    return Step::next;
  }
  const bool result = mode == Vote::all   ? yes == m
                      : mode == Vote::any ? yes != 0
                                          : yes == m || yes == 0;
  Mask& d = w.pred(i.d);
  d = (d & ~m) | (result ? m : 0);
  return Step::next;
}
Step active_mask(Warp& w, const Instruction& i, Mask m) {
  for (Mask rest = m; rest; rest &= rest - 1) w.reg<u32>(i.d)[__builtin_ctz(rest)] = m;
  return Step::next;
}

// ---- Named barriers of the block. All lanes of a warp arrive together and count as 32 threads.

u32 uniform(Warp& w, u32 reg, Mask m, const char* what) {
  const u32* value = w.reg<u32>(reg);
  const u32 first = value[__builtin_ctz(m)];
  for (Mask rest = m; rest; rest &= rest - 1)
    if (value[__builtin_ctz(rest)] != first)
      fault(w, __builtin_ctz(rest), 719,
            std::string(what) + " differs between the lanes of a warp");
  return first;
}

/// bar.sync a{, b} and bar.arrive a, b; `offset` tells whether a count is given.
template <bool waits>
Step barrier(Warp& w, const Instruction& i, Mask m) {
  if (m != w.live) return Step::wait_lanes;
  Block& block = *w.block;
  const u32 id = uniform(w, i.a, m, "a barrier's number");
  const u32 count = i.offset ? uniform(w, i.b, m, "a barrier's count") : 0;
  if (id >= block.barriers.size())
    fault(w, -1, 719, "barrier " + std::to_string(id) + " does not exist");
  if (count % warp_lanes != 0)
    fault(w, -1, 719, "a barrier's count is no multiple of the warp's size");
  Barrier& b = block.barriers[id];
  if (b.arrived > 0 && b.expected != count)
    fault(w, -1, 719,
          "barrier " + std::to_string(id) + ": counts " + std::to_string(b.expected) + " and " +
              std::to_string(count));
  b.expected = count;
  b.arrived += warp_lanes;
  if (block.races) race_release(w, b.clocks);
  if (waits) {
    b.waiting.push_back(&w);
    w.waiting_at = static_cast<int>(id);
  }
  ++block.epoch;
  return waits ? Step::barrier : Step::next;
}

/// bar.red: adds its predicates when it arrives, takes the result when the barrier has opened.
Step barrier_reduce(Warp& w, const Instruction& i, Mask m) {
  if (m != w.live) return Step::wait_lanes;
  Block& block = *w.block;
  const u32 id = uniform(w, i.a, m, "a barrier's number");
  if (id >= block.barriers.size())
    fault(w, -1, 719, "barrier " + std::to_string(id) + " does not exist");
  if (w.reduced == 2) {
    w.reduced = 0;
    const unsigned yes = w.reduced_yes, threads = w.reduced_threads;
    if ((i.target & 3) == 0) {
      for (Mask rest = m; rest; rest &= rest - 1) w.reg<u32>(i.d)[__builtin_ctz(rest)] = yes;
    } else {
      Mask& d = w.pred(i.d);
      d = (d & ~m) | (((i.target & 3) == 1 ? yes == threads : yes > 0) ? m : 0);
    }
    return Step::next;
  }
  const Mask p = (i.target & 4 ? ~w.pred(i.c) : w.pred(i.c)) & m;
  const Step step = barrier<true>(w, i, m);
  block.barriers[id].yes += static_cast<unsigned>(__builtin_popcount(p));
  block.barriers[id].threads += static_cast<unsigned>(__builtin_popcount(m));
  w.reduced = 1;
  return step == Step::barrier ? Step::barrier_again : step;
}

template <class T, class Op>
Step redux(Warp& w, const Instruction& i, Mask m) {
  if (!all_here(w, w.reg<u32>(i.b), m)) return Step::wait_lanes;
  T r = w.reg<T>(i.a)[__builtin_ctz(m)];
  for (Mask rest = m & (m - 1); rest; rest &= rest - 1)
    r = Op::of(r, w.reg<T>(i.a)[__builtin_ctz(rest)]);
  for (; m; m &= m - 1) w.reg<T>(i.d)[__builtin_ctz(m)] = r;
  return Step::next;
}
struct RAdd {
  template <class T>
  static T of(T a, T b) {
    return static_cast<T>(static_cast<u32>(a) + static_cast<u32>(b));
  }
};
struct RMin {
  template <class T>
  static T of(T a, T b) {
    return std::min(a, b);
  }
};
struct RMax {
  template <class T>
  static T of(T a, T b) {
    return std::max(a, b);
  }
};
struct RAnd {
  template <class T>
  static T of(T a, T b) {
    return a & b;
  }
};
struct ROr {
  template <class T>
  static T of(T a, T b) {
    return a | b;
  }
};
struct RXor {
  template <class T>
  static T of(T a, T b) {
    return a ^ b;
  }
};
template <class T, bool all>
Step match(Warp& w, const Instruction& i, Mask m) {
  if (!all_here(w, w.reg<u32>(i.b), m)) return Step::wait_lanes;
  const T* a = w.reg<T>(i.a);
  Mask same[warp_lanes] = {};
  for (Mask x = m; x; x &= x - 1)
    for (Mask y = m; y; y &= y - 1)
      if (a[__builtin_ctz(x)] == a[__builtin_ctz(y)]) same[__builtin_ctz(x)] |= y & (0 - y);
  const bool equal = same[__builtin_ctz(m)] == m;
  for (Mask x = m; x; x &= x - 1)
    w.reg<u32>(i.d)[__builtin_ctz(x)] = all ? (equal ? m : 0) : same[__builtin_ctz(x)];
  if (i.offset) w.pred(i.e) = (w.pred(i.e) & ~m) | (equal ? m : 0);
  return Step::next;
}
template <class T>
Step clock(Warp& w, const Instruction& i, Mask m) {
  const auto now = std::chrono::duration_cast<std::chrono::nanoseconds>(
                       std::chrono::system_clock::now().time_since_epoch())
                       .count();
  for (; m; m &= m - 1) w.reg<T>(i.d)[__builtin_ctz(m)] = static_cast<T>(now);
  return Step::next;
}
Step no_policy(Warp& w, const Instruction& i, Mask m) {
  for (; m; m &= m - 1) w.reg<u64>(i.d)[__builtin_ctz(m)] = 0;
  return Step::next;
}
enum class In { shared, local, global, parameter };
template <In space>
Step is_space(Warp& w, const Instruction& i, Mask m) {
  Mask yes = 0;
  for (Mask x = m; x; x &= x - 1) {
    const u64 a = w.reg<u64>(i.a)[__builtin_ctz(x)];
    const bool s = a - shared_window < window_bytes, l = a - local_window < window_bytes,
               p = a - parameter_window < window_bytes;
    if (space == In::shared ? s : space == In::local ? l : space == In::parameter ? p : !s && !l)
      yes |= x & (0 - x);
  }
  Mask& d = w.pred(i.d);
  d = (d & ~m) | yes;
  return Step::next;
}

// ---- mbarrier, in the 8 bytes of shared memory.

struct ArrivalBarrier {
  u64 magic : 7, phase : 1, pending : 16, expected : 16;
  std::int64_t bytes : 24;  ///< tx-count
};
static_assert(sizeof(ArrivalBarrier) == 8);
constexpr u64 magic_number = 0x5A;

u64 mbarrier_address(Warp& w, const Instruction& i, int lane, bool narrow, bool generic) {
  u64 address =
      (narrow ? w.reg<u32>(i.a)[lane] : w.reg<u64>(i.a)[lane]) + static_cast<u64>(i.offset);
  if (generic) {
    if (address - shared_window >= window_bytes)
      fault(w, lane, 719, "an mbarrier outside of shared memory");
    address -= shared_window;
  }
  if (address % 8 != 0) fault(w, lane, 716, "misaligned mbarrier");
  return address;
}
ArrivalBarrier read_mbarrier(Warp& w, int lane, u64 address) {
  ArrivalBarrier b;
  std::memcpy(&b, shared_at(w, lane, address, 8), sizeof b);
  if (b.magic != magic_number) fault(w, lane, 719, "mbarrier not initialised");
  return b;
}
void write_mbarrier(Warp& w, int lane, u64 address, ArrivalBarrier b) {
  if (b.pending == 0 && b.bytes == 0) {
    b.phase ^= 1;
    b.pending = b.expected;
    if (w.block->races) race_complete(*w.block, static_cast<u32>(address));
  }
  std::memcpy(shared_at(w, lane, address, 8), &b, sizeof b);
  ++w.block->epoch;
}
void arrive(Warp& w, int lane, u64 address, u32 count, u32 bytes, bool drop = false) {
  ArrivalBarrier b = read_mbarrier(w, lane, address);
  if (count == 0 || count > b.pending)
    fault(w, lane, 719,
          "mbarrier: " + std::to_string(count) + " arrivals, " + std::to_string(b.pending) +
              " pending in this phase");
  if (b.bytes + std::int64_t{bytes} >= 1 << 20)
    fault(w, lane, 719, "mbarrier: the tx-count overflows");
  if (w.block->races) race_arrive(w, static_cast<u32>(address));
  b.bytes += bytes;
  b.pending -= count;
  if (drop) b.expected -= count;
  write_mbarrier(w, lane, address, b);
}

/// What bits of `target` say of an mbarrier instruction.
enum : u32 {
  narrow_address = 1,
  generic_address = 2,
  stores_state = 4,
  has_count = 8,
  expects_bytes = 16,
  waits_for_token = 32,
  drops = 64
};

Step mbarrier_init(Warp& w, const Instruction& i, Mask m) {
  for (Mask rest = m; rest; rest &= rest - 1) {
    const int l = __builtin_ctz(rest);
    const u32 count = w.reg<u32>(i.b)[l];
    if (count == 0 || count > 65535)
      fault(w, l, 719, "mbarrier: a count of " + std::to_string(count));
    ArrivalBarrier b{};
    b.magic = magic_number;
    b.pending = b.expected = count;
    const u64 address =
        mbarrier_address(w, i, l, i.target & narrow_address, i.target & generic_address);
    race_access(w, l, true, address, 8, Access::write);
    std::memcpy(shared_at(w, l, address, 8), &b, sizeof b);
  }
  ++w.block->epoch;
  return Step::next;
}
Step mbarrier_invalidate(Warp& w, const Instruction& i, Mask m) {
  for (Mask rest = m; rest; rest &= rest - 1) {
    const int l = __builtin_ctz(rest);
    const u64 address =
        mbarrier_address(w, i, l, i.target & narrow_address, i.target & generic_address);
    read_mbarrier(w, l, address);
    std::memset(shared_at(w, l, address, 8), 0xFF, 8);
  }
  return Step::next;
}
/// Its state token is the phase before the arrival.
Step mbarrier_arrive(Warp& w, const Instruction& i, Mask m) {
  for (Mask rest = m; rest; rest &= rest - 1) {
    const int l = __builtin_ctz(rest);
    const u64 address =
        mbarrier_address(w, i, l, i.target & narrow_address, i.target & generic_address);
    if (i.target & stores_state) w.reg<u64>(i.d)[l] = read_mbarrier(w, l, address).phase;
    const u32 operand = i.target & (has_count | expects_bytes) ? w.reg<u32>(i.b)[l] : 0;
    arrive(w, l, address, i.target & has_count ? operand : 1,
           i.target & expects_bytes ? operand : 0, i.target & drops);
  }
  return Step::next;
}
template <int sign>
Step mbarrier_tx(Warp& w, const Instruction& i, Mask m) {
  for (Mask rest = m; rest; rest &= rest - 1) {
    const int l = __builtin_ctz(rest);
    const u64 address =
        mbarrier_address(w, i, l, i.target & narrow_address, i.target & generic_address);
    ArrivalBarrier b = read_mbarrier(w, l, address);
    b.bytes += sign * std::int64_t{w.reg<u32>(i.b)[l]};
    write_mbarrier(w, l, address, b);
  }
  return Step::next;
}
/// True when the phase of the given parity is complete. Otherwise other warps run first, and copies
/// land.
Step mbarrier_wait(Warp& w, const Instruction& i, Mask m) {
  Mask done = 0;
  for (Mask rest = m; rest; rest &= rest - 1) {
    const int l = __builtin_ctz(rest);
    const u64 address =
        mbarrier_address(w, i, l, i.target & narrow_address, i.target & generic_address);
    const u64 parity = (i.target & waits_for_token ? w.reg<u64>(i.b)[l] : w.reg<u32>(i.b)[l]) & 1;
    if (read_mbarrier(w, l, address).phase == parity && (*w.block->random)() % 2)
      land_bulk_load(*w.block, *w.block->random, static_cast<u32>(address));
    if (read_mbarrier(w, l, address).phase == parity) continue;
    done |= Mask{1} << l;
    if (w.block->races) race_wait(w, static_cast<u32>(address));
  }
  Mask& d = w.pred(i.d);
  d = (d & ~m) | done;
  return done == m ? Step::next : Step::yield;
}
/// cp.async.mbarrier.arrive: the lane's copies so far land, then it arrives. Without .noinc the
/// pending count grows first.
template <bool counts>
Step copy_arrive(Warp& w, const Instruction& i, Mask m) {
  for (Mask rest = m; rest; rest &= rest - 1) {
    const int l = __builtin_ctz(rest);
    const u64 address =
        mbarrier_address(w, i, l, i.target & narrow_address, i.target & generic_address);
    if (counts) {
      ArrivalBarrier b = read_mbarrier(w, l, address);
      ++b.pending;
      std::memcpy(shared_at(w, l, address, 8), &b, sizeof b);
    }
    w.copy_arrivals.push_back({l, static_cast<u32>(address),
                               static_cast<std::size_t>(std::count_if(
                                   w.copies.begin(), w.copies.end(),
                                   [&](const PendingCopy& c) { return c.lane == l; }))});
  }
  ++w.block->epoch;
  return Step::next;
}

Run find_mbarrier(const Form& f) {
  if (f.words[0] == "cp") return f.has("noinc") ? copy_arrive<false> : copy_arrive<true>;
  if (f.has("noComplete")) return nullptr;
  if (f.has("init")) return mbarrier_init;
  if (f.has("inval")) return mbarrier_invalidate;
  if (f.has("arrive") || f.has("arrive_drop")) return mbarrier_arrive;
  if (f.has("expect_tx")) return mbarrier_tx<1>;
  if (f.has("complete_tx")) return mbarrier_tx<-1>;
  if (f.has("try_wait") || f.has("test_wait")) return mbarrier_wait;
  return nullptr;
}

// ---- printf and assert

template <class T>
T argument(Warp& w, const Instruction& i, int lane, u32 n) {
  const std::size_t size = w.block->program->call_parameter_bytes;
  T value;
  std::memcpy(&value,
              w.call_parameters.data() + static_cast<std::size_t>(lane) * size +
                  w.block->program->lists[i.list + n],
              sizeof value);
  return value;
}
std::string string_at(Warp& w, int lane, u64 address) {
  std::string text;
  for (; text.size() < 4096; ++address) {
    const char c = static_cast<char>(*generic_at(w, lane, address, 1));
    if (c == 0) break;
    text += c;
  }
  return text;
}
std::string formatted(Warp& w, int lane, const std::string& format, u64 arguments) {
  std::string out;
  const auto take = [&](auto& value) {
    arguments = (arguments + sizeof value - 1) / sizeof value * sizeof value;
    std::memcpy(&value, generic_at(w, lane, arguments, sizeof value), sizeof value);
    arguments += sizeof value;
  };
  for (std::size_t n = 0; n < format.size(); ++n) {
    if (format[n] != '%') {
      out += format[n];
      continue;
    }
    std::string spec = "%";
    bool wide = false;
    for (++n; n < format.size() && !std::strchr("diouxXeEfFgGaAcsp%", format[n]); ++n) {
      if (format[n] == 'l' || format[n] == 'z' || format[n] == 'j' || format[n] == 't') wide = true;
      else if (format[n] == '*') {
        int width;
        take(width);
        spec += std::to_string(width);
      } else if (format[n] != 'h') spec += format[n];
    }
    if (n >= format.size()) break;
    const char kind = format[n];
    char text[512] = "";
    if (kind == '%') {
      out += '%';
    } else if (kind == 's') {
      u64 address;
      take(address);
      out += string_at(w, lane, address);
    } else if (std::strchr("eEfFgGaA", kind)) {
      double value;
      take(value);
      std::snprintf(text, sizeof text, (spec + kind).c_str(), value);
    } else if (kind == 'p' || wide) {
      u64 value;
      take(value);
      std::snprintf(text, sizeof text,
                    (spec + (kind == 'p' ? "#llx" : std::string("ll") + kind)).c_str(), value);
    } else {
      u32 value;
      take(value);
      std::snprintf(text, sizeof text, (spec + kind).c_str(), value);
    }
    out += text;
  }
  return out;
}
Step print(Warp& w, const Instruction& i, Mask m) {
  for (; m; m &= m - 1) {
    const int l = __builtin_ctz(m);
    const std::string text =
        formatted(w, l, string_at(w, l, argument<u64>(w, i, l, 0)), argument<u64>(w, i, l, 1));
    std::fwrite(text.data(), 1, text.size(), stdout);
  }
  return Step::next;
}
Step fail_assertion(Warp& w, const Instruction& i, Mask m) {
  const int l = __builtin_ctz(m);
  fault(w, l, 710,
        string_at(w, l, argument<u64>(w, i, l, 1)) + ":" +
            std::to_string(argument<u32>(w, i, l, 2)) + ": " +
            string_at(w, l, argument<u64>(w, i, l, 3)) + ": assertion `" +
            string_at(w, l, argument<u64>(w, i, l, 0)) + "' failed");
}

// ---- Clusters of one block

/// All threads of the block, as barrier.cluster.arrive and .wait.
Step cluster_arrive(Warp& w, const Instruction&, Mask m) {
  if (m != w.live) return Step::wait_lanes;
  if (w.cluster_arrived)
    fault(w, -1, 719, "two arrivals without a barrier.cluster.wait between them");
  w.cluster_arrived = true;
  w.cluster_phase = w.block->cluster_phase;
  ++w.block->cluster_arrived;
  ++w.block->epoch;
  if (w.block->races) race_release(w, w.block->cluster_clocks);
  return Step::next;
}
Step cluster_wait(Warp& w, const Instruction&, Mask m) {
  if (m != w.live) return Step::wait_lanes;
  Block& b = *w.block;
  if (!w.cluster_arrived) fault(w, -1, 719, "barrier.cluster.wait without an arrival");
  if (b.cluster_phase == w.cluster_phase) {
    unsigned missing = 0;
    for (const auto& other : b.warps) missing += other.live && !other.cluster_arrived;
    if (missing > 0) return Step::retry;
    ++b.cluster_phase;
    ++b.epoch;
  }
  w.cluster_arrived = false;
  if (b.races) race_acquire(w, b.cluster_clocks);
  return Step::next;
}
template <class T>
Step map_address(Warp& w, const Instruction& i, Mask m) {
  for (; m; m &= m - 1) {
    const int l = __builtin_ctz(m);
    if (w.reg<u32>(i.b)[l] != 0)
      fault(w, l, 719, "block " + std::to_string(w.reg<u32>(i.b)[l]) + " of a cluster of one");
    w.reg<T>(i.d)[l] = w.reg<T>(i.a)[l];
  }
  return Step::next;
}
Step elect(Warp& w, const Instruction& i, Mask m) {
  if (!all_here(w, w.reg<u32>(i.a), m)) return Step::wait_lanes;
  const int leader = __builtin_ctz(m);
  for (Mask rest = m; rest; rest &= rest - 1)
    w.reg<u32>(i.d)[__builtin_ctz(rest)] = static_cast<u32>(leader);
  Mask& p = w.pred(i.e);
  p = (p & ~m) | Mask{1} << leader;
  return Step::next;
}

}  // namespace

void complete_tx(Warp& w, int lane, std::uint32_t address, std::uint32_t bytes) {
  if (address % 8 != 0) fault(w, lane, 716, "misaligned mbarrier");
  ArrivalBarrier b = read_mbarrier(w, lane, address);
  b.bytes -= bytes;
  write_mbarrier(w, lane, address, b);
}
void arrive_for_copies(Warp& w, int lane, std::uint32_t mbarrier) {
  arrive(w, lane, mbarrier, 1, 0);
}

Run find_control(const Form& f) {
  const auto op = f.words[0];
  if (op == "bra") return branch;
  if (op == "ret" || op == "exit") return end;
  if (op == "trap") return trap;
  if (op == "fence" && f.has("proxy") && f.has("async")) return proxy_fence;
  if (op == "membar" || op == "fence" || op == "setmaxnreg" || op == "nanosleep" ||
      op == "prefetch" || op == "prefetchu" || op == "discard" || op == "applypriority" ||
      op == "griddepcontrol")
    return nothing;
  if (op == "bar" || op == "barrier") {
    if (f.has("warp")) return warp_barrier;
    if (f.has("cluster"))
      return f.has("arrive") ? cluster_arrive : f.has("wait") ? cluster_wait : nullptr;
    if (f.has("red")) return barrier_reduce;
    return f.has("arrive") ? barrier<false> : f.has("sync") ? barrier<true> : nullptr;
  }
  if (op == "shfl" && f.type().bytes == 4) {
    if (f.has("up")) return shuffle<Shuffle::up>;
    if (f.has("down")) return shuffle<Shuffle::down>;
    if (f.has("bfly")) return shuffle<Shuffle::butterfly>;
    if (f.has("idx")) return shuffle<Shuffle::index>;
  }
  if (op == "vote") {
    if (f.has("ballot")) return vote<Vote::ballot>;
    if (f.has("all")) return vote<Vote::all>;
    if (f.has("any")) return vote<Vote::any>;
    if (f.has("uni")) return vote<Vote::uni>;
  }
  if (op == "activemask") return active_mask;
  if (op == "mbarrier" || op == "cp") return find_mbarrier(f);
  if (op == "redux" && f.type().bytes == 4) {
    const bool is_signed = f.type().kind == Kind::sint;
    if (f.type().kind == Kind::real) return nullptr;
    if (f.has("add")) return redux<u32, RAdd>;
    if (f.has("min")) return is_signed ? redux<std::int32_t, RMin> : redux<u32, RMin>;
    if (f.has("max")) return is_signed ? redux<std::int32_t, RMax> : redux<u32, RMax>;
    return f.has("and") ? redux<u32, RAnd> : f.has("or") ? redux<u32, ROr> : redux<u32, RXor>;
  }
  if (op == "match") {
    if (f.type().bytes == 4) return f.has("all") ? match<u32, true> : match<u32, false>;
    return f.has("all") ? match<u64, true> : match<u64, false>;
  }
  if (op == "clock") return f.type().bytes == 4 ? clock<u32> : clock<u64>;
  if (op == "createpolicy") return no_policy;
  if (op == "isspacep")
    return f.has("global")  ? is_space<In::global>
           : f.has("local") ? is_space<In::local>
           : f.has("param") ? is_space<In::parameter>
                            : is_space<In::shared>;
  if (op == "vprintf") return print;
  if (op == "__assertfail") return fail_assertion;
  if (op == "elect") return elect;
  if (op == "mapa") return f.type().bytes == 4 ? map_address<u32> : map_address<u64>;
  return nullptr;
}

}  // namespace softcuda
