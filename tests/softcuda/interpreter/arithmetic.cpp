#include <algorithm>

#include "tests/softcuda/interpreter/operations.hpp"

// Arithmetic, logic, conversion, and data movement between registers.

namespace softcuda {
namespace {

using namespace operations;

// ---- Further bits

struct BitsUnsigned {
  template <class T>
  static T of(T a, u32 position, u32 length) {
    position &= 255, length &= 255;
    constexpr u32 bits = 8 * sizeof(T);
    if (position >= bits || length == 0) return 0;
    const T v = static_cast<T>(a >> position);
    return length >= bits ? v : static_cast<T>(v & ((T{1} << length) - 1));
  }
};
struct BitsSigned {
  template <class T>
  static T of(T a, u32 position, u32 length) {  // T unsigned
    position &= 255, length &= 255;
    constexpr u32 bits = 8 * sizeof(T);
    if (length == 0) return 0;
    const u32 top = std::min(position + length - 1, bits - 1);
    const bool sign = a >> top & 1;
    T v = BitsUnsigned::of(a, position, length);
    const u32 have = position >= bits ? 0 : std::min(length, bits - position);
    if (sign && have < bits) v |= static_cast<T>(~T{0} << have);
    return v;
  }
};
template <bool left, bool clamp>
struct Funnel {
  static u32 of(u32 a, u32 b, u32 c) {
    const u32 n = clamp ? std::min(c, 32U) : c & 31;
    const u64 both = u64{b} << 32 | a;
    return static_cast<u32>(left ? (n == 32 ? a : (both << n) >> 32) : both >> n);
  }
};
struct AbsoluteDifference {
  template <class T>
  static T of(T a, T b, T c) {
    return Add::of(a < b ? Sub::of(b, a) : Sub::of(a, b), c);
  }
};
template <bool shift>
struct FindBit {
  template <class T>
  static u32 of(T a) {
    using U = std::make_unsigned_t<T>;
    U v = static_cast<U>(a);
    if (std::is_signed_v<T> && a < 0) v = static_cast<U>(~v);
    if (v == 0) return ~0U;
    const u32 at = 63 - static_cast<u32>(__builtin_clzll(v));
    return shift ? 8 * sizeof(T) - 1 - at : at;
  }
};
Step lop3(Warp& w, const Instruction& i, Mask m) {
  const u32 *a = w.reg<u32>(i.a), *b = w.reg<u32>(i.b), *c = w.reg<u32>(i.c),
            table = w.reg<u32>(i.e)[0];
  over_lanes<u32>(w, i.d, m, [=](int l) {
    u32 r = 0;
    for (u32 n = 0; n < 8; ++n)
      if (table >> n & 1)
        r |= (n & 4 ? a[l] : ~a[l]) & (n & 2 ? b[l] : ~b[l]) & (n & 1 ? c[l] : ~c[l]);
    return r;
  });
  return Step::next;
}
template <class D>
struct Clamp {
  template <class A>
  static D of(A a) {
    const __int128 v = a;
    return static_cast<D>(
        std::clamp<__int128>(v, std::numeric_limits<D>::min(), std::numeric_limits<D>::max()));
  }
};
template <bool bf16>
struct IntegerToHalf {
  template <class A>
  static u16 of(A a) {
    return narrow<bf16>(static_cast<float>(a));
  }
};
template <bool bf16, class D, class Round>
struct HalfToInteger {
  static D of(u16 a) { return ToInteger<D, Round>::of(widen<bf16>(a)); }
};

// ---- Predicates

Step pred_and(Warp& w, const Instruction& i, Mask m) {
  auto& d = w.pred(i.d);
  d = (d & ~m) | (w.pred(i.a) & w.pred(i.b) & m);
  return Step::next;
}
Step pred_or(Warp& w, const Instruction& i, Mask m) {
  auto& d = w.pred(i.d);
  d = (d & ~m) | ((w.pred(i.a) | w.pred(i.b)) & m);
  return Step::next;
}
Step pred_xor(Warp& w, const Instruction& i, Mask m) {
  auto& d = w.pred(i.d);
  d = (d & ~m) | ((w.pred(i.a) ^ w.pred(i.b)) & m);
  return Step::next;
}
Step pred_not(Warp& w, const Instruction& i, Mask m) {
  auto& d = w.pred(i.d);
  d = (d & ~m) | (~w.pred(i.a) & m);
  return Step::next;
}
Step pred_move(Warp& w, const Instruction& i, Mask m) {
  auto& d = w.pred(i.d);
  d = (d & ~m) | (w.pred(i.a) & m);
  return Step::next;
}

template <class T>
Step selp(Warp& w, const Instruction& i, Mask m) {
  const T* a = w.reg<T>(i.a);
  const T* b = w.reg<T>(i.b);
  const Mask p = w.pred(i.c);
  over_lanes<T>(w, i.d, m, [=](int l) { return (p >> l & 1) ? a[l] : b[l]; });
  return Step::next;
}

// ---- Extended precision: the carry flag is one word, a bit per lane

enum class Chain { add, sub, mad_low, mad_high };
template <Chain chain, bool in, bool out>
Step carrying(Warp& w, const Instruction& i, Mask m) {
  for (int l = 0; l < warp_lanes; ++l) {
    if (!(m >> l & 1)) continue;
    const u64 a = w.reg<u32>(i.a)[l], b = w.reg<u32>(i.b)[l];
    const u64 flag = in ? w.carry >> l & 1 : 0;
    u64 r = 0;
    if (chain == Chain::add) r = a + b + flag;
    if (chain == Chain::sub) r = a - b - flag;
    if (chain == Chain::mad_low) r = (a * b & 0xFFFFFFFF) + w.reg<u32>(i.c)[l] + flag;
    if (chain == Chain::mad_high) r = (a * b >> 32) + w.reg<u32>(i.c)[l] + flag;
    w.reg<u32>(i.d)[l] = static_cast<u32>(r);
    if (out) w.carry = (w.carry & ~(Mask{1} << l)) | static_cast<Mask>(r >> 32 & 1) << l;
  }
  return Step::next;
}
template <Chain chain>
Run carrying_of(bool in, bool out) {
  if (in) return out ? carrying<chain, true, true> : carrying<chain, true, false>;
  return carrying<chain, false, true>;
}

// ---- Bit fields, vectors, shuffles

template <class T>
Step bfi(Warp& w, const Instruction& i, Mask m) {
  const T* a = w.reg<T>(i.a);
  const T* b = w.reg<T>(i.b);
  const u32* position = w.reg<u32>(i.c);
  const u32* length = w.reg<u32>(i.e);
  constexpr u32 bits = 8 * sizeof(T);
  over_lanes<T>(w, i.d, m, [=](int l) {
    const u32 p = position[l] & 255, n = length[l] & 255;
    if (p >= bits || n == 0) return b[l];
    const T field = static_cast<T>((n >= bits ? ~T{0} : (T{1} << n) - 1) << p);
    return static_cast<T>((b[l] & ~field) | ((a[l] << p) & field));
  });
  return Step::next;
}

/// mov.b64 {a, b}, d and back: `list` holds the parts, low one first.
template <class Whole, class Part>
Step unpack(Warp& w, const Instruction& i, Mask m) {
  alignas(64) Whole whole[warp_lanes];
  std::memcpy(whole, w.reg<Whole>(i.a), sizeof whole);
  for (std::uint32_t p = 0; p < i.list_size; ++p)
    over_lanes<Part>(w, w.block->program->lists[i.list + p], m,
                     [&](int l) { return static_cast<Part>(whole[l] >> (8 * sizeof(Part) * p)); });
  return Step::next;
}
template <class Whole, class Part>
Step pack(Warp& w, const Instruction& i, Mask m) {
  alignas(64) Whole whole[warp_lanes] = {};
  for (std::uint32_t p = 0; p < i.list_size; ++p) {
    const Part* part = w.reg<Part>(w.block->program->lists[i.list + p]);
    for (int l = 0; l < warp_lanes; ++l)
      whole[l] |= static_cast<Whole>(static_cast<Whole>(part[l]) << (8 * sizeof(Part) * p));
  }
  over_lanes<Whole>(w, i.d, m, [&](int l) { return whole[l]; });
  return Step::next;
}

bool is(Type t, Kind kind, int bytes, int packed = 1) {
  return t.kind == kind && t.bytes == bytes && t.packed == packed;
}

Run find_saturating_cvt(const Form& f, Type d, Type s) {
  if (d.kind != Kind::real && s.kind != Kind::real && !is_half(d) && !is_half(s)) {
    return by_integer(d, [s]<class D>(D) -> Run {
      return by_integer(s, []<class S>(S) -> Run { return unary<D, S, Clamp<D>>; });
    });
  }
  const bool known = !f.has("ftz") && is(d, Kind::real, 4) && is(s, Kind::real, 4);
  return known && f.words.size() == 4 ? unary<float, float, Saturate> : nullptr;
}

/// From or to f16 and bf16.
Run find_half_cvt(const Form& f, Type d, Type s) {
  const bool nearest = f.has("rn");
  if (is(d, Kind::real, 4) && is(s, Kind::real, 2)) return unary<float, u16, Widen<false>>;
  if (is(d, Kind::real, 4) && is(s, Kind::bf16, 2)) return unary<float, u16, Widen<true>>;
  if (is(s, Kind::real, 4) && nearest) {
    if (is(d, Kind::real, 2)) return unary<u16, float, Narrow<false>>;
    if (is(d, Kind::bf16, 2)) return unary<u16, float, Narrow<true>>;
    if (is(d, Kind::real, 4, 2)) return binary<u32, float, float, NarrowPair<false>>;
    if (is(d, Kind::bf16, 4, 2)) return binary<u32, float, float, NarrowPair<true>>;
  }
  const auto is_integer = [](Type t) { return !is_half(t) && t.kind != Kind::real; };
  if (is_half(d) && d.packed == 1 && nearest && is_integer(s)) {
    return by_integer(s, [d]<class S>(S) -> Run {
      return d.kind == Kind::bf16 ? Run{unary<u16, S, IntegerToHalf<true>>}
                                  : Run{unary<u16, S, IntegerToHalf<false>>};
    });
  }
  if (!is_half(s) || s.packed != 1 || !is_integer(d)) return nullptr;
  return by_integer(d, [&]<class D>(D) -> Run {
    const bool bf16 = s.kind == Kind::bf16;
    if (f.has("rni")) {
      return bf16 ? unary<D, u16, HalfToInteger<true, D, Nearest>>
                  : unary<D, u16, HalfToInteger<false, D, Nearest>>;
    }
    if (!f.has("rzi")) return nullptr;
    return bf16 ? unary<D, u16, HalfToInteger<true, D, Truncate>>
                : unary<D, u16, HalfToInteger<false, D, Truncate>>;
  });
}

/// Between f32 and f64, and to an integer in the same type.
Run find_real_cvt(const Form& f, Type d, Type s) {
  if (d.bytes == 8 && s.bytes == 4 && f.words.size() == 3) {
    return unary<double, float, Cast<double>>;
  }
  if (d.bytes == 4 && s.bytes == 8 && f.has("rn")) return unary<float, double, Cast<float>>;
  if (!(d == s)) return nullptr;
  if (f.has("rni")) return unary_real<Nearest>(d);
  if (f.has("rzi")) return unary_real<Truncate>(d);
  if (f.has("rmi")) return unary_real<Floor>(d);
  if (f.has("rpi")) return unary_real<Ceil>(d);
  return nullptr;
}

Run find_real_to_integer(const Form& f, Type d, Type s) {
  return by_real(s, [&]<class S>(S) -> Run {
    return by_integer(d, [&]<class D>(D) -> Run {
      if (f.has("rni")) return unary<D, S, ToInteger<D, Nearest>>;
      if (f.has("rzi")) return unary<D, S, ToInteger<D, Truncate>>;
      if (f.has("rmi")) return unary<D, S, ToInteger<D, Floor>>;
      if (f.has("rpi")) return unary<D, S, ToInteger<D, Ceil>>;
      return nullptr;
    });
  });
}

Run find_cvt(const Form& f) {
  if (f.types.size() != 2 || f.has("relu")) return nullptr;
  const Type d = f.types[0], s = f.types[1];
  if (f.has("sat")) return find_saturating_cvt(f, d, s);
  if (is_half(d) || is_half(s)) return find_half_cvt(f, d, s);
  if (d.kind == Kind::real && s.kind == Kind::real) return find_real_cvt(f, d, s);
  if (s.kind == Kind::real) return find_real_to_integer(f, d, s);
  const auto cast = [s]<class D>(D) -> Run {
    return by_integer(s, []<class S>(S) -> Run { return unary<D, S, Cast<D>>; });
  };
  if (d.kind != Kind::real) return by_integer(d, cast);
  return f.has("rn") ? by_real(d, cast) : nullptr;
}

Run find_mul(const Form& f, bool add) {
  const Type t = f.type();
  const bool cc = f.has("cc");
  if (f.words[0] == "madc" || cc) {
    if (t.bytes != 4 || t.kind == Kind::real || !add) return nullptr;
    const bool in = f.words[0] == "madc";
    return f.has("hi")   ? carrying_of<Chain::mad_high>(in, cc)
           : f.has("lo") ? carrying_of<Chain::mad_low>(in, cc)
                         : nullptr;
  }
  if (t.kind == Kind::real) return add ? nullptr : binary_number<Mul>(t);
  if (f.has("lo"))
    return add ? by_integer(t, []<class T>(T) -> Run { return ternary<T, T, T, T, Mad>; })
               : binary_integer<Mul>(t);
  if (f.has("hi"))
    return add ? by_integer(t, []<class T>(T) -> Run { return ternary<T, T, T, T, MadHigh>; })
               : binary_integer<MulHigh>(t);
  if (f.has("wide") && t.bytes <= 4)
    return by_integer(t, [add]<class T>(T) -> Run {
      if constexpr (sizeof(T) > 4) return nullptr;
      else
        return add ? Run{ternary<Wide<T>, T, T, Wide<T>, MadWide>}
                   : Run{binary<Wide<T>, T, T, MulWide>};
    });
  return nullptr;
}

Run find_fma(const Form& f) {
  const Type t = f.type();
  if (f.has("ftz") || f.has("sat") || f.words.size() != 3) return nullptr;
  if (f.has("rn")) return by_real(t, []<class T>(T) -> Run { return ternary<T, T, T, T, Fma>; });
  if (f.has("rm") || f.has("rp") || f.has("rz")) return find_directed(f);
  return nullptr;
}

template <class PredicateRun, class Bits>
Run logic(Type t, PredicateRun predicate, Bits&& bits) {
  return t.kind == Kind::pred ? Run{predicate} : by_bits(t, bits);
}

Run find_mov(const Form& f) {
  const Type t = f.type();
  if (t.kind == Kind::pred) return pred_move;
  const auto last = f.words.back();
  const auto colon = last.find(':');
  if (colon == std::string_view::npos) {
    return by_bits(t, []<class T>(T) -> Run { return unary<T, T, Copy>; });
  }
  const bool packs = last.substr(0, colon) == "pack";
  const int part = t.bytes / (last[colon + 1] - '0');
  if (t.bytes == 8 && part == 4) return packs ? pack<u64, u32> : unpack<u64, u32>;
  if (t.bytes == 8 && part == 2) return packs ? pack<u64, u16> : unpack<u64, u16>;
  if (t.bytes == 4 && part == 2) return packs ? pack<u32, u16> : unpack<u32, u16>;
  return nullptr;
}

/// f32 with .ftz, .sat or .NaN, unless its rounding is directed.
Run find_flushing_f32(const Form& f) {
  const Type t = f.type();
  const bool directed = f.has("rz") || f.has("rm") || f.has("rp");
  if (t.kind != Kind::real || t.bytes != 4 || directed) return nullptr;
  return f.has("ftz") || f.has("sat") || f.has("NaN") ? find_flushing(f) : nullptr;
}

/// Fields of bits.
Run find_field(const Form& f) {
  const auto op = f.words[0];
  const Type t = f.type();
  if (op == "bfe" && t.kind == Kind::sint) {
    return t.bytes == 4 ? ternary<u32, u32, u32, u32, BitsSigned>
                        : ternary<u64, u64, u32, u32, BitsSigned>;
  }
  if (op == "bfe") {
    return t.bytes == 4 ? ternary<u32, u32, u32, u32, BitsUnsigned>
                        : ternary<u64, u64, u32, u32, BitsUnsigned>;
  }
  if (op == "bfi") return t.bytes == 4 ? bfi<u32> : bfi<u64>;
  if (op == "shf") {
    const bool clamp = f.has("clamp");
    if (f.has("l")) {
      return clamp ? ternary<u32, u32, u32, u32, Funnel<true, true>>
                   : ternary<u32, u32, u32, u32, Funnel<true, false>>;
    }
    return clamp ? ternary<u32, u32, u32, u32, Funnel<false, true>>
                 : ternary<u32, u32, u32, u32, Funnel<false, false>>;
  }
  if (op == "bfind") {
    return by_integer(t, [&]<class T>(T) -> Run {
      return f.has("shiftamt") ? unary<u32, T, FindBit<true>> : unary<u32, T, FindBit<false>>;
    });
  }
  if (op == "prmt" && f.words.size() == 2) return ternary<u32, u32, u32, u32, Prmt>;
  return nullptr;
}

/// Logic and shifts.
Run find_logic(const Form& f) {
  const auto op = f.words[0];
  const Type t = f.type();
  if (op == "and")
    return logic(t, pred_and, []<class T>(T) -> Run { return binary<T, T, T, And>; });
  if (op == "or") return logic(t, pred_or, []<class T>(T) -> Run { return binary<T, T, T, Or>; });
  if (op == "xor")
    return logic(t, pred_xor, []<class T>(T) -> Run { return binary<T, T, T, Xor>; });
  if (op == "not") return logic(t, pred_not, []<class T>(T) -> Run { return unary<T, T, Not>; });
  if (op == "shl") return by_bits(t, []<class T>(T) -> Run { return binary<T, T, u32, Shl>; });
  if (op == "shr") return by_integer(t, []<class T>(T) -> Run { return binary<T, T, u32, Shr>; });
  if (op == "clz") return by_bits(t, []<class T>(T) -> Run { return unary<u32, T, Clz>; });
  if (op == "popc") return by_bits(t, []<class T>(T) -> Run { return unary<u32, T, Popc>; });
  if (op == "brev") return by_bits(t, []<class T>(T) -> Run { return unary<T, T, Brev>; });
  if (op == "lop3" && t.bytes == 4 && f.words.size() == 2) return lop3;
  return nullptr;
}

/// Sums and products of integers, with and without a carry.
Run find_integer(const Form& f) {
  const auto op = f.words[0];
  const Type t = f.type();
  if (op == "sad") {
    return by_integer(t, []<class T>(T) -> Run { return ternary<T, T, T, T, AbsoluteDifference>; });
  }
  if (op == "dp4a" && f.types.size() == 2 && f.types[0] == f.types[1]) {
    return t.kind == Kind::sint ? Run{ternary<s32, s32, s32, s32, Dp4aSigned>}
                                : Run{ternary<u32, u32, u32, u32, Dp4aUnsigned>};
  }
  const bool carries = f.has("cc") || op == "addc" || op == "subc";
  if (!carries || t.bytes != 4 || t.kind == Kind::real) return nullptr;
  if (op == "add" || op == "addc") return carrying_of<Chain::add>(op == "addc", f.has("cc"));
  if (op == "sub" || op == "subc") return carrying_of<Chain::sub>(op == "subc", f.has("cc"));
  return nullptr;
}

/// Functions of one real number.
Run find_function(const Form& f) {
  const auto op = f.words[0];
  const Type t = f.type();
  const bool single = t.bytes == 4, flushes = f.has("ftz");
  if (op == "ex2" && single)
    return flushes ? unary<float, float, Ex2Flush> : unary<float, float, Ex2>;
  if (op == "rcp" && flushes) return single ? unary<float, float, RcpFlush> : nullptr;
  if (op == "rcp") return unary_real<Rcp>(t);
  if (flushes || f.has("sat")) return nullptr;
  if (op == "sqrt") return unary_real<Sqrt>(t);
  if (!single) return nullptr;
  if (op == "lg2") return unary<float, float, Lg2>;
  if (op == "rsqrt") return unary<float, float, Rsqrt>;
  if (op == "sin") return unary<float, float, Sin>;
  if (op == "cos") return unary<float, float, Cos>;
  if (op == "tanh") return unary<float, float, Tanh>;
  return nullptr;
}

/// What integers and real numbers have in common, without .ftz and .sat.
Run find_number(const Form& f) {
  const auto op = f.words[0];
  const Type t = f.type();
  if (f.has("ftz") || f.has("sat") || f.has("cc")) return nullptr;
  if (op == "add") return binary_number<Add>(t);
  if (op == "sub") return binary_number<Sub>(t);
  if (op == "mul") return find_mul(f, false);
  if (op == "div") return binary_number<Div>(t);
  if (op == "rem") return binary_integer<Rem>(t);
  if (op == "min") return binary_number<Min>(t);
  if (op == "max") return binary_number<Max>(t);
  if (op == "neg") return unary_number<Neg>(t);
  if (op == "abs") return unary_number<Abs>(t);
  if (op == "copysign") {
    return by_real(t, []<class T>(T) -> Run { return binary<T, T, T, CopySign>; });
  }
  return nullptr;
}

}  // namespace

/// A mov takes "pack:N" or "unpack:N" as an additional word, which the decoder adds.
Run find_arithmetic(const Form& f) {
  const auto op = f.words[0];
  const Type t = f.type();
  const bool real = t.kind == Kind::real;
  if (op == "setp") return find_setp(f);
  if (op == "selp") return by_bits(t, []<class T>(T) -> Run { return selp<T>; });
  if (op == "cvt") return find_cvt(f);
  if (op == "mov") return find_mov(f);
  if (is_half(t)) return find_half(f);
  if (op == "fma" || (op == "mad" && real)) {
    const Run run = find_flushing_f32(f);
    return run ? run : find_fma(f);
  }
  if (op == "mad" || op == "madc") return find_mul(f, true);
  const bool directed = f.has("rz") || f.has("rm") || f.has("rp");
  if (real && directed) return find_directed(f);
  for (const auto find : {find_flushing_f32, find_field, find_logic, find_integer}) {
    if (const Run run = find(f)) return run;
  }
  if (real) {
    if (const Run run = find_function(f)) return run;
  }
  return find_number(f);
}

}  // namespace softcuda
