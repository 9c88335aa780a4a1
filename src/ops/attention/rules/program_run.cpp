#include <algorithm>
#include <cmath>
#include <cstring>
#include <type_traits>

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

using Vec = tile::VecOf<Host>;
#if defined(__CUDACC__)  // nvcc knows too little of GCC's vectors
constexpr int width = 1;
using Reals = float;
using Indices = std::int32_t;
using Unsigned = std::uint32_t;
#else  // vectors as the machine has them, whatever the lanes of an instruction
constexpr int width = tile::lanes_v<Host>;
using Reals [[gnu::vector_size(width * sizeof(float))]] = float;
using Indices [[gnu::vector_size(width * sizeof(float))]] = std::int32_t;
using Unsigned [[gnu::vector_size(width * sizeof(float))]] = std::uint32_t;
#endif

template <class V>
V load(const Word* from) {
  if constexpr (std::is_same_v<V, Vec>) {
    return tile::load<Vec>(&from->real);
  } else {
    V made;
    std::memcpy(&made, from, sizeof made);
    return made;
  }
}
template <class V>
void store(Word* to, const V& made) {
  if constexpr (std::is_same_v<V, Vec>) {
    tile::store(&to->real, made);
  } else {
    std::memcpy(to, &made, sizeof made);
  }
}

/// a where `truth`, a comparison, is true, else b.
template <class Truth, class V>
V select(const Truth& truth, const V& a, const V& b) {
  return truth ? a : b;
}

template <class V>
Reals real_of(const V& indices) {
#if defined(__CUDACC__)
  return static_cast<Reals>(indices);
#else
  return __builtin_convertvector(indices, Reals);
#endif
}

/// True when a lane is not 0.
template <class V>
bool any(const V& of) {
  if constexpr (std::is_arithmetic_v<V>) {
    return of != 0;
  } else if constexpr (width == 1) {
    return of[0] != 0;
  } else {
    // GCC would take the lanes out one by one.
    const Reals reals = real_of(of);
    const auto numbers = tile::load<Vec>(reinterpret_cast<const float*>(&reals));
    return !Kokkos::Experimental::all_of(numbers == Vec(0.0F));
  }
}

/// a, or b where a is NaN.
template <class V>
V number_or(const V& a, const V& b) {
  if constexpr (std::is_arithmetic_v<V>) {
    return a == a ? a : b;
  } else {
    return V(Kokkos::Experimental::condition(a == a, a, b));
  }
}

/// True when 16 offsets are first, first + way, first + 2 way, …
bool is_line(const Word* offset, std::int32_t way) {
  alignas(64) static constexpr std::int32_t numbers[lanes] = {0, 1, 2,  3,  4,  5,  6,  7,
                                                              8, 9, 10, 11, 12, 13, 14, 15};
  Indices differences{};
  for (int i = 0; i < lanes; i += width) {
    Indices lane;
    std::memcpy(&lane, numbers + i, sizeof lane);
    differences |= load<Indices>(offset + i) - lane * way - offset[0].index;
  }
  return !any(differences);
}

std::int32_t floor_divide(std::int32_t a, std::int32_t b) {
  // Exact: 53 bits hold the quotient of two integers of 32 near enough to tell its floor.
  return b == 0 ? 0 : static_cast<std::int32_t>(std::floor(static_cast<double>(a) / b));
}

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
        gather_near(frame, *first);
      } else {
        gather_far(frame, *first);
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
  // f(words of the result, of a, b, c) for `step` words at a time.
  const int lines = frame.lines;
  const int vectors_of_line = frame.vectors;
  const auto each = [&](int step, const auto& f) {
    for (int v = 0; v < vectors_of_line; ++v) {
      Word* t = to.at(0, v);
      const Word* x = a.at(0, v);
      const Word* y = b.at(0, v);
      const Word* z = c.at(0, v);
      for (int l = 0; l < lines; ++l) {
        for (int i = 0; i < lanes; i += step) f(t + i, x + i, y + i, z + i);
        t += to.line;
        x += a.line;
        y += b.line;
        z += c.line;
      }
    }
  };
  // f(a, b, c) of vectors V.
  const auto vectors = [&]<class V>(std::type_identity<V>, const auto& f) {
    each(sizeof(V) / sizeof(Word), [&](Word* t, const Word* x, const Word* y, const Word* z) {
      store(t, f(load<V>(x), load<V>(y), load<V>(z)));
    });
  };
  const auto real = [&](const auto& f) { vectors(std::type_identity<Reals>(), f); };
  const auto simd = [&](const auto& f) { vectors(std::type_identity<Vec>(), f); };
  const auto index = [&](const auto& f) { vectors(std::type_identity<Indices>(), f); };
  // Integers wrap: what Python allows needs no more than 32 bits.
  const auto wrapped = [&](const auto& f) { vectors(std::type_identity<Unsigned>(), f); };
  const bool of_reals = instruction.type == Type::real;
  const auto either = [&](const auto& f) { return of_reals ? real(f) : wrapped(f); };
  const auto ordered = [&](const auto& f) { return of_reals ? real(f) : index(f); };
  const auto truth = [&](const auto& f) {
    const auto one_or_zero = [&](auto x, auto y, auto) { return Indices(f(x, y)) & 1; };
    return of_reals ? real(one_or_zero) : index(one_or_zero);
  };
  const auto by_lane = [&](const auto& f) { each(1, f); };
  switch (instruction.operation) {
    case Operation::add: return either([](auto x, auto y, auto) { return x + y; });
    case Operation::subtract: return either([](auto x, auto y, auto) { return x - y; });
    case Operation::multiply: return either([](auto x, auto y, auto) { return x * y; });
    case Operation::negative: return either([](auto x, auto, auto) { return -x; });
    case Operation::absolute:
      if (of_reals) return simd([](const Vec& x, auto, auto) { return Vec(Kokkos::abs(x)); });
      return wrapped([](auto x, auto, auto) { return select(Indices(x) < 0, decltype(x)(-x), x); });
    // As NumPy and PyTorch: a NaN stays.
    case Operation::minimum:
      return ordered([](auto x, auto y, auto) { return select((x < y) | (x != x), x, y); });
    case Operation::maximum:
      return ordered([](auto x, auto y, auto) { return select((x > y) | (x != x), x, y); });
    case Operation::divide:
      if (const float divisor = b.data->real, inverse = 1.0F / divisor;
          instruction.operands[1].level == Level::block && std::isnormal(inverse)) {
        // A quotient and a correction by what it leaves (Markstein 1990) cost less than a division;
        // there is no correction of an infinite quotient.
        return simd([y = Vec(divisor), r = Vec(inverse)](const Vec& x, auto, auto) {
          const Vec quotient = x * r;
          const Vec left = tile::fma(Vec(-quotient), y, x);
          const Vec better = tile::fma(left, r, quotient);
          return number_or(better, quotient);
        });
      }
      return real([](auto x, auto y, auto) { return x / y; });
    case Operation::fma:
      return simd([](const Vec& x, const Vec& y, const Vec& z) { return tile::fma(x, y, z); });
    case Operation::exp:
      return simd([](const Vec& exponent, auto, auto) {
        // Beyond, the result is 0 or infinite, and an infinite exponent would give NaN below.
        const Vec above = tile::max(Vec(-110.0F), exponent);
        const Vec x = -tile::max(Vec(-89.0F), Vec(-above));
        // 2^x of the rounded product alone would be wrong by |x| roundings.
        const Vec high = x * Vec(log2e);
        const Vec low =
            tile::fma(x, Vec(log2e), Vec(Vec(0.0F) - high)) + x * Vec(1.92596299112661746887e-8F);
        // tile::exp2 may be infinite above 127; there a factor of 2 is taken out.
        const Vec above_126 = tile::max(Vec(0.0F), Vec((high - Vec(126.0F)) * Vec(0x1p30F)));
        const Vec halved = -tile::max(Vec(-1.0F), Vec(-above_126));  // 0 or 1
        const Vec power =
            tile::exp2(Vec(high - halved)) * (Vec(1.0F) + low * Vec(0.69314718055994530942F));
        return Vec(power * (Vec(1.0F) + halved));
      });
    case Operation::tanh: return simd([](const Vec& x, auto, auto) { return tile::tanh(x); });
    case Operation::sigmoid:
      return simd([](const Vec& x, auto, auto) { return tile::sigmoid<float>(x); });
    case Operation::log:
      return by_lane([](Word* t, const Word* x, auto*, auto*) { t->real = std::log(x->real); });
    case Operation::sqrt:
      return by_lane([](Word* t, const Word* x, auto*, auto*) { t->real = std::sqrt(x->real); });
    case Operation::floor:
      return by_lane([](Word* t, const Word* x, auto*, auto*) { t->real = std::floor(x->real); });
    case Operation::floor_divide:
      return by_lane([](Word* t, const Word* x, const Word* y, auto*) {
        t->index = floor_divide(x->index, y->index);
      });
    case Operation::remainder:
      return by_lane([](Word* t, const Word* x, const Word* y, auto*) {
        const auto quotient = static_cast<std::uint32_t>(floor_divide(x->index, y->index));
        const auto rest =
            static_cast<std::uint32_t>(x->index) - quotient * static_cast<std::uint32_t>(y->index);
        t->index = y->index == 0 ? 0 : static_cast<std::int32_t>(rest);
      });
    case Operation::equal: return truth([](auto x, auto y) { return x == y; });
    case Operation::not_equal: return truth([](auto x, auto y) { return x != y; });
    case Operation::less: return truth([](auto x, auto y) { return x < y; });
    case Operation::less_equal: return truth([](auto x, auto y) { return x <= y; });
    case Operation::land: return index([](auto x, auto y, auto) { return x & y; });
    case Operation::lor: return index([](auto x, auto y, auto) { return x | y; });
    case Operation::lnot: return index([](auto x, auto, auto) { return x ^ 1; });
    case Operation::where:
      return index([](auto x, auto y, auto z) { return select(x != 0, y, z); });
    case Operation::to_real: return index([](auto x, auto, auto) { return real_of(x); });
    case Operation::to_index:
      if (!of_reals) return index([](auto x, auto, auto) { return x; });
      return by_lane([](Word* t, const Word* x, auto*, auto*) {
        // A conversion out of range is undefined in C++.
        const float inside = std::clamp(x->real, -2147483648.0F, 2147483520.0F);
        t->index = inside == inside ? static_cast<std::int32_t>(inside) : 0;
      });
    default: return;
  }
}

/// Puts the places of elements in a tensor into frame.offsets, in 32 bits.
void Program::find_near(Frame& frame, const Instruction& instruction) const {
  const Captured& tensor = tensors_[static_cast<std::size_t>(instruction.tensor)];
  const Operand to = frame.offsets;
  const auto each = [&](const Operand& from, const auto& f) {
    for (int v = 0; v < frame.vectors; ++v) {
      Word* t = to.at(0, v);
      const Word* x = from.at(0, v);
      for (int l = 0; l < frame.lines; ++l, t += to.line, x += from.line) {
        for (int i = 0; i < lanes; i += width) f(t + i, load<Indices>(x + i));
      }
    }
  };
  const auto add = [&](bool is_first, const Operand& from, const auto& made) {
    if (is_first) {
      each(from, [&](Word* t, const Indices& index) { store(t, Indices(made(index))); });
    } else {
      each(from, [&](Word* t, const Indices& index) {
        store(t, Indices(load<Indices>(t) + made(index)));
      });
    }
  };
  if (instruction.indices == 0) each(to, [&](Word* t, const Indices&) { store(t, Indices{}); });
  for (int n = 0; n < instruction.indices; ++n) {
    const auto axis = static_cast<std::size_t>(n);
    const Index& index = indices_[static_cast<std::size_t>(instruction.first_index + n)];
    const auto size = static_cast<std::int32_t>(tensor.extent[axis]);
    const auto step = static_cast<std::int32_t>(tensor.stride[axis]);
    const Operand from = frame.of(index.from);
    if (index.place == Index::Place::inside && step == 1) {
      add(n == 0, from, [](const Indices& i) { return i; });
    } else if (index.place == Index::Place::inside) {
      add(n == 0, from, [&](const Indices& i) { return i * step; });
    } else {
      Indices outside{};
      add(n == 0, from, [&](const Indices& i) {
        const Indices own = select(i < 0, Indices(i + size), i);
        const Indices positive = select(own < 0, Indices{}, own);
        const Indices inside = select(positive < size, positive, Indices(Indices{} + (size - 1)));
        outside |= inside ^ own;
        return inside * step;
      });
      frame.outside = frame.outside || any(outside);
    }
  }
}

void Program::gather_near(Frame& frame, const Instruction& instruction) const {
  const bool flat = is_flat(instruction);
  if (!flat) find_near(frame, instruction);
  const Operand offsets =
      flat ? frame.of(indices_[static_cast<std::size_t>(instruction.first_index)].from)
           : frame.offsets;
  const Captured& tensor = tensors_[static_cast<std::size_t>(instruction.tensor)];
  const Operand to = frame.of(instruction.result);
  const auto each = [&](const auto& f) {
    for (int v = 0; v < frame.vectors; ++v) {
      for (int l = 0; l < frame.lines; ++l) f(to.at(l, v), offsets.at(l, v));
    }
  };
  if (tensor.type == Type::truth) {
    const auto* data = static_cast<const std::uint8_t*>(tensor.data);
    each([&](Word* target, const Word* offset) {
      for (int i = 0; i < lanes; ++i) target[i].index = data[offset[i].index] != 0 ? 1 : 0;
    });
    return;
  }
  const auto* data = static_cast<const Word*>(tensor.data);
  each([&](Word* target, const Word* offset) {
    // Neighbouring queries or keys often read neighbours, forward or backward.
    const Word* first = data + offset[0].index;
    const std::int32_t way = offset[1].index - offset[0].index;
    if (way == 1 && is_line(offset, 1)) {
      std::memcpy(target, first, lanes * sizeof(Word));
    } else if (way == -1 && is_line(offset, -1)) {
      for (int i = 0; i < lanes; ++i) target[i].index = first[-i].index;
    } else {
      for (int i = 0; i < lanes; ++i) target[i] = data[offset[i].index];
    }
  });
}

/// Calls use(line, vector, offsets) with the places of 16 elements in a tensor of any size.
template <class Use>
void Program::for_each_offset(Frame& frame, const Instruction& instruction,
                              const std::vector<std::int64_t>& stride, const Use& use) const {
  const auto& extent = tensors_[static_cast<std::size_t>(instruction.tensor)].extent;
  for (int l = 0; l < frame.lines; ++l) {
    for (int v = 0; v < frame.vectors; ++v) {
      std::int64_t offset[lanes] = {};
      for (int n = 0; n < instruction.indices; ++n) {
        const auto axis = static_cast<std::size_t>(n);
        const Index& index = indices_[static_cast<std::size_t>(instruction.first_index + n)];
        const Word* from = frame.of(index.from).at(l, v);
        const auto size = static_cast<std::int32_t>(extent[axis]);
        const std::int64_t step = stride[axis];
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

void Program::gather_far(Frame& frame, const Instruction& instruction) const {
  const Captured& tensor = tensors_[static_cast<std::size_t>(instruction.tensor)];
  const Operand to = frame.of(instruction.result);
  for_each_offset(frame, instruction, tensor.stride, [&](int l, int v, const auto& offset) {
    Word* target = to.at(l, v);
    for (int i = 0; i < lanes; ++i) {
      if (tensor.type == Type::truth) {
        const auto* data = static_cast<const std::uint8_t*>(tensor.data);
        target[i].index = data[offset[i]] != 0 ? 1 : 0;
      } else {
        target[i] = static_cast<const Word*>(tensor.data)[offset[i]];
      }
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
  for_each_offset(frame, instruction, dense_[tensor], add);
}

}  // namespace katt::attention
