#include <algorithm>
#include <chrono>
#include <cstring>

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

// ---- Clusters of one block

/// All threads of the block, as barrier.cluster.arrive and .wait.
Step cluster_arrive(Warp& w, const Instruction&, Mask m) {
  if (m != w.live) return Step::wait_lanes;
  if (w.cluster_arrived)
    fault(w, -1, 719, "two arrivals without a barrier.cluster.wait between them");
  w.cluster_arrived = true;
  w.cluster_phase = w.block->cluster_phase;
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

Run find_barrier(const Form& f) {
  if (f.has("warp")) return warp_barrier;
  if (f.has("cluster")) {
    return f.has("arrive") ? cluster_arrive : f.has("wait") ? cluster_wait : nullptr;
  }
  if (f.has("red")) return barrier_reduce;
  return f.has("arrive") ? barrier<false> : f.has("sync") ? barrier<true> : nullptr;
}

Run find_shuffle(const Form& f) {
  if (f.type().bytes != 4) return nullptr;
  if (f.has("up")) return shuffle<Shuffle::up>;
  if (f.has("down")) return shuffle<Shuffle::down>;
  if (f.has("bfly")) return shuffle<Shuffle::butterfly>;
  return f.has("idx") ? shuffle<Shuffle::index> : nullptr;
}

Run find_vote(const Form& f) {
  if (f.has("ballot")) return vote<Vote::ballot>;
  if (f.has("all")) return vote<Vote::all>;
  if (f.has("any")) return vote<Vote::any>;
  return f.has("uni") ? vote<Vote::uni> : nullptr;
}

Run find_redux(const Form& f) {
  if (f.type().bytes != 4 || f.type().kind == Kind::real) return nullptr;
  const bool is_signed = f.type().kind == Kind::sint;
  if (f.has("add")) return redux<u32, RAdd>;
  if (f.has("min")) return is_signed ? redux<std::int32_t, RMin> : redux<u32, RMin>;
  if (f.has("max")) return is_signed ? redux<std::int32_t, RMax> : redux<u32, RMax>;
  return f.has("and") ? redux<u32, RAnd> : f.has("or") ? redux<u32, ROr> : redux<u32, RXor>;
}

Run find_match(const Form& f) {
  if (f.type().bytes == 4) return f.has("all") ? match<u32, true> : match<u32, false>;
  return f.has("all") ? match<u64, true> : match<u64, false>;
}

Run find_space_test(const Form& f) {
  return f.has("global")  ? is_space<In::global>
         : f.has("local") ? is_space<In::local>
         : f.has("param") ? is_space<In::parameter>
                          : is_space<In::shared>;
}

}  // namespace

Run find_control(const Form& f) {
  static constexpr std::string_view without_effect[] = {
      "membar",    "fence",   "setmaxnreg",    "nanosleep",     "prefetch",
      "prefetchu", "discard", "applypriority", "griddepcontrol"};
  const auto op = f.words[0];
  const bool wide = f.type().bytes != 4;
  if (op == "bra") return branch;
  if (op == "ret" || op == "exit") return end;
  if (op == "trap") return trap;
  if (op == "fence" && f.has("proxy") && f.has("async")) return proxy_fence;
  for (const auto name : without_effect) {
    if (op == name) return nothing;
  }
  if (op == "bar" || op == "barrier") return find_barrier(f);
  if (op == "shfl") return find_shuffle(f);
  if (op == "vote") return find_vote(f);
  if (op == "activemask") return active_mask;
  if (op == "mbarrier" || op == "cp") return find_mbarrier(f);
  if (op == "redux") return find_redux(f);
  if (op == "match") return find_match(f);
  if (op == "clock") return wide ? clock<u64> : clock<u32>;
  if (op == "createpolicy") return no_policy;
  if (op == "isspacep") return find_space_test(f);
  if (op == "elect") return elect;
  if (op == "mapa") return wide ? map_address<u64> : map_address<u32>;
  return nullptr;
}

}  // namespace softcuda
