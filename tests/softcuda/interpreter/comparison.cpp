#include "tests/softcuda/interpreter/operations.hpp"

// setp.

namespace softcuda {
namespace {

using namespace operations;

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

}  // namespace

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

}  // namespace softcuda
