#include <cfenv>

#include "tests/softcuda/interpreter/operations.hpp"

// Arithmetic whose result is rounded in another way: f16 and bf16, .ftz and .sat, directed
// roundings.

namespace softcuda {
namespace {

using namespace operations;

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

}  // namespace

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

Run find_directed(const Form& f) {
  const auto op = f.words[0];
  if (op == "fma" || op == "mad") {
    return by_real(f.type(), [&f](auto x) -> Run {
      using T = decltype(x);
      if (f.has("rm")) return directed_fma<T, FE_DOWNWARD>;
      if (f.has("rp")) return directed_fma<T, FE_UPWARD>;
      return directed_fma<T, FE_TOWARDZERO>;
    });
  }
  if (f.has("ftz") || f.has("sat")) return nullptr;
  if (op == "add") return directed_of<Add, 2>(f);
  if (op == "sub") return directed_of<Sub, 2>(f);
  if (op == "mul") return directed_of<Mul, 2>(f);
  if (op == "div") return directed_of<Div, 2>(f);
  if (op == "sqrt") return directed_of<Sqrt, 1>(f);
  if (op == "rcp") return directed_of<Rcp, 1>(f);
  return nullptr;
}

}  // namespace softcuda
