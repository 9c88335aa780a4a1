#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "op/adapter.hpp"
#include "op/buffer.hpp"
#include "op/reference/problem.hpp"
#include "op/registry.hpp"
#include "op/schema.hpp"

/// Tensors of an operator by name: what they are, and where they lie.
namespace katt::bench {

using testing::HostValues;
using testing::Problem;

/// The elements of a tensor: elements of the dtype under test, or always the same.
enum class Element : std::uint8_t { dtype, f32, i8, u8, i64 };

/// True when a tensor has its values among the integers of a problem.
inline bool is_integer(Element element) {
  return element == Element::i64 || element == Element::u8;
}

/// A tensor by the names of its axes, e.g. {"weight", {"out_features", "in_features"}, "(O, I)"}.
struct TensorSpec {
  std::string name;
  std::vector<std::string> axes;  ///< axes of the operator, up to four
  std::string letters;            ///< for messages
  /// An axis: the tensor is there where it is neither 0 nor its first choice. In a case file such an
  /// input may be left out.
  std::string when{};
  std::string unless{};  ///< an axis: the tensor is there where it is 0
  float scale = 1.0F;    ///< standard deviation of generated values
  std::string fan_in{};  ///< an axis: that deviation is 1 / √extent
  float mean = 0.0F;     ///< of generated values
  Element element = Element::dtype;
  std::string dtype_axis{};  ///< an axis that names the dtype in place of the one under test
  /// A value of an input of integers, from a uniform number in [0, 1).
  std::function<std::int64_t(double, const Problem&)> draw{};
  /// All values of an input that is not random.
  std::function<std::vector<float>(const Problem&)> values{};
  /// An input that the operator's derive() makes of the others, once for all variants.
  bool derived = false;
  std::string sources{};  ///< the inputs that it is made of, "q k v"
  bool held = true;       ///< the arguments hold it; else it is on a device for derive() only
  /// The variant that alone reads a derived input, which is made with the outputs of that variant;
  /// "reference": the check of the outputs reads it.
  std::string variant{};
  bool kept = false;      ///< workspace of that variant
  std::string seen_as{};  ///< its name for other programs
  /// True when other programs see it: peers (Case::foreign) and, of an output, readers of a case.
  bool foreign = true;
  bool asked_of_peers = true;  ///< of an output that is foreign; few libraries give an lse
  /// The input whose memory an output takes where the axis `in_place` is 1.
  std::string over{};
  std::string reads{};  ///< of the backward pass: the output of the forward pass that it holds

  [[nodiscard]] bool is_in(const Problem& problem) const {
    return (when.empty() || problem.extent(when) != 0) &&
           (unless.empty() || problem.extent(unless) == 0);
  }
  [[nodiscard]] std::vector<std::int64_t> shape(const Problem& problem) const {
    std::vector<std::int64_t> extents;
    for (const std::string& axis : axes) {
      const std::int64_t known = op::extent_in(axis);
      extents.push_back(known > 0 ? known : problem.extent(axis));
    }
    return extents;
  }
  /// Elements; 2^56 where there are more, so that bytes of many such tensors can be added up.
  [[nodiscard]] std::int64_t size(const Problem& problem) const {
    constexpr std::int64_t most = std::int64_t{1} << 56U;
    std::int64_t count = 1;
    for (const std::int64_t extent : shape(problem)) {
      if (extent == 0) return 0;
      count = count > most / extent ? most : count * extent;
    }
    return count;
  }
  /// The dtype of a tensor that holds no integers.
  [[nodiscard]] Dtype dtype(const Problem& problem) const {
    if (element != Element::dtype) return Dtype::f32;
    return dtype_axis.empty() ? problem.dtype
                              : all_dtypes[static_cast<std::size_t>(problem.extent(dtype_axis))];
  }
  [[nodiscard]] std::size_t element_bytes(const Problem& problem) const {
    if (element == Element::i8 || element == Element::u8) return 1;
    return element == Element::i64 ? sizeof(std::int64_t) : size_of(dtype(problem));
  }
  /// Bytes on a device; 0 where the problem lacks it.
  [[nodiscard]] std::size_t bytes(const Problem& problem) const {
    return is_in(problem) ? static_cast<std::size_t>(size(problem)) * element_bytes(problem) : 0;
  }
};

using TensorSpecs = std::vector<TensorSpec>;

/// Bytes of the tensors of a problem on a device.
[[nodiscard]] std::size_t device_bytes(const TensorSpecs& specs, const Problem& problem);
/// Bytes of their generated values on the host.
[[nodiscard]] std::size_t host_bytes(const TensorSpecs& specs, const Problem& problem);

/// References to the tensors of a pass by name, for its arguments. One that is not there is empty.
class Tensors {
 public:
  explicit Tensors(const Problem& problem) : problem_(&problem) {}
  [[nodiscard]] const Problem& problem() const { return *problem_; }

  [[nodiscard]] float parameter(std::string_view name) const {
    return static_cast<float>(problem_->parameter(name));
  }

  void set(const std::string& name, const TensorRef<4>& ref) { refs_[name] = ref; }
  [[nodiscard]] std::size_t size() const { return refs_.size(); }
  template <int Rank>
  [[nodiscard]] TensorRef<Rank> tensor(std::string_view name) const {
    TensorRef<Rank> ref;
    const auto found = refs_.find(name);
    if (found == refs_.end()) return ref;
    const TensorRef<4>& held = found->second;
    ref.data = held.data;
    ref.dtype = held.dtype;
    for (int axis = 0; axis < Rank; ++axis) {
      ref.extent[axis] = held.extent[4 - Rank + axis];
      ref.stride[axis] = held.stride[4 - Rank + axis];
    }
    return ref;
  }
  [[nodiscard]] TensorRef<2> matrix(std::string_view name) const { return tensor<2>(name); }
  [[nodiscard]] TensorRef<1> vector(std::string_view name) const { return tensor<1>(name); }
  [[nodiscard]] const std::int64_t* indices(std::string_view name) const {
    return static_cast<const std::int64_t*>(tensor<1>(name).data);
  }
  [[nodiscard]] std::int8_t* bytes(std::string_view name) const {
    return static_cast<std::int8_t*>(tensor<1>(name).data);
  }
  [[nodiscard]] const std::uint8_t* flags(std::string_view name) const {
    return static_cast<const std::uint8_t*>(tensor<1>(name).data);
  }

 private:
  const Problem* problem_;
  std::map<std::string, TensorRef<4>, std::less<>> refs_;
};

/// "(T, H)" of "tokens hidden".
[[nodiscard]] std::string letters_of(std::string_view axes);
/// A tensor of a schema as sweeps know it; `element` is what it holds.
[[nodiscard]] TensorSpec spec_of(const op::TensorTraits& tensor, Element element);

/// The elements of a field with this member.
template <class Held>
constexpr Element element_of(const op::TensorTraits& tensor) {
  if constexpr (std::is_pointer_v<Held>) {
    using T = std::remove_const_t<std::remove_pointer_t<Held>>;
    if constexpr (std::is_same_v<T, float>) {
      return Element::f32;
    } else if constexpr (std::is_same_v<T, std::int8_t>) {
      return Element::i8;
    } else {
      static_assert(std::is_same_v<T, std::int64_t> || std::is_same_v<T, std::uint8_t>,
                    "an array of a schema holds float, int8, uint8 or int64");
      return sizeof(T) == 1 ? Element::u8 : Element::i64;
    }
  } else {
    return tensor.is_integer ? Element::i64
           : tensor.is_bytes ? Element::i8
           : tensor.is_f32   ? Element::f32
                             : Element::dtype;
  }
}

/// The inputs or the outputs of a schema.
template <const auto& schema, class Args>
[[nodiscard]] TensorSpecs specs(bool outputs) {
  TensorSpecs list;
  schema.each_tensor([&](const auto& field) {
    using Held = std::remove_cvref_t<decltype(field.where.in(std::declval<Args&>()))>;
    if (field.tensor.is_output != outputs) return;
    list.push_back(spec_of(field.tensor, element_of<Held>(field.tensor)));
    list.back().held = op::is_held<Held>;
  });
  return list;
}

/// A number of a schema that is no axis: an attribute of case files.
struct Parameter {
  double fallback = 0, minimum = 0;
};

/// The numbers of a schema by name.
template <const auto& schema, class Args>
[[nodiscard]] std::map<std::string, Parameter> parameters(const std::vector<AxisSpec>& axes) {
  std::map<std::string, Parameter> defaults;
  const Args args{};
  schema.each_number([&](const auto& field) {
    const std::string name(field.name);
    if (field.is_optional || std::any_of(axes.begin(), axes.end(),
                                         [&](const AxisSpec& axis) { return axis.name == name; })) {
      return;
    }
    defaults[name] = {as_written(static_cast<float>(field.where.in(args))), field.minimum};
  });
  return defaults;
}

/// The arguments of a pass from its tensors, parameters and axes by name.
template <const auto& schema, class Args>
[[nodiscard]] Args arguments(const Tensors& tensors) {
  Args args{};
  schema.each_tensor([&](const auto& field) {
    auto& held = field.where.in(args);
    using Held = std::remove_reference_t<decltype(held)>;
    if constexpr (std::is_pointer_v<Held>) {
      held = static_cast<Held>(tensors.tensor<1>(field.tensor.name).data);
    } else if constexpr (op::is_held<Held>) {
      held = tensors.tensor<op::RankOf<Held>::value>(field.tensor.name);
    }
  });
  schema.each_number([&](const auto& field) {
    auto& held = field.where.in(args);
    using Held = std::remove_reference_t<decltype(held)>;
    const Problem& problem = tensors.problem();
    if (const auto real = problem.parameters.find(field.name); real != problem.parameters.end()) {
      held = static_cast<Held>(real->second);
    } else if (const auto axis = problem.extents.find(field.name); axis != problem.extents.end()) {
      held = static_cast<Held>(axis->second);
    }
  });
  return args;
}

/// Tensors that own their memory on a backend. Tensors that the problem lacks are left out.
class DeviceTensors {
 public:
  DeviceTensors() = default;
  /// Rows lie `gap` elements further apart than they are long.
  DeviceTensors(std::string_view op, Backend backend, const TensorSpecs& specs,
                const Problem& problem, std::int64_t gap = 0);

  /// The values of the problem, of those that have some.
  void upload(const Problem& problem) const;
  void upload(std::string_view name, std::span<const float> values) const;
  /// Some rows (of the last axis) of all values of a tensor.
  void upload_rows(std::string_view name, std::span<const float> values, std::int64_t first,
                   std::int64_t count) const;
  /// Values in the order of the storage, from its element `first` on.
  void upload_stored(std::string_view name, std::span<const float> values, std::size_t first) const;
  void poison() const;
  /// Makes the references of `tensors` point here.
  void add_to(Tensors& tensors) const;
  /// As float32; integers are not brought back.
  [[nodiscard]] HostValues download() const;
  [[nodiscard]] std::vector<float> download(std::string_view name) const;
  [[nodiscard]] bool gaps_are_nan() const;

 private:
  struct Held {
    Element element;
    Tensor<4> floats;
    Buffer bytes;
  };
  std::map<std::string, Held, std::less<>> held_;
};

/// Seeded values for the inputs of a problem, each from a stream of its own.
void generate(Problem& problem, const TensorSpecs& inputs, std::uint64_t seed);

/// References for workspace sizes, refusals and work: their addresses differ, as those of tensors
/// do, and hold nothing.
void add_shapes(Tensors& tensors, const TensorSpecs& specs, const Problem& problem);

}  // namespace katt::bench
