// Arithmetic, logic, comparison, conversion, data movement between registers.
#include <immintrin.h>

#include <algorithm>
#include <cfenv>
#include <cmath>
#include <limits>
#include <type_traits>

#include "tests/softcuda/interpreter/machine.hpp"

namespace softcuda {
namespace {

using u8 = std::uint8_t;
using u16 = std::uint16_t;
using u32 = std::uint32_t;
using u64 = std::uint64_t;
using s16 = std::int16_t;
using s32 = std::int32_t;
using s64 = std::int64_t;

/// Computes all lanes and keeps those of the mask: every operation below is harmless for whatever an idle lane holds.
template <class D, class F>
inline void over_lanes(Warp& w, std::uint32_t at, Mask m, F&& f) {
  D* d = w.reg<D>(at);
  if (m == all_lanes) {
#pragma GCC ivdep
    for (int l = 0; l < warp_lanes; ++l) d[l] = f(l);
    return;
  }
  alignas(64) D result[warp_lanes];
#pragma GCC ivdep
  for (int l = 0; l < warp_lanes; ++l) result[l] = f(l);
#pragma GCC ivdep
  for (int l = 0; l < warp_lanes; ++l) d[l] = (m >> l & 1) ? result[l] : d[l];
}

template <class D, class A, class Op>
Step unary(Warp& w, const Instruction& i, Mask m) {
  const A* a = w.reg<A>(i.a);
  over_lanes<D>(w, i.d, m, [=](int l) { return static_cast<D>(Op::of(a[l])); });
  return Step::next;
}
template <class D, class A, class B, class Op>
Step binary(Warp& w, const Instruction& i, Mask m) {
  const A* a = w.reg<A>(i.a);
  const B* b = w.reg<B>(i.b);
  over_lanes<D>(w, i.d, m, [=](int l) { return static_cast<D>(Op::of(a[l], b[l])); });
  return Step::next;
}
template <class D, class A, class B, class C, class Op>
Step ternary(Warp& w, const Instruction& i, Mask m) {
  const A* a = w.reg<A>(i.a);
  const B* b = w.reg<B>(i.b);
  const C* c = w.reg<C>(i.c);
  over_lanes<D>(w, i.d, m, [=](int l) { return static_cast<D>(Op::of(a[l], b[l], c[l])); });
  return Step::next;
}

// ---- Operations

template <class T>
using Wide = std::conditional_t<
    sizeof(T) == 1, std::conditional_t<std::is_signed_v<T>, s16, u16>,
    std::conditional_t<
        sizeof(T) == 2, std::conditional_t<std::is_signed_v<T>, s32, u32>,
        std::conditional_t<sizeof(T) == 4, std::conditional_t<std::is_signed_v<T>, s64, u64>,
                           std::conditional_t<std::is_signed_v<T>, __int128, unsigned __int128>>>>;

struct Add {
  template <class T>
  static T of(T a, T b) {
    if constexpr (std::is_integral_v<T>)
      return static_cast<T>(static_cast<std::make_unsigned_t<T>>(a) +
                            static_cast<std::make_unsigned_t<T>>(b));
    else return a + b;
  }
};
struct Sub {
  template <class T>
  static T of(T a, T b) {
    if constexpr (std::is_integral_v<T>)
      return static_cast<T>(static_cast<std::make_unsigned_t<T>>(a) -
                            static_cast<std::make_unsigned_t<T>>(b));
    else return a - b;
  }
};
struct Mul {
  template <class T>
  static T of(T a, T b) {
    if constexpr (std::is_integral_v<T>)
      return static_cast<T>(static_cast<u64>(a) * static_cast<u64>(b));
    else return a * b;
  }
};
struct MulHigh {
  template <class T>
  static T of(T a, T b) {
    return static_cast<T>((static_cast<Wide<T>>(a) * static_cast<Wide<T>>(b)) >> (8 * sizeof(T)));
  }
};
struct MulWide {
  template <class T>
  static Wide<T> of(T a, T b) {
    return static_cast<Wide<T>>(a) * static_cast<Wide<T>>(b);
  }
};
struct Mad {
  template <class T>
  static T of(T a, T b, T c) {
    return Add::of(Mul::of(a, b), c);
  }
};
struct MadHigh {
  template <class T>
  static T of(T a, T b, T c) {
    return Add::of(MulHigh::of(a, b), c);
  }
};
struct MadWide {
  template <class T>
  static Wide<T> of(T a, T b, Wide<T> c) {
    return Add::of(MulWide::of(a, b), c);
  }
};
struct Div {
  template <class T>
  static T of(T a, T b) {
    if constexpr (std::is_integral_v<T>) {
      if (b == 0) return static_cast<T>(-1);
      if constexpr (std::is_signed_v<T>)
        if (b == -1) return Sub::of(T{0}, a);
    }
    return static_cast<T>(a / b);
  }
};
struct Rem {
  template <class T>
  static T of(T a, T b) {
    if (b == 0) return a;
    if constexpr (std::is_signed_v<T>)
      if (b == -1) return 0;
    return static_cast<T>(a % b);
  }
};
struct Min {
  template <class T>
  static T of(T a, T b) {
    if constexpr (std::is_floating_point_v<T>) {
      const T least = (a < b || (a == b && std::signbit(a))) ? a : b;
      return a != a ? b : b != b ? a : least;
    } else return b < a ? b : a;
  }
};
struct Max {
  template <class T>
  static T of(T a, T b) {
    if constexpr (std::is_floating_point_v<T>) {
      const T most = (a > b || (a == b && !std::signbit(a))) ? a : b;
      return a != a ? b : b != b ? a : most;
    } else return a < b ? b : a;
  }
};
struct And {
  template <class T>
  static T of(T a, T b) {
    return static_cast<T>(a & b);
  }
};
struct Or {
  template <class T>
  static T of(T a, T b) {
    return static_cast<T>(a | b);
  }
};
struct Xor {
  template <class T>
  static T of(T a, T b) {
    return static_cast<T>(a ^ b);
  }
};
struct Not {
  template <class T>
  static T of(T a) {
    return static_cast<T>(~a);
  }
};
struct Neg {
  template <class T>
  static T of(T a) {
    if constexpr (std::is_integral_v<T>) return Sub::of(T{0}, a);
    else return -a;
  }
};
struct Abs {
  template <class T>
  static T of(T a) {
    if constexpr (std::is_integral_v<T>) return a < 0 ? Sub::of(T{0}, a) : a;
    else return std::abs(a);
  }
};
struct Copy {
  template <class T>
  static T of(T a) {
    return a;
  }
};
struct Shl {
  template <class T>
  static T of(T a, u32 n) {
    return n >= 8 * sizeof(T) ? T{0} : static_cast<T>(a << n);
  }
};
struct Shr {
  template <class T>
  static T of(T a, u32 n) {
    constexpr u32 bits = 8 * sizeof(T);
    if constexpr (std::is_signed_v<T>) return static_cast<T>(a >> (n >= bits ? bits - 1 : n));
    else return n >= bits ? T{0} : static_cast<T>(a >> n);
  }
};
struct Clz {
  template <class T>
  static u32 of(T a) {
    return a == 0 ? 8 * sizeof(T) : static_cast<u32>(__builtin_clzll(a)) - (64 - 8 * sizeof(T));
  }
};
struct Popc {
  template <class T>
  static u32 of(T a) {
    return static_cast<u32>(__builtin_popcountll(a));
  }
};
struct Brev {
  template <class T>
  static T of(T a) {
    T r = 0;
    for (u32 n = 0; n < 8 * sizeof(T); ++n) r = static_cast<T>(r << 1 | (a >> n & 1));
    return r;
  }
};
/// The sign is the first operand's, the magnitude the second's.
struct CopySign {
  template <class T>
  static T of(T a, T b) {
    return std::copysign(b, a);
  }
};
struct Fma {
  template <class T>
  static T of(T a, T b, T c) {
    return std::fma(a, b, c);
  }
};
struct Sqrt {
  template <class T>
  static T of(T a) {
    return std::sqrt(a);
  }
};
struct Rcp {
  template <class T>
  static T of(T a) {
    return T{1} / a;
  }
};
inline float flush(float a) {
  return std::abs(a) < std::numeric_limits<float>::min() ? std::copysign(0.0f, a) : a;
}
struct RcpFlush {
  static float of(float a) { return flush(1.0f / flush(a)); }
};
struct Ex2 {
  static float of(float a) { return std::exp2(a); }
};
struct Ex2Flush {
  static float of(float a) { return flush(std::exp2(flush(a))); }
};
struct Lg2 {
  static float of(float a) { return std::log2(a); }
};
struct Rsqrt {
  static float of(float a) { return 1.0f / std::sqrt(a); }
};
struct Sin {
  static float of(float a) { return std::sin(a); }
};
struct Cos {
  static float of(float a) { return std::cos(a); }
};
struct Tanh {
  static float of(float a) { return std::tanh(a); }
};
struct Saturate {
  static float of(float a) { return a > 0.0f ? (a < 1.0f ? a : 1.0f) : 0.0f; }
};
struct HalfToFloat {
  static float of(u16 a) { return _cvtsh_ss(a); }
};
struct FloatToHalf {
  static u16 of(float a) { return _cvtss_sh(a, _MM_FROUND_TO_NEAREST_INT); }
};
inline u16 to_bf16(float a) {
  u32 bits;
  std::memcpy(&bits, &a, 4);
  if (a != a) return 0x7FFF;
  return static_cast<u16>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}
struct FloatToBf16 {
  static u16 of(float a) { return to_bf16(a); }
};
struct Bf16ToFloat {
  static float of(u16 a) {
    const u32 bits = u32{a} << 16;
    float f;
    std::memcpy(&f, &bits, 4);
    return f;
  }
};
/// cvt.rn.X2.f32 d, a, b: a becomes the upper half.
struct PackHalf {
  static u32 of(float a, float b) { return u32{FloatToHalf::of(a)} << 16 | FloatToHalf::of(b); }
};
struct PackBf16 {
  static u32 of(float a, float b) { return u32{to_bf16(a)} << 16 | to_bf16(b); }
};
struct Nearest {
  template <class T>
  static T of(T a) {
    return std::nearbyint(a);
  }
};
struct Truncate {
  template <class T>
  static T of(T a) {
    return std::trunc(a);
  }
};
struct Floor {
  template <class T>
  static T of(T a) {
    return std::floor(a);
  }
};
struct Ceil {
  template <class T>
  static T of(T a) {
    return std::ceil(a);
  }
};
struct Dp4aSigned {
  static s32 of(s32 a, s32 b, s32 c) {
    s32 sum = c;
    for (int n = 0; n < 32; n += 8)
      sum = Add::of(sum, s32{static_cast<std::int8_t>(a >> n)} * static_cast<std::int8_t>(b >> n));
    return sum;
  }
};
struct Dp4aUnsigned {
  static u32 of(u32 a, u32 b, u32 c) {
    for (int n = 0; n < 32; n += 8) c += (a >> n & 255) * (b >> n & 255);
    return c;
  }
};
struct Prmt {
  static u32 of(u32 a, u32 b, u32 selector) {
    const u64 bytes = u64{b} << 32 | a;
    u32 d = 0;
    for (int n = 0; n < 4; ++n) {
      const u32 choice = selector >> (4 * n) & 15;
      u32 byte = static_cast<u32>(bytes >> (8 * (choice & 7)) & 255);
      if (choice & 8) byte = byte & 128 ? 255 : 0;
      d |= byte << (8 * n);
    }
    return d;
  }
};

/// Float → integer: saturates, NaN becomes 0.
template <class D, class Round>
struct ToInteger {
  template <class A>
  static D of(A a) {
    const A r = Round::of(a);
    const A limit = std::ldexp(A{1}, std::numeric_limits<D>::digits);
    if (r != r) return 0;
    if (r >= limit) return std::numeric_limits<D>::max();
    if (std::is_signed_v<D> ? r < -limit : r < 0) return std::numeric_limits<D>::min();
    return static_cast<D>(r);
  }
};
template <class D>
struct Cast {
  template <class A>
  static D of(A a) {
    return static_cast<D>(a);
  }
};

/// fma with a directed rounding, which is rare enough to switch the host's mode.
template <class T, int mode>
Step directed_fma(Warp& w, const Instruction& i, Mask m) {
  const int before = std::fegetround();
  std::fesetround(mode);
  for (int l = 0; l < warp_lanes; ++l)
    if (m >> l & 1) {
      volatile T a = w.reg<T>(i.a)[l], b = w.reg<T>(i.b)[l], c = w.reg<T>(i.c)[l];
      volatile T d = std::fma(a, b, c);
      w.reg<T>(i.d)[l] = d;
    }
  std::fesetround(before);
  return Step::next;
}

// ---- Halves: f16, bf16, alone and two in a register. Computed in float and rounded once.

template <bool bf16>
float widen(u16 a) {
  return bf16 ? Bf16ToFloat::of(a) : HalfToFloat::of(a);
}
template <bool bf16>
u16 narrow(float a) {
  return bf16 ? to_bf16(a) : FloatToHalf::of(a);
}
template <bool bf16, class Op>
struct OnHalf {
  static u16 of(u16 a) { return narrow<bf16>(Op::of(widen<bf16>(a))); }
  static u16 of(u16 a, u16 b) { return narrow<bf16>(Op::of(widen<bf16>(a), widen<bf16>(b))); }
  static u16 of(u16 a, u16 b, u16 c) {
    return narrow<bf16>(static_cast<float>(
        std::fma(double{widen<bf16>(a)}, double{widen<bf16>(b)}, double{widen<bf16>(c)})));
  }
};
template <class Op>
struct OnPair {
  template <class... T>
  static u32 of(T... a) {
    return u32{Op::of(static_cast<u16>(a)...)} | u32{Op::of(static_cast<u16>(a >> 16)...)} << 16;
  }
};
struct MinNan {
  static float of(float a, float b) { return a != a || b != b ? NAN : Min::of(a, b); }
};
struct MaxNan {
  static float of(float a, float b) { return a != a || b != b ? NAN : Max::of(a, b); }
};
struct Relu {
  static float of(float a) { return a > 0 ? a : 0.0f; }
};
template <class Op>
struct Ftz {
  template <class... T>
  static float of(T... a) {
    return flush(Op::of(flush(a)...));
  }
};
template <class Op>
struct Sat {
  template <class... T>
  static float of(T... a) {
    return Saturate::of(Op::of(a...));
  }
};
bool is_half(Type t) {
  return t.kind == Kind::bf16 || (t.kind == Kind::real && (t.bytes == 2 || t.packed == 2));
}
template <bool bf16, class Op, int operands>
Run half_of(bool pair) {
  using H = OnHalf<bf16, Op>;
  using P = OnPair<H>;
  if constexpr (operands == 1) return pair ? Run{unary<u32, u32, P>} : Run{unary<u16, u16, H>};
  else if constexpr (operands == 2)
    return pair ? Run{binary<u32, u32, u32, P>} : Run{binary<u16, u16, u16, H>};
  else return pair ? Run{ternary<u32, u32, u32, u32, P>} : Run{ternary<u16, u16, u16, u16, H>};
}
template <class Op, int operands>
Run half_op(Type t) {
  return t.kind == Kind::bf16 ? half_of<true, Op, operands>(t.packed == 2)
                              : half_of<false, Op, operands>(t.packed == 2);
}
Run find_half(const Form& f) {
  const auto op = f.words[0];
  const Type t = f.type();
  if (f.has("sat") || f.has("relu") || f.has("xorsign")) return nullptr;
  const bool nan = f.has("NaN");
  if (op == "add") return half_op<Add, 2>(t);
  if (op == "sub") return half_op<Sub, 2>(t);
  if (op == "mul") return half_op<Mul, 2>(t);
  if (op == "fma") return half_op<Fma, 3>(t);
  if (op == "min") return nan ? half_op<MinNan, 2>(t) : half_op<Min, 2>(t);
  if (op == "max") return nan ? half_op<MaxNan, 2>(t) : half_op<Max, 2>(t);
  if (op == "neg") return half_op<Neg, 1>(t);
  if (op == "abs") return half_op<Abs, 1>(t);
  if (op == "ex2") return half_op<Ex2, 1>(t);
  if (op == "tanh") return half_op<Tanh, 1>(t);
  return nullptr;
}
/// f32 with .ftz and .sat.
template <class Op, int operands>
Run flushing(bool ftz, bool sat) {
  const auto pick = []<class O>(O) -> Run {
    if constexpr (operands == 1) return unary<float, float, O>;
    else if constexpr (operands == 2) return binary<float, float, float, O>;
    else return ternary<float, float, float, float, O>;
  };
  if (ftz && sat) return pick(Sat<Ftz<Op>>{});
  return ftz ? pick(Ftz<Op>{}) : sat ? pick(Sat<Op>{}) : pick(Op{});
}
Run find_flushing(const Form& f) {
  const auto op = f.words[0];
  const bool z = f.has("ftz"), s = f.has("sat");
  if (op == "add") return flushing<Add, 2>(z, s);
  if (op == "sub") return flushing<Sub, 2>(z, s);
  if (op == "mul") return flushing<Mul, 2>(z, s);
  if (op == "div") return flushing<Div, 2>(z, s);
  if (op == "fma" || op == "mad") return flushing<Fma, 3>(z, s);
  if (op == "min") return f.has("NaN") ? flushing<MinNan, 2>(z, s) : flushing<Min, 2>(z, s);
  if (op == "max") return f.has("NaN") ? flushing<MaxNan, 2>(z, s) : flushing<Max, 2>(z, s);
  if (op == "neg") return flushing<Neg, 1>(z, s);
  if (op == "abs") return flushing<Abs, 1>(z, s);
  if (op == "sqrt") return flushing<Sqrt, 1>(z, s);
  if (op == "rsqrt") return flushing<Rsqrt, 1>(z, s);
  if (op == "lg2") return flushing<Lg2, 1>(z, s);
  if (op == "sin") return flushing<Sin, 1>(z, s);
  if (op == "cos") return flushing<Cos, 1>(z, s);
  return nullptr;
}

/// Directed rounding of one operation.
template <class T, int mode, class Op, int operands>
Step directed(Warp& w, const Instruction& i, Mask m) {
  const int before = std::fegetround();
  std::fesetround(mode);
  for (; m; m &= m - 1) {
    const int l = __builtin_ctz(m);
    volatile T a = w.reg<T>(i.a)[l];
    volatile T d;
    if constexpr (operands == 1) {
      d = Op::of(T{a});
    } else {
      volatile T b = w.reg<T>(i.b)[l];
      d = Op::of(T{a}, T{b});
    }
    w.reg<T>(i.d)[l] = d;
  }
  std::fesetround(before);
  return Step::next;
}
template <class Op, int operands>
Run directed_of(const Form& f) {
  const auto pick = [&]<class T>(T) -> Run {
    if (f.has("rz")) return directed<T, FE_TOWARDZERO, Op, operands>;
    if (f.has("rm")) return directed<T, FE_DOWNWARD, Op, operands>;
    return directed<T, FE_UPWARD, Op, operands>;
  };
  return f.type().bytes == 4 ? pick(float{}) : f.type().bytes == 8 ? pick(double{}) : nullptr;
}

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
    const u32 n = clamp ? std::min(c, 32u) : c & 31;
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
    if (v == 0) return ~0u;
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

// ---- Choice by type

template <class F>
Run by_integer(Type t, F&& f) {
  const bool is_signed = t.kind == Kind::sint;
  switch (t.bytes) {
    case 1: return is_signed ? f(std::int8_t{}) : f(u8{});
    case 2: return is_signed ? f(s16{}) : f(u16{});
    case 4: return is_signed ? f(s32{}) : f(u32{});
    case 8: return is_signed ? f(s64{}) : f(u64{});
    default: return nullptr;
  }
}
template <class F>
Run by_real(Type t, F&& f) {
  if (t.kind != Kind::real || t.packed != 1) return nullptr;
  return t.bytes == 4 ? f(float{}) : t.bytes == 8 ? f(double{}) : nullptr;
}
template <class F>
Run by_bits(Type t, F&& f) {
  switch (t.bytes) {
    case 2: return f(u16{});
    case 4: return f(u32{});
    case 8: return f(u64{});
    default: return nullptr;
  }
}
template <class Op>
Run binary_number(Type t) {
  const auto pick = [](auto x) -> Run {
    using T = decltype(x);
    return binary<T, T, T, Op>;
  };
  return t.kind == Kind::real ? by_real(t, pick) : by_integer(t, pick);
}
template <class Op>
Run binary_integer(Type t) {
  if (t.kind == Kind::real) return nullptr;
  return by_integer(t, [](auto x) -> Run {
    using T = decltype(x);
    return binary<T, T, T, Op>;
  });
}
template <class Op>
Run unary_number(Type t) {
  const auto pick = [](auto x) -> Run {
    using T = decltype(x);
    return unary<T, T, Op>;
  };
  return t.kind == Kind::real ? by_real(t, pick) : by_integer(t, pick);
}
template <class Op>
Run unary_real(Type t) {
  return by_real(t, [](auto x) -> Run {
    using T = decltype(x);
    return unary<T, T, Op>;
  });
}

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

template <class T, class Compare>
Step setp(Warp& w, const Instruction& i, Mask m) {
  const T* a = w.reg<T>(i.a);
  const T* b = w.reg<T>(i.b);
  Mask r = 0;
  for (int l = 0; l < warp_lanes; ++l) r |= static_cast<Mask>(Compare::of(a[l], b[l])) << l;
  auto& d = w.pred(i.d);
  d = (d & ~m) | (r & m);
  return Step::next;
}
struct Eq {
  template <class T>
  static bool of(T a, T b) {
    return a == b;
  }
};
struct Ne {
  template <class T>
  static bool of(T a, T b) {
    return a < b || a > b;
  }
};  // ordered: false for NaN
struct Lt {
  template <class T>
  static bool of(T a, T b) {
    return a < b;
  }
};
struct Le {
  template <class T>
  static bool of(T a, T b) {
    return a <= b;
  }
};
struct Gt {
  template <class T>
  static bool of(T a, T b) {
    return a > b;
  }
};
struct Ge {
  template <class T>
  static bool of(T a, T b) {
    return a >= b;
  }
};
struct Equ {
  template <class T>
  static bool of(T a, T b) {
    return !Ne::of(a, b);
  }
};
struct Neu {
  template <class T>
  static bool of(T a, T b) {
    return !(a == b);
  }
};
struct Ltu {
  template <class T>
  static bool of(T a, T b) {
    return !(a >= b);
  }
};
struct Leu {
  template <class T>
  static bool of(T a, T b) {
    return !(a > b);
  }
};
struct Gtu {
  template <class T>
  static bool of(T a, T b) {
    return !(a <= b);
  }
};
struct Geu {
  template <class T>
  static bool of(T a, T b) {
    return !(a < b);
  }
};
struct Num {
  template <class T>
  static bool of(T a, T b) {
    return a == a && b == b;
  }
};
struct IsNan {
  template <class T>
  static bool of(T a, T b) {
    return a != a || b != b;
  }
};

template <bool bf16, class C>
struct CompareHalf {
  static bool of(u16 a, u16 b) { return C::of(widen<bf16>(a), widen<bf16>(b)); }
};
template <class C>
Run setp_of(Type t) {
  if (is_half(t))
    return t.packed == 2          ? nullptr
           : t.kind == Kind::bf16 ? Run{setp<u16, CompareHalf<true, C>>}
                                  : Run{setp<u16, CompareHalf<false, C>>};
  const auto pick = [](auto x) -> Run { return setp<decltype(x), C>; };
  return t.kind == Kind::real ? by_real(t, pick) : by_integer(t, pick);
}
Run find_setp(const Form& f) {
  const auto compare = f.words.size() == 3 || (f.words.size() == 4 && f.has("ftz"))
                           ? f.words[1]
                           : std::string_view();  // no combination with a predicate
  const Type t = f.type();
  const bool real = t.kind == Kind::real || t.kind == Kind::bf16;
  if (compare == "eq") return setp_of<Eq>(t);
  if (compare == "ne") return real ? setp_of<Ne>(t) : setp_of<Neu>(t);
  if (compare == "lt" || compare == "lo") return setp_of<Lt>(t);
  if (compare == "le" || compare == "ls") return setp_of<Le>(t);
  if (compare == "gt" || compare == "hi") return setp_of<Gt>(t);
  if (compare == "ge" || compare == "hs") return setp_of<Ge>(t);
  if (!real) return nullptr;
  if (compare == "equ") return setp_of<Equ>(t);
  if (compare == "neu") return setp_of<Neu>(t);
  if (compare == "ltu") return setp_of<Ltu>(t);
  if (compare == "leu") return setp_of<Leu>(t);
  if (compare == "gtu") return setp_of<Gtu>(t);
  if (compare == "geu") return setp_of<Geu>(t);
  if (compare == "num") return setp_of<Num>(t);
  if (compare == "nan") return setp_of<IsNan>(t);
  return nullptr;
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

Run find_cvt(const Form& f) {
  if (f.types.size() != 2) return nullptr;
  const Type d = f.types[0], s = f.types[1];
  const bool nearest = f.has("rn");
  if (f.has("relu")) return nullptr;
  const auto is = [](Type t, Kind kind, int bytes, int packed = 1) {
    return t.kind == kind && t.bytes == bytes && t.packed == packed;
  };
  if (f.has("sat") && d.kind != Kind::real && s.kind != Kind::real && !is_half(d) && !is_half(s))
    return by_integer(d, [s](auto x) -> Run {
      using D = decltype(x);
      return by_integer(s, [](auto y) -> Run { return unary<D, decltype(y), Clamp<D>>; });
    });
  if (f.has("sat") && f.has("ftz")) return nullptr;
  if (f.has("sat"))
    return is(d, Kind::real, 4) && is(s, Kind::real, 4) && f.words.size() == 4
               ? unary<float, float, Saturate>
               : nullptr;
  if (is(d, Kind::real, 4) && is(s, Kind::real, 2)) return unary<float, u16, HalfToFloat>;
  if (is(d, Kind::real, 4) && is(s, Kind::bf16, 2)) return unary<float, u16, Bf16ToFloat>;
  if (is(s, Kind::real, 4) && nearest) {
    if (is(d, Kind::real, 2)) return unary<u16, float, FloatToHalf>;
    if (is(d, Kind::bf16, 2)) return unary<u16, float, FloatToBf16>;
    if (is(d, Kind::real, 4, 2)) return binary<u32, float, float, PackHalf>;
    if (is(d, Kind::bf16, 4, 2)) return binary<u32, float, float, PackBf16>;
  }
  if (is_half(d) && d.packed == 1 && nearest && !is_half(s) && s.kind != Kind::real)
    return by_integer(s, [d](auto y) -> Run {
      using S = decltype(y);
      return d.kind == Kind::bf16 ? Run{unary<u16, S, IntegerToHalf<true>>}
                                  : Run{unary<u16, S, IntegerToHalf<false>>};
    });
  if (is_half(s) && s.packed == 1 && !is_half(d) && d.kind != Kind::real)
    return by_integer(d, [&](auto x) -> Run {
      using D = decltype(x);
      const bool b = s.kind == Kind::bf16;
      if (f.has("rni"))
        return b ? unary<D, u16, HalfToInteger<true, D, Nearest>>
                 : unary<D, u16, HalfToInteger<false, D, Nearest>>;
      if (f.has("rzi"))
        return b ? unary<D, u16, HalfToInteger<true, D, Truncate>>
                 : unary<D, u16, HalfToInteger<false, D, Truncate>>;
      return nullptr;
    });
  if (is_half(s) || is_half(d)) return nullptr;
  const bool from_real = s.kind == Kind::real, to_real = d.kind == Kind::real;
  if (from_real && to_real) {
    if (d.bytes == 8 && s.bytes == 4 && f.words.size() == 3)
      return unary<double, float, Cast<double>>;
    if (d.bytes == 4 && s.bytes == 8 && nearest) return unary<float, double, Cast<float>>;
    if (!(d == s)) return nullptr;
    if (f.has("rni")) return unary_real<Nearest>(d);
    if (f.has("rzi")) return unary_real<Truncate>(d);
    if (f.has("rmi")) return unary_real<Floor>(d);
    if (f.has("rpi")) return unary_real<Ceil>(d);
    return nullptr;
  }
  if (to_real)
    return !nearest ? nullptr : by_real(d, [s](auto x) -> Run {
      using D = decltype(x);
      return by_integer(s, [](auto y) -> Run { return unary<D, decltype(y), Cast<D>>; });
    });
  if (from_real)
    return by_real(s, [&](auto y) -> Run {
      using S = decltype(y);
      return by_integer(d, [&](auto x) -> Run {
        using D = decltype(x);
        if (f.has("rni")) return unary<D, S, ToInteger<D, Nearest>>;
        if (f.has("rzi")) return unary<D, S, ToInteger<D, Truncate>>;
        if (f.has("rmi")) return unary<D, S, ToInteger<D, Floor>>;
        if (f.has("rpi")) return unary<D, S, ToInteger<D, Ceil>>;
        return nullptr;
      });
    });
  return by_integer(d, [s](auto x) -> Run {
    using D = decltype(x);
    return by_integer(s, [](auto y) -> Run { return unary<D, decltype(y), Cast<D>>; });
  });
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
    return add ? by_integer(t,
                            [](auto x) -> Run {
                              using T = decltype(x);
                              return ternary<T, T, T, T, Mad>;
                            })
               : binary_integer<Mul>(t);
  if (f.has("hi"))
    return add ? by_integer(t,
                            [](auto x) -> Run {
                              using T = decltype(x);
                              return ternary<T, T, T, T, MadHigh>;
                            })
               : binary_integer<MulHigh>(t);
  if (f.has("wide") && t.bytes <= 4)
    return by_integer(t, [add](auto x) -> Run {
      using T = decltype(x);
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
  if (f.has("rn"))
    return by_real(t, [](auto x) -> Run {
      using T = decltype(x);
      return ternary<T, T, T, T, Fma>;
    });
  if (f.has("rm"))
    return by_real(t, [](auto x) -> Run { return directed_fma<decltype(x), FE_DOWNWARD>; });
  if (f.has("rp"))
    return by_real(t, [](auto x) -> Run { return directed_fma<decltype(x), FE_UPWARD>; });
  if (f.has("rz"))
    return by_real(t, [](auto x) -> Run { return directed_fma<decltype(x), FE_TOWARDZERO>; });
  return nullptr;
}

template <class PredicateRun, class Bits>
Run logic(Type t, PredicateRun predicate, Bits&& bits) {
  return t.kind == Kind::pred ? Run{predicate} : by_bits(t, bits);
}

Run find_mov(Type t, bool packing, bool unpacking, int parts) {
  if (t.kind == Kind::pred) return pred_move;
  if (!packing && !unpacking)
    return by_bits(t, [](auto x) -> Run {
      using T = decltype(x);
      return unary<T, T, Copy>;
    });
  const int part = t.bytes / parts;
  if (t.bytes == 8 && part == 4) return packing ? pack<u64, u32> : unpack<u64, u32>;
  if (t.bytes == 8 && part == 2) return packing ? pack<u64, u16> : unpack<u64, u16>;
  if (t.bytes == 4 && part == 2) return packing ? pack<u32, u16> : unpack<u32, u16>;
  return nullptr;
}

}  // namespace

/// A mov takes "pack:N" or "unpack:N" as an additional word, which the decoder adds.
Run find_arithmetic(const Form& f) {
  const auto op = f.words[0];
  const Type t = f.type();
  const bool real = t.kind == Kind::real;
  if (is_half(t) && op != "cvt" && op != "setp" && op != "mov" && op != "selp") return find_half(f);
  if (real && op != "fma" && op != "mad" && op != "cvt" &&
      (f.has("rz") || f.has("rm") || f.has("rp"))) {
    if (f.has("ftz") || f.has("sat")) return nullptr;
    if (op == "add") return directed_of<Add, 2>(f);
    if (op == "sub") return directed_of<Sub, 2>(f);
    if (op == "mul") return directed_of<Mul, 2>(f);
    if (op == "div") return directed_of<Div, 2>(f);
    if (op == "sqrt") return directed_of<Sqrt, 1>(f);
    if (op == "rcp") return directed_of<Rcp, 1>(f);
    return nullptr;
  }
  if (real && t.bytes == 4 && (f.has("ftz") || f.has("sat") || f.has("NaN")) && !f.has("rz") &&
      !f.has("rm") && !f.has("rp"))
    if (const Run run = find_flushing(f)) return run;
  if (op == "bfe") {
    if (t.kind == Kind::sint)
      return t.bytes == 4 ? ternary<u32, u32, u32, u32, BitsSigned>
                          : ternary<u64, u64, u32, u32, BitsSigned>;
    return t.bytes == 4 ? ternary<u32, u32, u32, u32, BitsUnsigned>
                        : ternary<u64, u64, u32, u32, BitsUnsigned>;
  }
  if (op == "shf") {
    const bool clamp = f.has("clamp");
    if (f.has("l"))
      return clamp ? ternary<u32, u32, u32, u32, Funnel<true, true>>
                   : ternary<u32, u32, u32, u32, Funnel<true, false>>;
    return clamp ? ternary<u32, u32, u32, u32, Funnel<false, true>>
                 : ternary<u32, u32, u32, u32, Funnel<false, false>>;
  }
  if (op == "lop3" && t.bytes == 4 && f.words.size() == 2) return lop3;
  if (op == "sad")
    return by_integer(t, [](auto x) -> Run {
      using T = decltype(x);
      return ternary<T, T, T, T, AbsoluteDifference>;
    });
  if (op == "bfind")
    return by_integer(t, [&](auto x) -> Run {
      using T = decltype(x);
      return f.has("shiftamt") ? unary<u32, T, FindBit<true>> : unary<u32, T, FindBit<false>>;
    });
  const bool plain = !f.has("ftz") && !f.has("sat");
  if (op == "mov") {
    const auto last = f.words.back();
    const auto colon = last.find(':');
    if (colon == std::string_view::npos) return find_mov(t, false, false, 1);
    return find_mov(t, last.substr(0, colon) == "pack", last.substr(0, colon) == "unpack",
                    last[colon + 1] - '0');
  }
  if ((op == "add" || op == "addc" || op == "sub" || op == "subc") &&
      (f.has("cc") || op.size() == 4)) {
    if (t.bytes != 4 || real) return nullptr;
    return op[0] == 'a' ? carrying_of<Chain::add>(op == "addc", f.has("cc"))
                        : carrying_of<Chain::sub>(op == "subc", f.has("cc"));
  }
  if (op == "setp") return find_setp(f);
  if (op == "selp") return by_bits(t, [](auto x) -> Run { return selp<decltype(x)>; });
  if (op == "cvt") return find_cvt(f);
  if (op == "mul") return plain ? find_mul(f, false) : nullptr;
  if (op == "fma") return find_fma(f);
  if (op == "mad" || op == "madc") return real ? find_fma(f) : find_mul(f, true);
  if (op == "and")
    return logic(t, pred_and, [](auto x) -> Run {
      using T = decltype(x);
      return binary<T, T, T, And>;
    });
  if (op == "or")
    return logic(t, pred_or, [](auto x) -> Run {
      using T = decltype(x);
      return binary<T, T, T, Or>;
    });
  if (op == "xor")
    return logic(t, pred_xor, [](auto x) -> Run {
      using T = decltype(x);
      return binary<T, T, T, Xor>;
    });
  if (op == "not")
    return logic(t, pred_not, [](auto x) -> Run {
      using T = decltype(x);
      return unary<T, T, Not>;
    });
  if (op == "shl")
    return by_bits(t, [](auto x) -> Run {
      using T = decltype(x);
      return binary<T, T, u32, Shl>;
    });
  if (op == "shr")
    return by_integer(t, [](auto x) -> Run {
      using T = decltype(x);
      return binary<T, T, u32, Shr>;
    });
  if (op == "clz")
    return by_bits(t, [](auto x) -> Run {
      using T = decltype(x);
      return unary<u32, T, Clz>;
    });
  if (op == "popc")
    return by_bits(t, [](auto x) -> Run {
      using T = decltype(x);
      return unary<u32, T, Popc>;
    });
  if (op == "brev")
    return by_bits(t, [](auto x) -> Run {
      using T = decltype(x);
      return unary<T, T, Brev>;
    });
  if (op == "bfi") return t.bytes == 4 ? bfi<u32> : bfi<u64>;
  if (op == "prmt" && f.words.size() == 2) return ternary<u32, u32, u32, u32, Prmt>;
  if (op == "dp4a" && f.types.size() == 2 && f.types[0] == f.types[1])
    return t.kind == Kind::sint ? Run{ternary<s32, s32, s32, s32, Dp4aSigned>}
                                : Run{ternary<u32, u32, u32, u32, Dp4aUnsigned>};
  if (op == "ex2" && t.bytes == 4 && real)
    return f.has("ftz") ? unary<float, float, Ex2Flush> : unary<float, float, Ex2>;
  if (op == "rcp" && real) {
    if (f.has("ftz")) return t.bytes == 4 ? unary<float, float, RcpFlush> : nullptr;
    return unary_real<Rcp>(t);
  }
  if (!plain) return nullptr;
  if (op == "add") return binary_number<Add>(t);
  if (op == "sub") return binary_number<Sub>(t);
  if (op == "div") return binary_number<Div>(t);
  if (op == "rem") return binary_integer<Rem>(t);
  if (op == "min") return binary_number<Min>(t);
  if (op == "max") return binary_number<Max>(t);
  if (op == "neg") return unary_number<Neg>(t);
  if (op == "abs") return unary_number<Abs>(t);
  if (op == "sqrt") return unary_real<Sqrt>(t);
  if (op == "copysign")
    return by_real(t, [](auto x) -> Run {
      using T = decltype(x);
      return binary<T, T, T, CopySign>;
    });
  if (t.bytes == 4 && real) {
    if (op == "lg2") return unary<float, float, Lg2>;
    if (op == "rsqrt") return unary<float, float, Rsqrt>;
    if (op == "sin") return unary<float, float, Sin>;
    if (op == "cos") return unary<float, float, Cos>;
    if (op == "tanh") return unary<float, float, Tanh>;
  }
  return nullptr;
}

}  // namespace softcuda
