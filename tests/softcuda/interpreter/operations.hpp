#pragma once

#include <cmath>
#include <limits>
#include <type_traits>

#include "tests/softcuda/halves.hpp"
#include "tests/softcuda/interpreter/machine.hpp"

/// Operations on one lane, and how an instruction applies one to all lanes of its mask. A lane that
/// is not in the mask may hold anything, so an operation must be harmless for every value.
namespace softcuda::operations {

using u8 = std::uint8_t;
using u16 = std::uint16_t;
using u32 = std::uint32_t;
using u64 = std::uint64_t;
using s16 = std::int16_t;
using s32 = std::int32_t;
using s64 = std::int64_t;

/// Computes all lanes and keeps those of the mask.
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
  return std::abs(a) < std::numeric_limits<float>::min() ? std::copysign(0.0F, a) : a;
}
struct RcpFlush {
  static float of(float a) { return flush(1.0F / flush(a)); }
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
  static float of(float a) { return 1.0F / std::sqrt(a); }
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
  static float of(float a) { return a > 0.0F ? (a < 1.0F ? a : 1.0F) : 0.0F; }
};
template <bool bf16>
struct Widen {
  static float of(u16 a) { return widen<bf16>(a); }
};
template <bool bf16>
struct Narrow {
  static u16 of(float a) { return narrow<bf16>(a); }
};
/// cvt.rn.X2.f32 d, a, b: a becomes the upper half.
template <bool bf16>
struct NarrowPair {
  static u32 of(float a, float b) { return u32{narrow<bf16>(a)} << 16 | narrow<bf16>(b); }
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

// ---- f16 and bf16, alone and two in a register: computed in float and rounded once.

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
  static float of(float a) { return a > 0 ? a : 0.0F; }
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
inline bool is_half(Type t) {
  return t.kind == Kind::bf16 || (t.kind == Kind::real && (t.bytes == 2 || t.packed == 2));
}

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

}  // namespace softcuda::operations

namespace softcuda {

/// Handlers by form, each null when it does not know the form: of f16 and bf16; of f32 with .ftz or
/// .sat; of a directed rounding; of setp.
Run find_half(const Form&);
Run find_flushing(const Form&);
Run find_directed(const Form&);
Run find_setp(const Form&);

}  // namespace softcuda
