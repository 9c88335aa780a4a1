#include <algorithm>
#include <cstring>

#include "tests/softcuda/interpreter/machine.hpp"

// cp.async.

namespace softcuda {
namespace {

/// cp.async to, from, bytes{, valid}: is only noted. The bytes land when the lane waits for them.
template <class ToAddress, class FromAddress, bool partial>
Step copy_async(Warp& w, const Instruction& i, Mask m) {
  std::uint64_t to[warp_lanes];
  std::size_t bytes = 0;
  each_lane(m, [&](int l) {
    PendingCopy copy;
    copy.to =
        static_cast<std::uint32_t>(w.reg<ToAddress>(i.a)[l] + static_cast<std::uint64_t>(i.offset));
    copy.from = w.reg<FromAddress>(i.b)[l] +
                static_cast<std::uint64_t>(static_cast<std::int32_t>(i.target));
    copy.bytes = w.reg<std::uint32_t>(i.c)[l];
    copy.valid = partial ? w.reg<std::uint32_t>(i.e)[l] : copy.bytes;
    copy.lane = l;
    copy.group = w.copy_group[static_cast<std::size_t>(l)];
    if (copy.bytes != 4 && copy.bytes != 8 && copy.bytes != 16)
      fault(w, l, 719, "cp.async of " + std::to_string(copy.bytes) + " bytes");
    if (copy.valid > copy.bytes) fault(w, l, 719, "cp.async: the source's size exceeds the copy's");
    race_access(w, l, true, copy.to, copy.bytes, Access::write);
    if (copy.valid > 0) race_access(w, l, false, copy.from, copy.valid, Access::read);
    // Faults show where they are made. Until the bytes land, nobody can count on what was there.
    check_aligned(w, l, copy.to, copy.bytes);
    std::memset(shared_at(w, l, copy.to, copy.bytes), 0xFF, copy.bytes);
    if (copy.from % copy.bytes != 0) fault(w, l, 716, "cp.async from a misaligned address");
    if (copy.valid > 0) global_at(w, l, copy.from, copy.valid);
    w.copies.push_back(copy);
    to[l] = copy.to;
    bytes = copy.bytes;
  });
  count_banks(w, i, m, to, bytes);
  return Step::next;
}
Step copy_commit(Warp& w, const Instruction&, Mask m) {
  each_lane(m, [&](int l) { ++w.copy_group[static_cast<std::size_t>(l)]; });
  return Step::next;
}
Step copy_wait(Warp& w, const Instruction& i, Mask m) {
  land_copies(w, m, static_cast<std::uint64_t>(i.offset));
  return Step::next;
}
Step copy_wait_all(Warp& w, const Instruction& i, Mask m) {
  copy_commit(w, i, m);
  land_copies(w, m, 0);
  return Step::next;
}

void land_copy(Warp& w, const PendingCopy& c) {
  std::byte* to = shared_at(w, c.lane, c.to, c.bytes);
  if (c.valid > 0) std::memcpy(to, global_at(w, c.lane, c.from, c.valid), c.valid);
  std::memset(to + c.valid, 0, c.bytes - c.valid);
  if (w.block->program->async_proxy) note_written(w, c.to, c.bytes);
}

}  // namespace

void land_copies(Warp& w, Mask m, std::uint64_t groups_left) {
  if (w.copies.empty() && w.copy_arrivals.empty()) return;
  while (!w.copy_arrivals.empty()) land_copy_arrivals(w);
  std::erase_if(w.copies, [&](const PendingCopy& c) {
    const std::uint64_t committed = w.copy_group[static_cast<std::size_t>(c.lane)];
    if (!(m >> c.lane & 1) || c.group + groups_left >= committed) return false;
    land_copy(w, c);
    return true;
  });
}

bool land_copy_arrivals(Warp& w) {
  if (w.copy_arrivals.empty()) return false;
  const auto arrival = w.copy_arrivals.front();
  w.copy_arrivals.erase(w.copy_arrivals.begin());
  std::size_t left = arrival.copies;
  std::erase_if(w.copies, [&](const PendingCopy& c) {
    if (c.lane != arrival.lane || left == 0) return false;
    --left;
    land_copy(w, c);
    return true;
  });
  for (auto& other : w.copy_arrivals)
    if (other.lane == arrival.lane) other.copies -= std::min(other.copies, arrival.copies);
  arrive_for_copies(w, arrival.lane, arrival.mbarrier);
  return true;
}

Run find_copy(const Form& f, bool partial, int address_bytes) {
  if (f.has("commit_group")) return copy_commit;
  if (f.has("wait_group")) return copy_wait;
  if (f.has("wait_all")) return copy_wait_all;
  if (address_bytes == 4)
    return partial ? copy_async<std::uint32_t, std::uint64_t, true>
                   : copy_async<std::uint32_t, std::uint64_t, false>;
  return partial ? copy_async<std::uint64_t, std::uint64_t, true>
                 : copy_async<std::uint64_t, std::uint64_t, false>;
}

}  // namespace softcuda
