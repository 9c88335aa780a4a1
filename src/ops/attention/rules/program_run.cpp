#include <algorithm>
#include <cmath>

#include "core/execution.hpp"
#include "ops/attention/rules/program.hpp"
#include "ops/attention/rules/program_frame.hpp"
#include "tile/vec/vec.hpp"

/// The operations of programs.
namespace katt::attention {

using impl::lanes;
using impl::Operand;
using impl::Word;

namespace {

template <class F>
void with_vectors(Word* to, const Word* from, const F& f) {
  using Vec = tile::VecOf<Host>;
  constexpr int width = tile::lanes_v<Host>;
  for (int i = 0; i < lanes; i += width) {
    tile::store(&to[i].real, Vec(f(tile::load<Vec>(&from[i].real))));
  }
}

std::int32_t floor_divide(std::int32_t a, std::int32_t b) {
  // Exact: 53 bits hold the quotient of two integers of 32 near enough to tell its floor.
  return b == 0 ? 0 : static_cast<std::int32_t>(std::floor(static_cast<double>(a) / b));
}

/// As NumPy and PyTorch: a NaN stays.
float least(float a, float b) { return a < b || a != a ? a : b; }
float largest(float a, float b) { return a > b || a != a ? a : b; }

constexpr float log2e = 1.44269504088896340736F;

/// Adds 16 values to a tensor, `count` of them. Runs of one place, as of a slope by head, are summed
/// before they are added.
void add_runs(float* target, const float* added, const std::int64_t* offset, int count) {
  for (int i = 0; i < count;) {
    float sum = added[i];
    int end = i + 1;
    for (; end < count && offset[end] == offset[i]; ++end) sum += added[end];
    target[offset[i]] += sum;
    i = end;
  }
}

}  // namespace

void Program::run_level(Frame& frame, const Instruction* first, const Instruction* last) const {
  for (; first != last; ++first) {
    if (first->operation == Operation::gather) {
      if (near_[static_cast<std::size_t>(first->tensor)]) {
        gather<std::int32_t>(frame, *first);
      } else {
        gather<std::int64_t>(frame, *first);
      }
    } else if (first->operation == Operation::scatter) {
      scatter(frame, *first);
    } else {
      run_one(frame, *first);
    }
  }
}

void Program::run_one(Frame& frame, const Instruction& instruction) const {
  const Operand to = frame.of(instruction.result);
  const Operand a = frame.of(instruction.operands[0]);
  const Operand b = frame.of(instruction.operands[1]);
  const Operand c = frame.of(instruction.operands[2]);
  const auto each = [&](const auto& f) {
    for (int l = 0; l < frame.lines; ++l) {
      for (int v = 0; v < frame.vectors; ++v) f(to.at(l, v), a.at(l, v), b.at(l, v), c.at(l, v));
    }
  };
  // Results are made beside the operands, whose place they may take, so that the loops are vectors.
  const auto real = [&](const auto& f) {
    each([&](Word* t, const Word* x, const Word* y, const Word* z) {
      float made[lanes];
      for (int i = 0; i < lanes; ++i) made[i] = f(x[i].real, y[i].real, z[i].real);
      for (int i = 0; i < lanes; ++i) t[i].real = made[i];
    });
  };
  const auto index = [&](const auto& f) {
    each([&](Word* t, const Word* x, const Word* y, const Word* z) {
      std::int32_t made[lanes];
      for (int i = 0; i < lanes; ++i) made[i] = f(x[i].index, y[i].index, z[i].index);
      for (int i = 0; i < lanes; ++i) t[i].index = made[i];
    });
  };
  const auto truth = [&](const auto& f) {
    if (instruction.type != Type::real) return index([&](auto x, auto y, auto) { return f(x, y); });
    each([&](Word* t, const Word* x, const Word* y, const Word*) {
      std::int32_t made[lanes];
      for (int i = 0; i < lanes; ++i) made[i] = f(x[i].real, y[i].real);
      for (int i = 0; i < lanes; ++i) t[i].index = made[i];
    });
  };
  const auto vector = [&](const auto& f) {
    each([&](Word* t, const Word* x, const Word*, const Word*) { with_vectors(t, x, f); });
  };
  const bool of_reals = instruction.type == Type::real;
  const auto either = [&](const auto& of_real, const auto& of_index) {
    return of_reals ? real(of_real) : index(of_index);
  };
  // Integers wrap: what Python allows needs no more than 32 bits.
  const auto wrap = [](auto f) {
    return [f](std::int32_t x, std::int32_t y, std::int32_t) {
      return static_cast<std::int32_t>(
          f(static_cast<std::uint32_t>(x), static_cast<std::uint32_t>(y)));
    };
  };
  switch (instruction.operation) {
    case Operation::add:
      return either([](float x, float y, float) { return x + y; },
                    wrap([](auto x, auto y) { return x + y; }));
    case Operation::subtract:
      return either([](float x, float y, float) { return x - y; },
                    wrap([](auto x, auto y) { return x - y; }));
    case Operation::multiply:
      return either([](float x, float y, float) { return x * y; },
                    wrap([](auto x, auto y) { return x * y; }));
    case Operation::negative:
      return either([](float x, float, float) { return -x; },
                    wrap([](auto x, auto) { return 0U - x; }));
    case Operation::absolute:
      return either([](float x, float, float) { return std::fabs(x); },
                    wrap([](auto x, auto) { return x >> 31U != 0 ? 0U - x : x; }));
    case Operation::minimum:
      return either([](float x, float y, float) { return least(x, y); },
                    [](auto x, auto y, auto) { return std::min(x, y); });
    case Operation::maximum:
      return either([](float x, float y, float) { return largest(x, y); },
                    [](auto x, auto y, auto) { return std::max(x, y); });
    case Operation::divide: return real([](float x, float y, float) { return x / y; });
    case Operation::fma: return real([](float x, float y, float z) { return std::fma(x, y, z); });
    case Operation::exp:
      return vector([]<class V>(const V& x) {
        // 2^x of the rounded product alone would be wrong by |x| roundings.
        const V high = x * V(log2e);
        const V low = tile::fma(x, V(log2e), V(V(0.0F) - high)) + x * V(1.92596299112661746887e-8F);
        return tile::exp2(high) * (V(1.0F) + low * V(0.69314718055994530942F));
      });
    case Operation::log: return real([](float x, float, float) { return std::log(x); });
    case Operation::tanh: return vector([](const auto& x) { return tile::tanh(x); });
    case Operation::sigmoid:
      return vector(
          []<class V>(const V& x) { return V(0.5F) + V(0.5F) * tile::tanh(V(x * V(0.5F))); });
    case Operation::sqrt: return real([](float x, float, float) { return std::sqrt(x); });
    case Operation::floor: return real([](float x, float, float) { return std::floor(x); });
    case Operation::floor_divide:
      return index([](auto x, auto y, auto) { return floor_divide(x, y); });
    case Operation::remainder:
      return index([](auto x, auto y, auto) {
        return y == 0 ? 0
                      : static_cast<std::int32_t>(static_cast<std::uint32_t>(x) -
                                                  static_cast<std::uint32_t>(floor_divide(x, y)) *
                                                      static_cast<std::uint32_t>(y));
      });
    case Operation::equal: return truth([](auto x, auto y) { return x == y ? 1 : 0; });
    case Operation::not_equal: return truth([](auto x, auto y) { return x != y ? 1 : 0; });
    case Operation::less: return truth([](auto x, auto y) { return x < y ? 1 : 0; });
    case Operation::less_equal: return truth([](auto x, auto y) { return x <= y ? 1 : 0; });
    case Operation::land: return index([](auto x, auto y, auto) { return x & y; });
    case Operation::lor: return index([](auto x, auto y, auto) { return x | y; });
    case Operation::lnot: return index([](auto x, auto, auto) { return x ^ 1; });
    case Operation::where: return index([](auto x, auto y, auto z) { return x != 0 ? y : z; });
    case Operation::to_real:
      return each([](Word* t, const Word* x, const Word*, const Word*) {
        float made[lanes];
        for (int i = 0; i < lanes; ++i) made[i] = static_cast<float>(x[i].index);
        for (int i = 0; i < lanes; ++i) t[i].real = made[i];
      });
    case Operation::to_index:
      if (!of_reals) return index([](auto x, auto, auto) { return x; });
      return each([](Word* t, const Word* x, const Word*, const Word*) {
        for (int i = 0; i < lanes; ++i) {
          // A conversion out of range is undefined in C++.
          const float inside = std::clamp(x[i].real, -2147483648.0F, 2147483520.0F);
          t[i].index = inside == inside ? static_cast<std::int32_t>(inside) : 0;
        }
      });
    default: return;
  }
}

/// Calls use(line, vector, offsets) with the places of 16 elements in a tensor, in Offset's bits.
template <class Offset, class Use>
void Program::for_each_offset(Frame& frame, const Instruction& instruction,
                              const std::vector<std::int64_t>& stride, const Use& use) const {
  const auto& extent = tensors_[static_cast<std::size_t>(instruction.tensor)].extent;
  for (int l = 0; l < frame.lines; ++l) {
    for (int v = 0; v < frame.vectors; ++v) {
      Offset offset[lanes] = {};
      for (int n = 0; n < instruction.indices; ++n) {
        const auto axis = static_cast<std::size_t>(n);
        const Index& index = indices_[static_cast<std::size_t>(instruction.first_index + n)];
        const Word* from = frame.of(index.from).at(l, v);
        const auto size = static_cast<std::int32_t>(extent[axis]);
        const auto step = static_cast<Offset>(stride[axis]);
        if (index.place == Index::Place::inside) {
#pragma omp simd
          for (int i = 0; i < lanes; ++i) offset[i] += from[i].index * step;
          continue;
        }
        std::int32_t outside = 0;
#pragma omp simd reduction(| : outside)
        for (int i = 0; i < lanes; ++i) {
          const std::int32_t own = from[i].index < 0 ? from[i].index + size : from[i].index;
          const std::int32_t inside = std::clamp(own, 0, size - 1);
          outside |= inside ^ own;
          offset[i] += inside * step;
        }
        frame.outside = frame.outside || outside != 0;
      }
      use(l, v, offset);
    }
  }
}

template <class Offset>
void Program::gather(Frame& frame, const Instruction& instruction) const {
  const Captured& tensor = tensors_[static_cast<std::size_t>(instruction.tensor)];
  const Operand to = frame.of(instruction.result);
  if (tensor.type == Type::truth) {
    const auto* data = static_cast<const std::uint8_t*>(tensor.data);
    for_each_offset<Offset>(frame, instruction, tensor.stride,
                            [&](int l, int v, const auto& offset) {
                              Word* target = to.at(l, v);
                              for (int i = 0; i < lanes; ++i) {
                                target[i].index = data[offset[i]] != 0 ? 1 : 0;
                              }
                            });
    return;
  }
  const auto* data = static_cast<const std::int32_t*>(tensor.data);  // words, whatever they hold
  for_each_offset<Offset>(frame, instruction, tensor.stride, [&](int l, int v, const auto& offset) {
    Word* target = to.at(l, v);
    // Neighbouring queries or keys often read neighbours, forward or backward.
    Offset ahead = 0;  // 0: forward
    Offset back = 0;
#pragma omp simd reduction(| : ahead, back)
    for (int i = 0; i < lanes; ++i) {
      ahead |= offset[i] - offset[0] - i;
      back |= offset[i] - offset[0] + i;
    }
    if (ahead == 0) {
#pragma omp simd
      for (int i = 0; i < lanes; ++i) target[i].index = data[offset[0] + i];
    } else if (back == 0) {
      const std::int32_t* last = data + (offset[0] - (lanes - 1));
#pragma omp simd
      for (int i = 0; i < lanes; ++i) target[i].index = last[lanes - 1 - i];
    } else {
      for (int i = 0; i < lanes; ++i) target[i].index = data[offset[i]];
    }
  });
}

void Program::scatter(Frame& frame, const Instruction& instruction) const {
  const auto tensor = static_cast<std::size_t>(instruction.tensor);
  const ScoreBlock& block = *frame.block;
  const Operand from = frame.of(instruction.result);
  const Operand gradients = frame.of(Register{Level::score, 1});
  const auto keys = static_cast<int>(block.last_key - block.key + 1);
  const int inner = block.keys_inner ? keys : block.rows;
  const int outer = block.keys_inner ? block.rows : keys;
  const auto add = [&](int l, int v, const auto& offset) {
    if (frame.first_line + l >= outer) return;
    const Word* gradient = gradients.at(l, v);
    const Word* value = from.at(l, v);
    float added[lanes];
    for (int i = 0; i < lanes; ++i) {
      // A hidden score, without a gradient, adds nothing even where a derivative is NaN.
      added[i] = gradient[i].real == 0.0F ? 0.0F : value[i].real;
    }
    add_runs(frame.targets[tensor], added, offset, std::min(lanes, inner - v * lanes));
  };
  for_each_offset<std::int64_t>(frame, instruction, dense_[tensor], add);
}

}  // namespace katt::attention
