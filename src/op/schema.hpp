#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <vector>

#include "core/check.hpp"
#include "core/error.hpp"
#include "core/tensor.hpp"

/// The arguments of a pass, said once. Beside its arguments an operator declares
///
///   inline constexpr auto forward_schema = op::schema(
///       "rmsnorm",
///       op::in("x", &ForwardArgs::x, "tokens hidden"),
///       op::in("weight", &ForwardArgs::weight, "hidden"),
///       op::in("residual", &ForwardArgs::residual, "tokens hidden").when("residual"),
///       op::out("out", &ForwardArgs::out, "tokens hidden"),
///       op::number("eps", &ForwardArgs::eps, 0));
///   inline constexpr op::Documentation documentation{
///       .forward = "out = h / √(mean(h²) + eps) · weight, h = x + residual", …};
///
/// From it follow check() and bytes() here, and in op/tensors.hpp the tensors of sweeps, case files,
/// tests and bindings, and the arguments from tensors by name; in python/bindings/passes.hpp the functions of
/// Python. Axes have the names that sweeps give them; an axis that is a digit has that extent.
namespace katt::testing {
struct Problem;
}  // namespace katt::testing

namespace katt::op {

/// Docstrings of Python's functions besides shapes: formulas, and where they come from.
struct Documentation {
  std::string_view forward;   ///< formula, and what a caller must know of the arguments
  std::string_view backward;  ///< formula of the gradients
  std::string_view source;    ///< authors, year, number, equation; "" for a definition
};

/// A member of the arguments, or of one of their members: args.mask.kv_len.
template <class... Members>
struct Path {
  std::tuple<Members...> members;

  template <class Args>
  constexpr auto& in(Args& args) const {
    return std::apply(
        [&](auto... member) -> auto& { return (args.*....*member); }, members);
  }
};

/// The path `mask`, `kv_len` of op::in("kv_len", op::path(&ForwardArgs::mask, &MaskArgs::kv_len), …).
template <class... Members>
constexpr Path<Members...> path(Members... members) {
  return {{members...}};
}

/// Properties of a tensor besides its place among the arguments.
struct TensorTraits {
  std::string_view name;
  std::string_view axes;  ///< names of the axes, "tokens hidden"
  bool is_output = false;
  std::string_view letters{};  ///< for messages; else the axes' first letters, "(T, H)"
  /// An axis: the tensor is there where it is not 0. Tensors with the same one are there together.
  std::string_view when{};
  std::string_view unless{};      ///< an axis: the tensor is there where it is 0
  bool is_optional = false;       ///< it may be left out by itself
  bool is_integer = false;        ///< int64, of a field without a place among the arguments
  bool is_f32 = false;            ///< whatever the dtype of the others
  std::string_view dtype_axis{};  ///< an axis that names the dtype in place of the one under test
  float scale = 1.0F;             ///< standard deviation of generated values
  std::string_view fan_in{};      ///< an axis: that deviation is 1 / √extent
  float mean = 0.0F;              ///< of generated values
  /// A value of an input of integers, from a uniform number in [0, 1).
  std::int64_t (*draw)(double, const testing::Problem&) = nullptr;
  /// All values of an input that is not random.
  std::vector<float> (*values)(const testing::Problem&) = nullptr;
  bool is_derived = false;     ///< an input that the operator makes of the others
  std::string_view sources{};  ///< the inputs that it is made of, "q k v"
  /// The one variant that reads a derived input, or "reference", the check of the outputs.
  std::string_view variant{};
  bool is_kept = false;        ///< it is workspace of that variant, of its own forward pass
  bool is_bytes = false;       ///< of a field without a place among the arguments
  std::string_view seen_as{};  ///< its name for peers, where that is another
  bool is_foreign = true;      ///< peers and case files know it
  bool is_asked_of_peers = true;
  std::string_view over{};  ///< of an output: the input whose memory it takes in place
  /// The output of the forward pass that an input of the backward pass holds, where there is one.
  std::string_view reads{};
  /// The inputs of the forward pass whose gradient an output of the backward pass is; else the
  /// one that its name says after a d.
  std::string_view gradient_of{};
  std::string_view argument{};  ///< its name in Python, where case files have another
};

/// A tensor of the arguments: a BasicTensorRef, or a pointer to dense elements.
template <class Where>
struct TensorField {
  Where where;
  TensorTraits tensor;

  constexpr TensorField when(std::string_view axis) const { return set(&TensorTraits::when, axis); }
  constexpr TensorField unless(std::string_view axis) const {
    return set(&TensorTraits::unless, axis);
  }
  constexpr TensorField letters(std::string_view text) const {
    return set(&TensorTraits::letters, text);
  }
  constexpr TensorField over(std::string_view input) const {
    return set(&TensorTraits::over, input);
  }
  constexpr TensorField dtype(std::string_view axis) const {
    return set(&TensorTraits::dtype_axis, axis);
  }
  constexpr TensorField reads(std::string_view output) const {
    return set(&TensorTraits::reads, output);
  }
  constexpr TensorField gradient_of(std::string_view inputs) const {
    return set(&TensorTraits::gradient_of, inputs);
  }
  constexpr TensorField argument(std::string_view name) const {
    return set(&TensorTraits::argument, name);
  }
  constexpr TensorField optional() const { return set(&TensorTraits::is_optional, true); }
  constexpr TensorField f32() const { return set(&TensorTraits::is_f32, true); }
  constexpr TensorField scale(float deviation) const {
    return set(&TensorTraits::scale, deviation);
  }
  constexpr TensorField fan_in(std::string_view axis) const {
    return set(&TensorTraits::fan_in, axis);
  }
  constexpr TensorField mean(float value) const { return set(&TensorTraits::mean, value); }
  constexpr TensorField integers() const { return set(&TensorTraits::is_integer, true); }
  constexpr TensorField draw(std::int64_t (*value)(double, const testing::Problem&)) const {
    return set(&TensorTraits::draw, value);
  }
  constexpr TensorField values(std::vector<float> (*all)(const testing::Problem&)) const {
    return set(&TensorTraits::values, all);
  }
  constexpr TensorField derived(std::string_view sources = {}) const {
    return set(&TensorTraits::is_derived, true).set(&TensorTraits::sources, sources);
  }
  constexpr TensorField read_by(std::string_view variant, std::string_view sources = {}) const {
    return derived(sources).set(&TensorTraits::variant, variant);
  }
  constexpr TensorField kept_by(std::string_view variant, std::string_view sources) const {
    return read_by(variant, sources).set(&TensorTraits::is_kept, true);
  }
  constexpr TensorField bytes() const { return set(&TensorTraits::is_bytes, true); }
  constexpr TensorField seen_as(std::string_view name) const {
    return set(&TensorTraits::seen_as, name);
  }
  constexpr TensorField hidden() const { return set(&TensorTraits::is_foreign, false); }
  constexpr TensorField not_of_peers() const {
    return set(&TensorTraits::is_asked_of_peers, false);
  }

 private:
  template <class T>
  constexpr TensorField set(T TensorTraits::*member, T value) const {
    TensorField field = *this;
    field.tensor.*member = value;
    return field;
  }
};

/// A number of the arguments: float, an integer or bool. It is a parameter, or an axis of that name.
template <class Where>
struct NumberField {
  Where where;
  std::string_view name;
  double minimum;
  bool is_optional = false;  ///< a case file may leave it out

  constexpr NumberField optional() const { return {where, name, minimum, true}; }
};

template <class Where>
constexpr auto as_path(Where where) {
  if constexpr (std::is_member_pointer_v<Where>) {
    return path(where);
  } else {
    return where;
  }
}

template <class Where>
constexpr auto in(std::string_view name, Where where, std::string_view axes) {
  return TensorField<decltype(as_path(where))>{as_path(where), {.name = name, .axes = axes}};
}
/// An input of the forward pass that this pass does not read; other programs do.
constexpr TensorField<Path<>> in(std::string_view name, std::string_view axes) {
  return {{}, {.name = name, .axes = axes}};
}
template <class Where>
constexpr auto out(std::string_view name, Where where, std::string_view axes) {
  return TensorField<decltype(as_path(where))>{as_path(where),
                                               {.name = name, .axes = axes, .is_output = true}};
}
/// A real number must be finite and at least `minimum`.
template <class Where>
constexpr auto number(std::string_view name, Where where,
                      double minimum = -std::numeric_limits<double>::infinity()) {
  return NumberField<decltype(as_path(where))>{as_path(where), name, minimum};
}

template <class... Fields>
struct Schema {
  std::string_view op;
  std::tuple<Fields...> fields;

  /// Calls f(field) for every tensor.
  template <class F>
  constexpr void each_tensor(const F& f) const {
    each([&](const auto& field) {
      if constexpr (requires { field.tensor; }) f(field);
    });
  }
  template <class F>
  constexpr void each_number(const F& f) const {
    each([&](const auto& field) {
      if constexpr (!requires { field.tensor; }) f(field);
    });
  }

 private:
  template <class F>
  constexpr void each(const F& f) const {
    std::apply([&](const auto&... field) { (f(field), ...); }, fields);
  }
};

template <class... Fields>
constexpr Schema<Fields...> schema(std::string_view op, Fields... fields) {
  return {op, {fields...}};
}

/// Calls f(i, name) for the names of "tokens hidden".
template <class F>
constexpr void each_axis(std::string_view axes, const F& f) {
  for (int i = 0; !axes.empty(); ++i) {
    const auto end = std::min(axes.find(' '), axes.size());
    f(i, axes.substr(0, end));
    axes.remove_prefix(std::min(end + 1, axes.size()));
  }
}
constexpr int axis_count(std::string_view axes) {
  int count = 0;
  each_axis(axes, [&](int, std::string_view) { ++count; });
  return count;
}

/// The extent that an axis has by its name, "2"; 0 of any other.
constexpr std::int64_t extent_in(std::string_view axis) {
  return axis.size() == 1 && axis[0] > '0' && axis[0] <= '9' ? axis[0] - '0' : 0;
}

namespace impl {
template <int Rank, bool Const>
std::integral_constant<int, Rank> rank_of(const BasicTensorRef<Rank, Const>*);
std::integral_constant<int, -1> rank_of(const void*);
}  // namespace impl

/// Axes of a tensor, or of what derives from one; −1 of anything else.
template <class T>
struct RankOf : decltype(impl::rank_of(static_cast<T*>(nullptr))) {};

/// True when a field has a place among the arguments.
template <class Held>
constexpr bool is_held = std::is_pointer_v<Held> || RankOf<Held>::value >= 0;

/// True when every tensor names as many axes as it has. A scalar output is a tensor of one element.
template <class Args, class... Fields>
consteval bool names_every_axis(const Schema<Fields...>& schema) {
  bool fits = true;
  schema.each_tensor([&]<class Where>(const TensorField<Where>& field) {
    using Held = std::remove_cvref_t<decltype(field.where.in(std::declval<Args&>()))>;
    const int axes = axis_count(field.tensor.axes);
    if (RankOf<Held>::value >= 0 && axes != RankOf<Held>::value && axes != 0) fits = false;
  });
  return fits;
}

namespace impl {

/// The axes of a schema, each once.
template <const auto& schema>
struct Axes {
  static constexpr int most = [] {
    int count = 0;
    schema.each_tensor([&](const auto& field) { count += axis_count(field.tensor.axes); });
    return count;
  }();
  std::array<std::string_view, most> names{};
  std::array<std::int64_t, most> extents{};
  int count = 0;

  /// The extent of an axis, said now where it was not known.
  std::int64_t of(std::string_view name, std::int64_t extent) {
    if (const std::int64_t known = find(name); known >= 0) return known;
    names[count] = name;
    extents[count++] = extent;
    return extent;
  }
  /// The extent of an axis; −1 where nothing has said it.
  [[nodiscard]] std::int64_t find(std::string_view name) const {
    if (const std::int64_t known = extent_in(name); known > 0) return known;
    for (int i = 0; i < count; ++i) {
      if (names[i] == name) return extents[i];
    }
    return -1;
  }
};

/// True when a tensor is there, by its shape; an array by its address.
template <class Held>
bool is_there(const Held& held) {
  if constexpr (std::is_pointer_v<Held>) {
    return held != nullptr;
  } else {
    return held.extent.back() > 0;
  }
}

inline void fail(std::string_view op, std::string_view what) {
  throw InputError(std::string(op) + ": " + std::string(what));
}

}  // namespace impl

/// Holds the arguments against the schema: tensors agree in their axes and have the dtype of the
/// first one, those with the same condition are there together, and numbers are in their range. Arrays
/// that no condition brings may lack memory, as for a forecast.
/// Throws InputError "OP: NAME: holds …, expected …".
template <const auto& schema, class Args>
void check(const Args& args) {
  static_assert(names_every_axis<Args>(schema),
                "a tensor names another number of axes than it has");
  schema.each_number([&](const auto& field) {
    const auto value = field.where.in(args);
    if constexpr (std::is_floating_point_v<decltype(value)>) {
      if (!(value >= field.minimum) || !std::isfinite(value)) {
        impl::fail(schema.op, std::string(field.name) + " " + std::to_string(value) +
                                  ": expected a finite number" +
                                  (field.minimum == 0 ? " ≥ 0" : ""));
      }
    }
  });
  impl::Axes<schema> axes;
  const Dtype* dtype = nullptr;
  std::string_view condition;  // of the last conditional tensor
  std::string_view leader;     // the first of that condition
  bool leads = false;          // true when that one is there
  schema.each_tensor([&](const auto& field) {
    const TensorTraits& tensor = field.tensor;
    const auto& held = field.where.in(args);
    using Held = std::remove_cvref_t<decltype(held)>;
    if constexpr (is_held<Held>) {
      const bool is_there = impl::is_there(held);
      if (!tensor.when.empty() && tensor.when == condition) {
        if constexpr (std::is_pointer_v<Held>) {
          if (is_there != leads) {
            impl::fail(schema.op, std::string(leader) + " and " + std::string(tensor.name) +
                                      ": one is missing, expected both or none");
          }
        } else if (is_there && !leads) {
          impl::fail(schema.op,
                     std::string(tensor.name) + ": given without a " + std::string(leader));
        }
        if (!leads) return;
      } else if (!tensor.when.empty()) {
        condition = tensor.when;
        leader = tensor.name;
        leads = is_there;
        if (!leads) return;
      } else if ((tensor.is_optional || !tensor.unless.empty()) && !is_there) {
        return;
      }
      if constexpr (!std::is_pointer_v<Held>) {
        if (tensor.dtype_axis.empty() && !tensor.is_f32 && dtype == nullptr) dtype = &held.dtype;
        auto expected = held.extent;
        each_axis(tensor.axes, [&](int i, std::string_view axis) {
          expected[i] = axes.of(axis, held.extent[i]);
        });
        const Dtype wanted = tensor.is_f32               ? Dtype::f32
                             : tensor.dtype_axis.empty() ? *dtype
                                                         : held.dtype;
        check_tensor<RankOf<Held>::value>(schema.op, tensor.name, held, wanted, expected);
      }
    }
  });
}

/// Least traffic in bytes: every tensor that is there once. Arrays that no condition brings count
/// without memory, too, as for a forecast.
template <const auto& schema, class Args>
double bytes(const Args& args) {
  impl::Axes<schema> axes;
  double sum = 0;
  schema.each_tensor([&](const auto& field) {
    const auto& held = field.where.in(args);
    using Held = std::remove_cvref_t<decltype(held)>;
    if constexpr (RankOf<Held>::value >= 0) {
      each_axis(field.tensor.axes,
                [&](int i, std::string_view axis) { axes.of(axis, held.extent[i]); });
      if (impl::is_there(held)) {
        sum += static_cast<double>(size_of(held.dtype)) * static_cast<double>(held.size());
      }
    }
  });
  schema.each_tensor([&](const auto& field) {
    const auto& held = field.where.in(args);
    using Held = std::remove_cvref_t<decltype(held)>;
    if constexpr (std::is_pointer_v<Held>) {
      const bool may_lack = !field.tensor.when.empty() || field.tensor.is_optional;
      double size = may_lack && !impl::is_there(held) ? 0.0 : sizeof(*held);
      each_axis(field.tensor.axes,
                [&](int, std::string_view axis) { size *= static_cast<double>(axes.of(axis, 0)); });
      sum += size;
    }
  });
  return sum;
}

/// The schema of a pass.
template <class Op, bool Backward>
constexpr const auto& schema_of() {
  if constexpr (Backward) {
    return Op::backward_schema;
  } else {
    return Op::forward_schema;
  }
}

/// A pass of what KATT_PASSES_OF() or a description (op/tensor_operator.hpp) names.
template <class Op, bool Backward>
struct TypedPass {
  using Args = std::conditional_t<Backward, typename Op::BackwardArgs, typename Op::ForwardArgs>;
  static constexpr const auto& schema = schema_of<Op, Backward>();

  /// The table of variants, of a problem where the description has one for it.
  template <class Exec, class... Problem>
  static auto& table(const Problem&... problem) {
    if constexpr (!Backward) {
      if constexpr (requires { Op::template forward_variants<Exec>(problem...); }) {
        return Op::template forward_variants<Exec>(problem...);
      } else {
        return Op::template forward_variants<Exec>();
      }
    } else if constexpr (requires { Op::template backward_variants<Exec>(problem...); }) {
      return Op::template backward_variants<Exec>(problem...);
    } else {
      return Op::template backward_variants<Exec>();
    }
  }
};

}  // namespace katt::op

/// Defines the name of an operator, its passes' arguments and schemas, and its tables of variants, from
/// namespace katt::NAME.
#define KATT_PASSES_OF(NAME)                                                    \
  static constexpr const char* name = ::katt::NAME::forward_schema.op.data();   \
  using ForwardArgs = ::katt::NAME::ForwardArgs;                                \
  using BackwardArgs = ::katt::NAME::BackwardArgs;                              \
  static constexpr const auto& forward_schema = ::katt::NAME::forward_schema;   \
  static constexpr const auto& backward_schema = ::katt::NAME::backward_schema; \
  template <class Exec>                                                         \
  static auto& forward_variants() {                                             \
    return ::katt::NAME::forward_variants<Exec>();                              \
  }                                                                             \
  template <class Exec>                                                         \
  static auto& backward_variants() {                                            \
    return ::katt::NAME::backward_variants<Exec>();                             \
  }
