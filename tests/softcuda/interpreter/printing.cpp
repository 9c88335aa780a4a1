#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>

#include "tests/softcuda/interpreter/machine.hpp"

// printf and assert.

namespace softcuda {
namespace {

using u32 = std::uint32_t;
using u64 = std::uint64_t;

/// Argument n of the call, which lies among the lane's .param variables.
template <class T>
T argument(Warp& w, const Instruction& i, int lane, u32 n) {
  const std::size_t size = w.block->program->call_parameter_bytes;
  T value;
  std::memcpy(&value,
              w.call_parameters.data() + static_cast<std::size_t>(lane) * size +
                  w.block->program->lists[i.list + n],
              sizeof value);
  return value;
}
std::string string_at(Warp& w, int lane, u64 address) {
  std::string text;
  for (; text.size() < 4096; ++address) {
    const char c = static_cast<char>(*generic_at(w, lane, address, 1));
    if (c == 0) break;
    text += c;
  }
  return text;
}
/// The arguments of a printf, in the memory that the kernel passes, and the text that they become.
class Format {
 public:
  Format(Warp& w, int lane, u64 arguments) : w_(w), lane_(lane), arguments_(arguments) {}

  std::string apply(const std::string& format) {
    std::string out;
    for (std::size_t n = 0; n < format.size(); ++n) {
      if (format[n] != '%') {
        out += format[n];
        continue;
      }
      std::string spec = "%";
      bool wide = false;
      for (++n; n < format.size() && !std::strchr("diouxXeEfFgGaAcsp%", format[n]); ++n) {
        if (std::strchr("lzjt", format[n])) wide = true;
        else if (format[n] == '*') spec += std::to_string(take<int>());
        else if (format[n] != 'h') spec += format[n];
      }
      if (n < format.size()) out += conversion(spec, format[n], wide);
    }
    return out;
  }

 private:
  template <class T>
  T take() {
    arguments_ = (arguments_ + sizeof(T) - 1) / sizeof(T) * sizeof(T);
    T value;
    std::memcpy(&value, generic_at(w_, lane_, arguments_, sizeof value), sizeof value);
    arguments_ += sizeof value;
    return value;
  }
  template <class T>
  static std::string print(const std::string& spec, T value) {
    char text[512] = "";
    std::snprintf(text, sizeof text, spec.c_str(), value);
    return text;
  }
  std::string conversion(const std::string& spec, char kind, bool wide) {
    if (kind == '%') return "%";
    if (kind == 's') return string_at(w_, lane_, take<u64>());
    if (std::strchr("eEfFgGaA", kind)) return print(spec + kind, take<double>());
    if (kind == 'p') return print(spec + "#llx", take<u64>());
    if (wide) return print(spec + "ll" + kind, take<u64>());
    return print(spec + kind, take<u32>());
  }

  Warp& w_;
  int lane_;
  u64 arguments_;
};

Step print(Warp& w, const Instruction& i, Mask m) {
  for (; m; m &= m - 1) {
    const int l = __builtin_ctz(m);
    const std::string format = string_at(w, l, argument<u64>(w, i, l, 0));
    const std::string text = Format(w, l, argument<u64>(w, i, l, 1)).apply(format);
    std::fwrite(text.data(), 1, text.size(), stdout);
  }
  return Step::next;
}
Step fail_assertion(Warp& w, const Instruction& i, Mask m) {
  const int l = __builtin_ctz(m);
  fault(w, l, 710,
        string_at(w, l, argument<u64>(w, i, l, 1)) + ":" +
            std::to_string(argument<u32>(w, i, l, 2)) + ": " +
            string_at(w, l, argument<u64>(w, i, l, 3)) + ": assertion `" +
            string_at(w, l, argument<u64>(w, i, l, 0)) + "' failed");
}

}  // namespace

Run find_call(std::string_view function) {
  if (function == "vprintf") return print;
  if (function == "__assertfail") return fail_assertion;
  return nullptr;
}

}  // namespace softcuda
