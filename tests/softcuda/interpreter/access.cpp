#include <algorithm>
#include <cstring>
#include <type_traits>

#include "tests/softcuda/halves.hpp"
#include "tests/softcuda/interpreter/machine.hpp"

// Loads, stores, atomics, conversions of addresses.

namespace softcuda {

std::byte* global_at_slowly(Warp& w, int lane, std::uint64_t address, std::size_t bytes) {
  try {
    reach(address, bytes);
  } catch (const DeviceFault& e) {
    fault(w, lane, e.cuda_error, e.what());
  }
  w.block->cached = find_extent(address);
  return w.block->cached.at(address);
}

namespace {

std::byte* parameter_at(Warp& w, int lane, std::uint64_t address, std::size_t bytes) {
  if (address >= call_parameter_base) {
    const std::size_t size = w.block->program->call_parameter_bytes;
    if (address - call_parameter_base + bytes > size)
      fault(w, lane, 719, "call parameter out of bounds");
    return w.call_parameters.data() + static_cast<std::size_t>(lane) * size +
           (address - call_parameter_base);
  }
  const auto& parameters = *w.block->parameters;
  if (address + bytes > parameters.size())
    fault(w, lane, 719, "parameter space out of bounds: offset " + std::to_string(address));
  return const_cast<std::byte*>(parameters.data()) + address;
}

}  // namespace

std::byte* generic_at(Warp& w, int lane, std::uint64_t address, std::size_t bytes) {
  if (address - shared_window < window_bytes)
    return shared_at(w, lane, address - shared_window, bytes);
  if (address - local_window < window_bytes)
    return local_at(w, lane, address - local_window, bytes);
  if (address - parameter_window < window_bytes)
    return parameter_at(w, lane, address - parameter_window, bytes);
  return global_at(w, lane, address, bytes);
}

namespace {

/// Where the bytes of an address in a space are.
template <Space space>
inline std::byte* resolve(Warp& w, int lane, std::uint64_t address, std::size_t bytes) {
  check_aligned(w, lane, address, bytes);
  if constexpr (space == Space::shared) return shared_at(w, lane, address, bytes);
  if constexpr (space == Space::local) return local_at(w, lane, address, bytes);
  if constexpr (space == Space::parameter) return parameter_at(w, lane, address, bytes);
  if constexpr (space == Space::generic) return generic_at(w, lane, address, bytes);
  return global_at(w, lane, address, bytes);
}

/// The addresses of a warp's access. When all of them are aligned and in one allocation, `origin` +
/// address is the place of each. Otherwise `origin` is null, and resolve() looks lane by lane.
struct Addresses {
  alignas(64) std::uint64_t at[warp_lanes];
  std::byte* origin = nullptr;
};
template <Space space, class Address>
inline void find_addresses(Addresses& a, Warp& w, const Instruction& i, Mask m, std::size_t bytes) {
  const Address* address = w.reg<Address>(i.a);
  const auto offset = static_cast<std::uint64_t>(i.offset);
  for (int l = 0; l < warp_lanes; ++l) a.at[l] = address[l] + offset;
  if (m != all_lanes) {
    const std::uint64_t idle = a.at[__builtin_ctz(m)];
    for (int l = 0; l < warp_lanes; ++l) a.at[l] = (m >> l & 1) ? a.at[l] : idle;
  }
  std::uint64_t low = a.at[0], high = a.at[0], bits = 0;
  for (int l = 0; l < warp_lanes; ++l) {
    low = std::min(low, a.at[l]);
    high = std::max(high, a.at[l]);
    bits |= a.at[l];
  }
  if (bits & (bytes - 1)) return;
  Extent extent;
  if constexpr (space == Space::shared)
    extent = {shared_base, shared_base + w.block->shared_bytes, w.block->shared};
  if constexpr (space == Space::global) extent = w.block->cached;
  if (extent.contains(low, bytes) && extent.contains(high, bytes))
    a.origin = extent.host - extent.begin;
}

template <Space space>
inline void race_lane(Warp& w, int l, std::uint64_t address, std::size_t bytes, Access kind) {
  if constexpr (space == Space::shared) race_access(w, l, true, address, bytes, kind);
  if constexpr (space == Space::global) race_access(w, l, false, address, bytes, kind);
  if constexpr (space == Space::generic) {
    if (address - shared_window < window_bytes)
      race_access(w, l, true, address - shared_window, bytes, kind);
    else if (address < shared_window) race_access(w, l, false, address, bytes, kind);
  }
}
/// Instruction::e says that a load or store is volatile, relaxed, acquire or release: it races only
/// with plain accesses.
template <Space space>
inline void race_accesses(Warp& w, const Instruction& i, Mask m, const Addresses& a,
                          std::size_t bytes, Access kind) {
  if (!w.block->races) [[likely]]
    return;
  each_lane(m, [&](int l) { race_lane<space>(w, l, a.at[l], bytes, i.e ? Access::atomic : kind); });
  if (i.e && space != Space::shared) race_global_sync(w);
}

template <Space space>
inline void count_accesses(Warp& w, const Instruction& i, Mask m, const Addresses& a,
                           std::size_t bytes) {
  if constexpr (space == Space::shared) count_banks(w, i, m, a.at, bytes);
  if constexpr (space == Space::generic) {
    if (!w.block->banks) [[likely]]
      return;
    std::uint64_t shared[warp_lanes];
    Mask those = 0;
    each_lane(m, [&](int l) {
      shared[l] = a.at[l] - shared_window;
      if (shared[l] < window_bytes) those |= Mask{1} << l;
    });
    if (those) count_banks(w, i, those, shared, bytes);
  }
}

/// `Narrow` in memory, `Wide` in the register.
template <class Narrow, class Wide, Space space, class Address>
Step load(Warp& w, const Instruction& i, Mask m) {
  const std::uint32_t count = std::max<std::uint32_t>(1, i.list_size);
  const std::uint32_t* list = i.list_size ? w.block->program->lists.data() + i.list : &i.d;
  const std::size_t bytes = sizeof(Narrow) * count;
  Addresses a;
  find_addresses<space, Address>(a, w, i, m, bytes);
  const std::byte* from[warp_lanes];
  if (a.origin) {
    for (int l = 0; l < warp_lanes; ++l)
      from[l] = a.origin + a.at[l];  // idle lanes: any good place
  } else {
    each_lane(m, [&](int l) { from[l] = resolve<space>(w, l, a.at[l], bytes); });
  }
  race_accesses<space>(w, i, m, a, bytes, Access::read);
  count_accesses<space>(w, i, m, a, bytes);
  for (std::uint32_t n = 0; n < count; ++n) {
    Wide* d = w.reg<Wide>(list[n]);
    each_lane(m, [&](int l) {
      Narrow value;
      std::memcpy(&value, from[l] + n * sizeof(Narrow), sizeof(Narrow));
      d[l] = static_cast<Wide>(value);
    });
  }
  return Step::next;
}

template <class Narrow, class Wide, Space space, class Address>
Step store(Warp& w, const Instruction& i, Mask m) {
  const std::uint32_t count = std::max<std::uint32_t>(1, i.list_size);
  const std::uint32_t* list = i.list_size ? w.block->program->lists.data() + i.list : &i.b;
  const std::size_t bytes = sizeof(Narrow) * count;
  Addresses a;
  find_addresses<space, Address>(a, w, i, m, bytes);
  std::byte* to[warp_lanes];
  each_lane(m, [&](int l) {
    to[l] = a.origin ? a.origin + a.at[l] : resolve<space>(w, l, a.at[l], bytes);
  });
  if (w.block->program->async_proxy) {
    if constexpr (space == Space::shared)
      each_lane(m, [&](int l) { note_written(w, a.at[l], bytes); });
    if constexpr (space == Space::generic)
      each_lane(m, [&](int l) {
        if (a.at[l] - shared_window < window_bytes) note_written(w, a.at[l] - shared_window, bytes);
      });
  }
  race_accesses<space>(w, i, m, a, bytes, Access::write);
  count_accesses<space>(w, i, m, a, bytes);
  for (std::uint32_t n = 0; n < count; ++n) {
    const Wide* s = w.reg<Wide>(list[n]);
    each_lane(m, [&](int l) {
      const Narrow value = static_cast<Narrow>(s[l]);
      std::memcpy(to[l] + n * sizeof(Narrow), &value, sizeof(Narrow));
    });
  }
  return Step::next;
}

template <class F>
Run by_space(Space space, F&& f) {
  switch (space) {
    case Space::generic: return f.template operator()<Space::generic>();
    case Space::global:
    case Space::constant: return f.template operator()<Space::global>();
    case Space::shared: return f.template operator()<Space::shared>();
    case Space::local: return f.template operator()<Space::local>();
    case Space::parameter: return f.template operator()<Space::parameter>();
  }
  return nullptr;
}

template <class Narrow, class Wide>
Run find_access(bool loading, Space space, int address_bytes) {
  return by_space(space, [&]<Space s>() -> Run {
    if (address_bytes == 4)
      return loading ? Run{load<Narrow, Wide, s, std::uint32_t>}
                     : Run{store<Narrow, Wide, s, std::uint32_t>};
    return loading ? Run{load<Narrow, Wide, s, std::uint64_t>}
                   : Run{store<Narrow, Wide, s, std::uint64_t>};
  });
}

/// Into a wider register a signed type is extended with its sign, any other with zeros.
template <class Wide>
Run find_access(Type t, bool loading, Space space, int address_bytes) {
  const bool is_signed = t.kind == Kind::sint && loading;
  using SignedWide = std::make_signed_t<Wide>;
  if (t.bytes == 1)
    return is_signed ? find_access<std::int8_t, SignedWide>(loading, space, address_bytes)
                     : find_access<std::uint8_t, Wide>(loading, space, address_bytes);
  if (t.bytes == sizeof(Wide)) return find_access<Wide, Wide>(loading, space, address_bytes);
  if constexpr (sizeof(Wide) > 2)
    if (t.bytes == 2)
      return is_signed ? find_access<std::int16_t, SignedWide>(loading, space, address_bytes)
                       : find_access<std::uint16_t, Wide>(loading, space, address_bytes);
  if constexpr (sizeof(Wide) > 4)
    if (t.bytes == 4)
      return is_signed ? find_access<std::int32_t, SignedWide>(loading, space, address_bytes)
                       : find_access<std::uint32_t, Wide>(loading, space, address_bytes);
  return nullptr;
}

// ---- Atomics. Nothing interrupts an instruction of a warp, so a plain operation is atomic. With
// SOFTCUDA_THREADS a lock is held.

struct Exchange {
  template <class T>
  static T of(T, T b, T) {
    return b;
  }
};
struct CompareSwap {
  template <class T>
  static T of(T old, T b, T c) {
    return old == b ? c : old;
  }
};
struct AtomicAdd {
  template <class T>
  static T of(T old, T b, T) {
    if constexpr (std::is_integral_v<T>)
      return static_cast<T>(static_cast<std::make_unsigned_t<T>>(old) +
                            static_cast<std::make_unsigned_t<T>>(b));
    else return old + b;
  }
};
template <bool bf16>
struct AddHalf {
  static std::uint16_t of(std::uint16_t a, std::uint16_t b, std::uint16_t) {
    return narrow<bf16>(widen<bf16>(a) + widen<bf16>(b));
  }
  static std::uint32_t of(std::uint32_t a, std::uint32_t b, std::uint32_t) {
    const auto half = [](std::uint32_t x, std::uint32_t y) {
      return std::uint32_t{
          of(static_cast<std::uint16_t>(x), static_cast<std::uint16_t>(y), std::uint16_t{0})};
    };
    return half(a, b) | half(a >> 16, b >> 16) << 16;
  }
};
struct AtomicMin {
  template <class T>
  static T of(T old, T b, T) {
    return b < old ? b : old;
  }
};
struct AtomicMax {
  template <class T>
  static T of(T old, T b, T) {
    return old < b ? b : old;
  }
};
struct AtomicAnd {
  template <class T>
  static T of(T old, T b, T) {
    return old & b;
  }
};
struct AtomicOr {
  template <class T>
  static T of(T old, T b, T) {
    return old | b;
  }
};
struct AtomicXor {
  template <class T>
  static T of(T old, T b, T) {
    return old ^ b;
  }
};
struct AtomicInc {
  template <class T>
  static T of(T old, T b, T) {
    return old >= b ? T{0} : static_cast<T>(old + 1);
  }
};
struct AtomicDec {
  template <class T>
  static T of(T old, T b, T) {
    return old == 0 || old > b ? b : static_cast<T>(old - 1);
  }
};

template <class T, class Op, bool returns, Space space, class Address>
Step atomic(Warp& w, const Instruction& i, Mask m) {
  const Address* address = w.reg<Address>(i.a);
  const AtomicGuard guard(w);
  if (w.block->races && space != Space::shared) race_global_sync(w);
  each_lane(m, [&](int l) {
    race_lane<space>(w, l, address[l] + static_cast<std::uint64_t>(i.offset), sizeof(T),
                     Access::atomic);
    std::byte* at =
        resolve<space>(w, l, address[l] + static_cast<std::uint64_t>(i.offset), sizeof(T));
    T old;
    std::memcpy(&old, at, sizeof(T));
    const T value = Op::of(old, w.reg<T>(i.b)[l], w.reg<T>(i.c)[l]);
    std::memcpy(at, &value, sizeof(T));
    if (returns) w.reg<T>(i.d)[l] = old;
  });
  return Step::next;
}

template <class T, class Op>
Run atomic_of(bool returns, Space space, int address_bytes) {
  return by_space(space, [&]<Space s>() -> Run {
    if constexpr (s == Space::local || s == Space::parameter) return nullptr;
    else if (address_bytes == 4)
      return returns ? Run{atomic<T, Op, true, s, std::uint32_t>}
                     : Run{atomic<T, Op, false, s, std::uint32_t>};
    else
      return returns ? Run{atomic<T, Op, true, s, std::uint64_t>}
                     : Run{atomic<T, Op, false, s, std::uint64_t>};
  });
}

template <class T, std::uint64_t window, bool to_generic>
Step convert_address(Warp& w, const Instruction& i, Mask m) {
  each_lane(m, [&](int l) {
    const std::uint64_t a = w.reg<T>(i.a)[l];
    w.reg<T>(i.d)[l] = static_cast<T>(to_generic ? a + window : a - window);
  });
  return Step::next;
}

}  // namespace

Run find_memory(const Form& f, Space space, int register_bytes, int address_bytes) {
  const auto op = f.words[0];
  if (op == "cvta") {
    if (f.type().bytes != 8) return nullptr;
    const bool to = f.has("to");
    if (space == Space::shared)
      return to ? convert_address<std::uint64_t, shared_window, false>
                : convert_address<std::uint64_t, shared_window, true>;
    if (space == Space::local)
      return to ? convert_address<std::uint64_t, local_window, false>
                : convert_address<std::uint64_t, local_window, true>;
    if (space == Space::parameter)
      return to ? convert_address<std::uint64_t, parameter_window, false>
                : convert_address<std::uint64_t, parameter_window, true>;
    if (space == Space::global || space == Space::constant)
      return convert_address<std::uint64_t, 0, true>;
    return nullptr;
  }
  const bool loading = op == "ld" || op == "ldu";
  switch (register_bytes) {
    case 2: return find_access<std::uint16_t>(f.type(), loading, space, address_bytes);
    case 4: return find_access<std::uint32_t>(f.type(), loading, space, address_bytes);
    case 8: return find_access<std::uint64_t>(f.type(), loading, space, address_bytes);
    default: return nullptr;
  }
}

Run find_atomic(const Form& f, Space space, int address_bytes) {
  const bool returns = f.words[0] == "atom";
  const Type t = f.type();
  if (t.kind == Kind::bf16 || (t.kind == Kind::real && (t.packed == 2 || t.bytes == 2))) {
    if (!f.has("add")) return nullptr;
    if (t.bytes == 4)
      return t.kind == Kind::bf16
                 ? atomic_of<std::uint32_t, AddHalf<true>>(returns, space, address_bytes)
                 : atomic_of<std::uint32_t, AddHalf<false>>(returns, space, address_bytes);
    return t.kind == Kind::bf16
               ? atomic_of<std::uint16_t, AddHalf<true>>(returns, space, address_bytes)
               : atomic_of<std::uint16_t, AddHalf<false>>(returns, space, address_bytes);
  }
  if (t.bytes == 2 && f.has("cas"))
    return atomic_of<std::uint16_t, CompareSwap>(returns, space, address_bytes);
  if (t.packed != 1 || t.bytes < 4) return nullptr;
  const auto number = [&]<class Op>(Op) -> Run {
    if (t.kind == Kind::real)
      return t.bytes == 4 ? atomic_of<float, Op>(returns, space, address_bytes)
                          : atomic_of<double, Op>(returns, space, address_bytes);
    if (t.kind == Kind::sint)
      return t.bytes == 4 ? atomic_of<std::int32_t, Op>(returns, space, address_bytes)
                          : atomic_of<std::int64_t, Op>(returns, space, address_bytes);
    return t.bytes == 4 ? atomic_of<std::uint32_t, Op>(returns, space, address_bytes)
                        : atomic_of<std::uint64_t, Op>(returns, space, address_bytes);
  };
  const auto bits = [&]<class Op>(Op) -> Run {
    return t.bytes == 4 ? atomic_of<std::uint32_t, Op>(returns, space, address_bytes)
                        : atomic_of<std::uint64_t, Op>(returns, space, address_bytes);
  };
  if (f.has("add")) return number(AtomicAdd{});
  if (f.has("min")) return number(AtomicMin{});
  if (f.has("max")) return number(AtomicMax{});
  if (f.has("exch")) return bits(Exchange{});
  if (f.has("cas")) return bits(CompareSwap{});
  if (f.has("and")) return bits(AtomicAnd{});
  if (f.has("or")) return bits(AtomicOr{});
  if (f.has("xor")) return bits(AtomicXor{});
  if (f.has("inc")) return bits(AtomicInc{});
  if (f.has("dec")) return bits(AtomicDec{});
  return nullptr;
}

}  // namespace softcuda
