#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>
#include <variant>
#include <vector>

#include "arrays.hpp"
#include "core/text.hpp"
#include "op/schema.hpp"
#include "runtime.hpp"

/// Passes of operators as Python calls them, made from their schemas.
namespace katt::python {

/// A tensor of a pass, as katt/_operators.py reads it.
struct TensorInfo {
  std::string name;                 ///< of the argument
  std::vector<std::string> axes{};  ///< none: one number
  std::string element;              ///< "": the dtype of the arrays; "f32", "i8", "u8", "i64"
  bool is_output = false;
  bool is_dense = false;  ///< true: an array without strides, of any shape with as many elements
  std::string when, unless;
  bool is_optional = false;
  bool is_hidden = false;  ///< for the backward pass alone
  std::string dtype_axis, reads, gradient_of;
};

using Number = std::variant<bool, std::int64_t, double>;

/// A pass: its arguments, and the function that runs it.
struct PassInfo {
  std::string op;
  bool is_backward = false;
  std::string formula, source;
  std::vector<TensorInfo> tensors{};
  std::vector<std::pair<std::string, Number>> numbers{};  ///< with their defaults
  bool has_tiles = false;                                 ///< true: variants of it have parameters
  /// Tensors, None where one is missing, and numbers, in these orders.
  void (*run)(const nb::tuple& tensors, const nb::tuple& numbers, const Call& call) = nullptr;
};

/// The passes of the operators of this build.
[[nodiscard]] std::vector<PassInfo> passes();

namespace impl {

inline const char* argument_of(const op::TensorTraits& tensor) {
  return (tensor.argument.empty() ? tensor.name : tensor.argument).data();  // of a literal
}

/// True for rows (tokens, …): an array may have any number of axes in place of the first.
constexpr bool is_of_tokens(std::string_view axes) { return axes.starts_with("tokens"); }

template <class Held>
Held read_tensor(Arrays& in, nb::handle object, const op::TensorTraits& tensor) {
  constexpr int rank = op::RankOf<Held>::value;
  const char* const name = argument_of(tensor);
  if constexpr (rank == 1) {
    if (tensor.axes.empty() && !object.is_none()) return in.scalar(object, name);
  }
  if constexpr (rank == 2) {
    if (is_of_tokens(tensor.axes)) {
      const Held rows = in.rows(object, name);
      if (tensor.is_output && rows.extent[0] > 1 && rows.stride[0] < rows.extent[1]) {
        in.refuse(name, "rows that overlap", "rows that do not; make it contiguous");
      }
      return rows;
    }
  }
  return in.tensor<rank>(object, name);
}

/// Dense elements; as many as the axes that other tensors have said, else as there are.
template <class T>
T* read_elements(Arrays& in, nb::handle object, const op::TensorTraits& tensor,
                 std::int64_t count) {
  const char* const name = argument_of(tensor);
  using Element = std::remove_const_t<T>;
  if constexpr (std::is_same_v<Element, float>) {
    return in.floats(object, name, count);
  } else if constexpr (std::is_same_v<Element, std::int8_t>) {
    return in.int8s(object, name, count);
  } else if constexpr (std::is_same_v<Element, std::int64_t>) {
    return in.integers(object, name, count);
  } else {
    static_assert(std::is_same_v<Element, std::uint8_t>,
                  "an array of a schema holds float, int8, uint8 or int64");
    return in.bytes(object, name, count);
  }
}

template <class T>
T read_number(const Arrays& in, nb::handle object, const char* name) {
  if constexpr (std::is_same_v<T, bool>) {
    return in.flag(object, name);
  } else if constexpr (std::is_floating_point_v<T>) {
    return static_cast<T>(in.real(object, name));
  } else {
    return static_cast<T>(in.integer(object, name));
  }
}

template <class Held>
std::string element_of(const op::TensorTraits& tensor) {
  if constexpr (op::RankOf<Held>::value >= 0) {
    return tensor.is_f32 ? "f32" : "";
  } else {
    using T = std::remove_const_t<std::remove_pointer_t<Held>>;
    return std::is_same_v<T, float>          ? "f32"
           : std::is_same_v<T, std::int8_t>  ? "i8"
           : std::is_same_v<T, std::uint8_t> ? "u8"
                                             : "i64";
  }
}

/// Calls f(tensor, held) for the tensors that have a place among the arguments, without what a variant
/// keeps of its own forward pass.
template <const auto& schema, class Args, class F>
void each_held(Args& args, const F& f) {
  schema.each_tensor([&](const auto& field) {
    auto& held = field.where.in(args);
    if constexpr (op::is_held<std::remove_cvref_t<decltype(held)>>) {
      if (!field.tensor.is_kept) f(field.tensor, held);
    }
  });
}

/// Reads the arguments of a pass, completes them by complete(in, args), checks them and runs it, with
/// variants of the table.
template <class Op, bool Backward, class Table, class Complete>
void run_pass_of(const nb::tuple& tensors, const nb::tuple& numbers, const Call& call,
                 const Table& table, const Complete& complete) {
  using Pass = op::TypedPass<Op, Backward>;
  constexpr const auto& schema = Pass::schema;
  Arrays in(Op::python_name);
  typename Pass::Args args{};
  op::impl::Axes<schema> axes;
  std::size_t i = 0;
  each_held<schema>(args, [&]<class Held>(const op::TensorTraits& tensor, Held& held) {
    const nb::handle object = tensors[i++];
    if constexpr (!std::is_pointer_v<Held>) {
      held = read_tensor<Held>(in, object, tensor);
      if (object.is_none()) return;
      op::each_axis(tensor.axes,
                    [&](int axis, std::string_view name) { axes.of(name, held.extent[axis]); });
    }
  });
  i = 0;
  each_held<schema>(args, [&]<class Held>(const op::TensorTraits& tensor, Held& held) {
    const nb::handle object = tensors[i++];
    if constexpr (std::is_pointer_v<Held>) {
      std::int64_t count = 1;
      op::each_axis(tensor.axes, [&](int, std::string_view name) {
        const std::int64_t extent = axes.find(name);
        count = extent < 0 || count < 0 ? -1 : count * extent;
      });
      held = read_elements<std::remove_pointer_t<Held>>(in, object, tensor, count);
    }
  });
  i = 0;
  schema.each_number([&](const auto& field) {
    auto& held = field.where.in(args);
    held = read_number<std::remove_cvref_t<decltype(held)>>(in, numbers[i++], field.name.data());
  });
  complete(in, args);
  run<Pass>(in, args, call, table);
}

template <class Op, bool Backward>
void run_pass(const nb::tuple& tensors, const nb::tuple& numbers, const Call& call) {
  run_pass_of<Op, Backward>(tensors, numbers, call, TableOf<op::TypedPass<Op, Backward>>{},
                            [](const auto&, const auto&) {});
}

template <class Op, bool Backward>
PassInfo info_of() {
  using Pass = op::TypedPass<Op, Backward>;
  constexpr const auto& schema = Pass::schema;
  PassInfo pass{
      .op = Op::python_name,
      .is_backward = Backward,
      .formula = std::string(Backward ? Op::documentation.backward : Op::documentation.forward),
      .source = std::string(Op::documentation.source),
      .run = run_pass<Op, Backward>};
  typename Pass::Args args{};
  each_held<schema>(args, [&]<class Held>(const op::TensorTraits& tensor, const Held&) {
    TensorInfo info{.name = argument_of(tensor),
                    .element = element_of<Held>(tensor),
                    .is_output = tensor.is_output,
                    .is_dense = std::is_pointer_v<Held>,
                    .when = std::string(tensor.when),
                    .unless = std::string(tensor.unless),
                    .is_optional = tensor.is_optional,
                    .is_hidden = !tensor.is_foreign,
                    .dtype_axis = std::string(tensor.dtype_axis),
                    .reads = std::string(tensor.reads),
                    .gradient_of = std::string(tensor.gradient_of)};
    op::each_axis(tensor.axes, [&](int, std::string_view axis) { info.axes.emplace_back(axis); });
    pass.tensors.push_back(std::move(info));
  });
  schema.each_number([&](const auto& field) {
    const auto value = field.where.in(args);
    if constexpr (std::is_floating_point_v<decltype(value)>) {
      pass.numbers.emplace_back(field.name, bench::as_written(value));
    } else {
      pass.numbers.emplace_back(field.name, value);
    }
  });
  for (const auto& variant : Pass::template table<Host>().all()) {
    pass.has_tiles = pass.has_tiles || !variant.parameters.empty();
  }
  return pass;
}

}  // namespace impl
}  // namespace katt::python

/// Names the types of the operator in namespace katt::NAME, whose schema.hpp has been included.
#define KATT_BIND_OPERATOR(NAME)                                              \
  namespace katt::python {                                                    \
  struct NAME##_operator {                                                    \
    KATT_PASSES_OF(NAME)                                                      \
    static constexpr const char* python_name = #NAME;                         \
    static constexpr const auto& documentation = ::katt::NAME::documentation; \
  };                                                                          \
  }
