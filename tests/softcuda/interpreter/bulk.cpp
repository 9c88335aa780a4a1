#include <algorithm>
#include <cstring>

#include "tests/softcuda/halves.hpp"
#include "tests/softcuda/interpreter/machine.hpp"

// The bulk copies of the async proxy: cp.async.bulk and cp.reduce.async.bulk, with and without a
// tensor map. A load lands when a wait for its mbarrier needs it, or at a random time before. A
// store reads shared memory when a wait needs that, not before.

namespace softcuda {
namespace {

using u16 = std::uint16_t;
using u32 = std::uint32_t;
using u64 = std::uint64_t;

u64 swizzled(u64 a, int swizzle) { return a ^ ((a >> 7 & ((1U << swizzle) - 1)) << 4); }

/// Calls f(byte in the box, bytes, global address) for the part of each row of the box that lies in
/// the tensor.
template <class F>
void over_rows(const BulkCopy& c, F&& f) {
  const TensorMap& m = c.map;
  const u32 e = m.element_bytes();
  const std::int64_t first = std::max<std::int64_t>(0, -std::int64_t{c.at[0]});
  const std::int64_t last =
      std::min<std::int64_t>(m.box[0], static_cast<std::int64_t>(m.dims[0]) - c.at[0]);
  u32 rows = 1;
  for (int d = 1; d < m.rank; ++d) rows *= m.box[d];
  for (u32 row = 0; row < rows; ++row) {
    u64 address = m.address;
    u32 rest = row;
    bool inside = first < last;
    for (int d = 1; d < m.rank; ++d) {
      const std::int64_t at = std::int64_t{c.at[static_cast<std::size_t>(d)]} + rest % m.box[d];
      rest /= m.box[d];
      inside &= at >= 0 && at < static_cast<std::int64_t>(m.dims[d]);
      address += static_cast<u64>(at) * m.strides[d - 1];
    }
    if (!inside) continue;
    address += static_cast<u64>(c.at[0] + first) * e;
    f(row * m.box[0] * e + static_cast<u32>(first) * e, static_cast<u32>(last - first) * e,
      address);
  }
}

/// The warp that issued a copy, which faults as that instruction.
struct As {
  Warp& w;
  const Instruction* before;
  As(Block& b, const BulkCopy& c) : w(b.warps[static_cast<std::size_t>(c.warp)]), before(w.now) {
    w.now = c.instruction;
  }
  ~As() { w.now = before; }
};

/// Copies between the box in shared memory, which is swizzled, and dense bytes.
void swizzle_copy(Warp& w, const BulkCopy& c, std::byte* dense, bool to_shared) {
  const int swizzle = c.tensor ? c.map.swizzle : 0;
  for (u32 at = 0; at < c.bytes; at += 16) {
    const u32 n = std::min(16U, c.bytes - at);
    std::byte* shared = shared_at(w, c.lane, swizzled(c.shared + u64{at}, swizzle), n);
    to_shared ? std::memcpy(shared, dense + at, n) : std::memcpy(dense + at, shared, n);
  }
}

void land_load(Block& b, const BulkCopy& c) {
  const As as(b, c);
  std::vector<std::byte> dense(c.bytes);
  if (!c.tensor) {
    std::memcpy(dense.data(), global_at(as.w, c.lane, c.global, c.bytes), c.bytes);
  } else {
    const u32 e = c.map.element_bytes();
    if (c.map.nan_fill)
      for (u32 n = 0; n < c.bytes; n += e) std::memset(&dense[n], 0xFF, e);
    over_rows(c, [&](u32 at, u32 bytes, u64 address) {
      std::memcpy(&dense[at], global_at(as.w, c.lane, address, bytes), bytes);
    });
  }
  swizzle_copy(as.w, c, dense.data(), true);
  complete_tx(as.w, c.lane, c.mbarrier, c.bytes);
}

template <class T>
T combine(Reduction op, T a, T b) {
  switch (op) {
    case Reduction::add: return static_cast<T>(a + b);
    case Reduction::min: return std::min(a, b);
    case Reduction::max: return std::max(a, b);
    default: break;
  }
  if constexpr (std::is_integral_v<T>) {
    if (op == Reduction::bit_and) return a & b;
    if (op == Reduction::bit_or) return a | b;
    if (op == Reduction::bit_xor) return a ^ b;
  }
  return b;
}
template <class T>
void combine_all(Reduction op, std::byte* to, const std::byte* from, u32 bytes) {
  for (u32 n = 0; n < bytes; n += sizeof(T)) {
    T a, b;
    std::memcpy(&a, to + n, sizeof(T));
    std::memcpy(&b, from + n, sizeof(T));
    a = combine(op, a, b);
    std::memcpy(to + n, &a, sizeof(T));
  }
}
template <bool bf16>
void combine_halves(Reduction op, std::byte* to, const std::byte* from, u32 bytes) {
  for (u32 n = 0; n < bytes; n += 2) {
    u16 a, b;
    std::memcpy(&a, to + n, 2);
    std::memcpy(&b, from + n, 2);
    a = narrow<bf16>(combine(op, widen<bf16>(a), widen<bf16>(b)));
    std::memcpy(to + n, &a, 2);
  }
}
void write_back(const BulkCopy& c, std::byte* to, const std::byte* from, u32 bytes) {
  if (c.reduction == Reduction::none) {
    std::memcpy(to, from, bytes);
    return;
  }
  switch (c.tensor ? c.map.type : c.type) {  // CUtensorMapDataType
    case 0: return combine_all<std::uint8_t>(c.reduction, to, from, bytes);
    case 1: return combine_all<u16>(c.reduction, to, from, bytes);
    case 2: return combine_all<u32>(c.reduction, to, from, bytes);
    case 3: return combine_all<std::int32_t>(c.reduction, to, from, bytes);
    case 4: return combine_all<u64>(c.reduction, to, from, bytes);
    case 5: return combine_all<std::int64_t>(c.reduction, to, from, bytes);
    case 6: return combine_halves<false>(c.reduction, to, from, bytes);
    case 8: return combine_all<double>(c.reduction, to, from, bytes);
    case 9: return combine_halves<true>(c.reduction, to, from, bytes);
    default: return combine_all<float>(c.reduction, to, from, bytes);
  }
}

void capture(Warp& w, BulkCopy& c) {
  if (!c.data.empty()) return;
  const As as(*w.block, c);
  c.data.resize(c.bytes);
  swizzle_copy(w, c, c.data.data(), false);
}
void land_store(Warp& w, BulkCopy& c) {
  capture(w, c);
  const As as(*w.block, c);
  const AtomicGuard guard(w);
  if (!c.tensor)
    return write_back(c, global_at(w, c.lane, c.global, c.bytes), c.data.data(), c.bytes);
  over_rows(c, [&](u32 at, u32 bytes, u64 address) {
    write_back(c, global_at(w, c.lane, address, bytes), &c.data[at], bytes);
  });
}

u64 operand(const Warp& w, const u32* triple, int lane) {
  const u64 base = triple[1] == 4 ? w.reg<u32>(triple[0])[lane] : w.reg<u64>(triple[0])[lane];
  return base + static_cast<u64>(std::int64_t{static_cast<std::int32_t>(triple[2])});
}

/// The instruction's list holds three addresses (in shared memory, in global memory or of the
/// tensor map, of the mbarrier) of three words each (register, its bytes, offset), the register of
/// the size, and those of the coordinates. Its target holds: 1 store, 2 tensor, from bit 4 the
/// reduction, from bit 8 the type.
BulkCopy copy_of(Warp& w, const Instruction& i, int lane) {
  BulkCopy c;
  c.instruction = &i;
  c.warp = w.index;
  c.lane = lane;
  c.store = i.target & 1;
  c.tensor = i.target & 2;
  c.reduction = static_cast<Reduction>(i.target >> 4 & 15);
  c.type = static_cast<std::uint8_t>(i.target >> 8);
  c.shared = static_cast<u32>(operand(w, w.block->program->lists.data() + i.list, lane));
  return c;
}

/// Reads the tensor map and the coordinates, and checks them.
void find_box(Warp& w, const Instruction& i, BulkCopy& c) {
  const u32* list = w.block->program->lists.data() + i.list;
  const u64 map = operand(w, list + 3, c.lane);
  if (map % 64 != 0) fault(w, c.lane, 716, "a tensor map must be aligned to 64 bytes");
  std::memcpy(&c.map, generic_at(w, c.lane, map, 128), sizeof c.map);
  if (c.map.magic != TensorMap::magic_number) {
    fault(w, c.lane, 719, "that is no tensor map (of cuTensorMapEncodeTiled)");
  }
  const u32 coordinates = i.list_size - 10;
  if (c.map.rank != coordinates) {
    fault(w, c.lane, 719,
          "a tensor map of rank " + std::to_string(c.map.rank) + " with " +
              std::to_string(coordinates) + " coordinates");
  }
  for (u32 d = 0; d < coordinates; ++d) c.at[d] = w.reg<std::int32_t>(list[10 + d])[c.lane];
  c.bytes = c.map.box_bytes();
  if (c.shared % 128 != 0) {
    fault(w, c.lane, 716,
          "a tensor's box in shared memory must be aligned to 128 bytes: " +
              std::to_string(c.shared));
  }
  over_rows(c, [&](u32, u32 bytes, u64 address) { global_at(w, c.lane, address, bytes); });
}

/// Reads the address and the size of a copy without a tensor map, and checks them.
void find_range(Warp& w, const Instruction& i, BulkCopy& c) {
  const u32* list = w.block->program->lists.data() + i.list;
  c.global = operand(w, list + 3, c.lane);
  c.bytes = w.reg<u32>(list[9])[c.lane];
  if (c.shared % 16 != 0 || c.global % 16 != 0 || c.bytes % 16 != 0) {
    fault(w, c.lane, 716, "addresses and size of a bulk copy must be multiples of 16");
  }
  if (c.bytes == 0) fault(w, c.lane, 719, "a bulk copy of nothing");
  global_at(w, c.lane, c.global, c.bytes);
}

void require_fence(const Warp& w, const BulkCopy& c) {
  for (u32 at = c.shared; at < c.shared + c.bytes; at += 16) {
    if (!w.block->unfenced[(at - shared_base) / 16]) continue;
    fault(w, c.lane, 719,
          std::string(c.store ? "reads" : "overwrites") + " shared memory at " +
              std::to_string(at) + ", which was written without a fence.proxy.async since");
  }
}

Step bulk(Warp& w, const Instruction& i, Mask m) {
  const u32* list = w.block->program->lists.data() + i.list;
  for (Mask rest = m; rest; rest &= rest - 1) {
    const int l = __builtin_ctz(rest);
    BulkCopy c = copy_of(w, i, l);
    c.tensor ? find_box(w, i, c) : find_range(w, i, c);
    std::byte* shared = shared_at(w, l, c.shared, c.bytes);
    require_fence(w, c);
    if (c.store) {
      race_access(w, l, true, c.shared, c.bytes, Access::read);
      c.group = w.bulk_group[static_cast<std::size_t>(l)];
      w.bulk_stores.push_back(std::move(c));
    } else {
      c.mbarrier = static_cast<u32>(operand(w, list + 6, l));
      race_access(w, l, true, c.shared, c.bytes, Access::async_write);
      std::memset(shared, 0xFF, c.bytes);  // until it lands nobody can count on what was there
      w.block->bulk_loads.push_back(std::move(c));
    }
  }
  ++w.block->epoch;
  return Step::next;
}
Step bulk_commit(Warp& w, const Instruction&, Mask m) {
  for (; m; m &= m - 1) ++w.bulk_group[static_cast<std::size_t>(__builtin_ctz(m))];
  return Step::next;
}
template <bool reading_only>
Step bulk_wait(Warp& w, const Instruction& i, Mask m) {
  std::erase_if(w.bulk_stores, [&](BulkCopy& c) {
    if (!(m >> c.lane & 1) ||
        c.group + static_cast<u64>(i.offset) >= w.bulk_group[static_cast<std::size_t>(c.lane)])
      return false;
    reading_only ? capture(w, c) : land_store(w, c);
    return !reading_only;
  });
  return Step::next;
}
Step no_operation(Warp&, const Instruction&, Mask) { return Step::next; }

}  // namespace

bool land_bulk_load(Block& b, std::mt19937& random, std::uint32_t mbarrier) {
  std::size_t chosen = b.bulk_loads.size(), seen = 0;
  for (std::size_t n = 0; n < b.bulk_loads.size(); ++n)
    if ((mbarrier == 0 || b.bulk_loads[n].mbarrier == mbarrier) && random() % ++seen == 0)
      chosen = n;
  if (chosen == b.bulk_loads.size()) return false;
  const BulkCopy c = std::move(b.bulk_loads[chosen]);
  b.bulk_loads.erase(b.bulk_loads.begin() + static_cast<std::ptrdiff_t>(chosen));
  land_load(b, c);
  ++b.epoch;
  return true;
}

void end_bulk(Warp& w, Mask ended) {
  for (auto& c : w.bulk_stores) {
    if (!(ended >> c.lane & 1)) continue;
    if (c.data.empty()) {
      const As as(*w.block, c);
      fault(w, c.lane, 719,
            "the thread ends before a cp.async.bulk.wait_group{.read} for this store, which still "
            "reads shared memory");
    }
    land_store(w, c);
  }
  std::erase_if(w.bulk_stores, [&](const BulkCopy& c) { return ended >> c.lane & 1; });
}

void check_bulk_at_end(Block& b) {
  if (b.bulk_loads.empty()) return;
  const BulkCopy c = b.bulk_loads.front();
  const As as(b, c);
  fault(as.w, c.lane, 719, "the block ends while this copy into its shared memory is under way");
}

Run find_bulk(const Form& f) {
  if (f.has("prefetch")) return no_operation;
  if (f.has("commit_group")) return bulk_commit;
  if (f.has("wait_group")) return f.has("read") ? bulk_wait<true> : bulk_wait<false>;
  for (const auto word : f.words)
    if (word.starts_with("im2col") || word == "tile::gather4" || word == "tile::scatter4" ||
        word == "cp_mask" || word == "multicast::cluster")
      return nullptr;
  return bulk;
}

}  // namespace softcuda
