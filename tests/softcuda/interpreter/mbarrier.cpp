#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>

#include "tests/softcuda/interpreter/machine.hpp"

// mbarriers, in 8 bytes of shared memory, and the copies that arrive at them.

namespace softcuda {
namespace {

using u32 = std::uint32_t;
using u64 = std::uint64_t;

struct ArrivalBarrier {
  u64 magic : 7, phase : 1, pending : 16, expected : 16;
  std::int64_t bytes : 24;  ///< tx-count
};
static_assert(sizeof(ArrivalBarrier) == 8);
constexpr u64 magic_number = 0x5A;

u64 mbarrier_address(Warp& w, const Instruction& i, int lane) {
  u64 address = static_cast<u64>(i.offset);
  address +=
      i.target & MbarrierFlag::narrow_address ? w.reg<u32>(i.a)[lane] : w.reg<u64>(i.a)[lane];
  if (i.target & MbarrierFlag::generic_address) {
    if (address - shared_window >= window_bytes) {
      fault(w, lane, 719, "an mbarrier outside of shared memory");
    }
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

Step mbarrier_init(Warp& w, const Instruction& i, Mask m) {
  for (Mask rest = m; rest; rest &= rest - 1) {
    const int l = __builtin_ctz(rest);
    const u32 count = w.reg<u32>(i.b)[l];
    if (count == 0 || count > 65535)
      fault(w, l, 719, "mbarrier: a count of " + std::to_string(count));
    ArrivalBarrier b{};
    b.magic = magic_number;
    b.pending = b.expected = count;
    const u64 address = mbarrier_address(w, i, l);
    race_access(w, l, true, address, 8, Access::write);
    std::memcpy(shared_at(w, l, address, 8), &b, sizeof b);
  }
  ++w.block->epoch;
  return Step::next;
}
Step mbarrier_invalidate(Warp& w, const Instruction& i, Mask m) {
  for (Mask rest = m; rest; rest &= rest - 1) {
    const int l = __builtin_ctz(rest);
    const u64 address = mbarrier_address(w, i, l);
    read_mbarrier(w, l, address);
    std::memset(shared_at(w, l, address, 8), 0xFF, 8);
  }
  return Step::next;
}
/// Its state token is the phase before the arrival.
Step mbarrier_arrive(Warp& w, const Instruction& i, Mask m) {
  for (Mask rest = m; rest; rest &= rest - 1) {
    const int l = __builtin_ctz(rest);
    const u64 address = mbarrier_address(w, i, l);
    if (i.target & MbarrierFlag::stores_state)
      w.reg<u64>(i.d)[l] = read_mbarrier(w, l, address).phase;
    const u32 operand =
        i.target & (MbarrierFlag::has_count | MbarrierFlag::expects_bytes) ? w.reg<u32>(i.b)[l] : 0;
    arrive(w, l, address, i.target & MbarrierFlag::has_count ? operand : 1,
           i.target & MbarrierFlag::expects_bytes ? operand : 0, i.target & MbarrierFlag::drops);
  }
  return Step::next;
}
template <int sign>
Step mbarrier_tx(Warp& w, const Instruction& i, Mask m) {
  for (Mask rest = m; rest; rest &= rest - 1) {
    const int l = __builtin_ctz(rest);
    const u64 address = mbarrier_address(w, i, l);
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
    const u64 address = mbarrier_address(w, i, l);
    const u64 parity =
        (i.target & MbarrierFlag::waits_for_token ? w.reg<u64>(i.b)[l] : w.reg<u32>(i.b)[l]) & 1;
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
    const u64 address = mbarrier_address(w, i, l);
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

}  // namespace softcuda
