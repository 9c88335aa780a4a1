#include "op/tensors.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "op/reference/fill.hpp"

namespace katt::bench {
namespace {

/// The shape with ones before it.
std::array<std::int64_t, 4> padded(const TensorSpec& spec, const Problem& problem) {
  const auto shape = spec.shape(problem);
  std::array<std::int64_t, 4> extents{1, 1, 1, 1};
  std::copy(shape.begin(), shape.end(), extents.end() - static_cast<std::ptrdiff_t>(shape.size()));
  return extents;
}

bool is_float(Element element) { return element == Element::dtype || element == Element::f32; }

/// The axis `layout` of an operator says how (batch, head, seq, dim) is stored.
HeadLayout layout_of(const TensorSpec& spec, const Problem& problem) {
  return spec.axes.size() == 4 && problem.extent("layout") != 0 ? HeadLayout::bshd
                                                                : HeadLayout::bhsd;
}

}  // namespace

std::string letters_of(std::string_view axes) {
  std::string letters = "(";
  op::each_axis(axes, [&](int i, std::string_view axis) {
    letters += (i > 0 ? ", " : "") + std::string(1, static_cast<char>(axis.front() - 'a' + 'A'));
  });
  return letters + ")";
}

TensorSpec spec_of(const op::TensorTraits& tensor, Element element) {
  std::vector<std::string> axes;
  op::each_axis(tensor.axes, [&](int, std::string_view axis) { axes.emplace_back(axis); });
  TensorSpec spec{
      .name = std::string(tensor.name),
      .axes = std::move(axes),
      .letters = tensor.letters.empty() ? letters_of(tensor.axes) : std::string(tensor.letters),
      .when = std::string(tensor.when),
      .unless = std::string(tensor.unless),
      .scale = tensor.scale,
      .fan_in = std::string(tensor.fan_in),
      .mean = tensor.mean,
      .element = element,
      .dtype_axis = std::string(tensor.dtype_axis),
      .derived = tensor.is_derived,
      .sources = std::string(tensor.sources),
      .variant = std::string(tensor.variant),
      .kept = tensor.is_kept,
      .seen_as = std::string(tensor.seen_as.empty() ? tensor.name : tensor.seen_as),
      .foreign = tensor.is_foreign,
      .asked_of_peers = tensor.is_asked_of_peers,
      .over = std::string(tensor.over),
      .reads = std::string(tensor.reads)};
  if (tensor.draw != nullptr) spec.draw = tensor.draw;
  if (tensor.values != nullptr) spec.values = tensor.values;
  return spec;
}

std::size_t device_bytes(const TensorSpecs& specs, const Problem& problem) {
  std::size_t sum = 0;
  for (const TensorSpec& spec : specs) sum += spec.bytes(problem);
  return sum;
}

std::size_t host_bytes(const TensorSpecs& specs, const Problem& problem) {
  std::size_t sum = 0;
  for (const TensorSpec& spec : specs) {
    const std::size_t each = is_integer(spec.element) ? sizeof(std::int64_t)
                             : spec.derived           ? 0
                                                      : sizeof(float);
    sum += spec.bytes(problem) / spec.element_bytes(problem) * each;
  }
  return sum;
}

DeviceTensors::DeviceTensors(std::string_view op, Backend backend, const TensorSpecs& specs,
                             const Problem& problem, std::int64_t gap) {
  for (const TensorSpec& spec : specs) {
    if (!spec.is_in(problem)) continue;
    const std::string label = "katt::" + std::string(op) + "::" + spec.name;
    Held held{spec.element, {}, {}};
    if (is_float(spec.element)) {
      held.floats = {label,
                     backend,
                     spec.dtype(problem),
                     padded(spec, problem),
                     layout_of(spec, problem),
                     spec.axes.size() > 1 && spec.element == Element::dtype ? gap : 0};
    } else {
      held.bytes = {label, backend,
                    static_cast<std::size_t>(spec.size(problem)) * spec.element_bytes(problem)};
    }
    held_.emplace(spec.name, std::move(held));
  }
}

void DeviceTensors::upload(const Problem& problem) const {
  for (const auto& [name, held] : held_) {
    if (is_integer(held.element)) {
      const auto indices = problem.indices(name);
      if (held.element == Element::i64) {
        held.bytes.upload(std::as_bytes(indices));
      } else {
        const std::vector<std::uint8_t> flags(indices.begin(), indices.end());
        held.bytes.upload(std::as_bytes(std::span(flags)));
      }
    } else if (const auto found = problem.values.find(name); found != problem.values.end()) {
      held.floats.upload(found->second);
    }
  }
}

void DeviceTensors::upload(std::string_view name, std::span<const float> values) const {
  held_.find(name)->second.floats.upload(values);
}

void DeviceTensors::upload_rows(std::string_view name, std::span<const float> values,
                                std::int64_t first, std::int64_t count) const {
  held_.find(name)->second.floats.upload_rows(values, first, count);
}

void DeviceTensors::upload_stored(std::string_view name, std::span<const float> values,
                                  std::size_t first) const {
  held_.find(name)->second.floats.upload_stored(values, first);
}

void DeviceTensors::poison() const {
  for (const auto& [name, held] : held_) {
    if (is_float(held.element)) {
      held.floats.poison();
    } else {
      held.bytes.upload(std::vector(held.bytes.size(), std::byte{0x81}));
    }
  }
}

void DeviceTensors::add_to(Tensors& tensors) const {
  for (const auto& [name, held] : held_) {
    TensorRef<4> ref = held.floats.ref();
    if (!is_float(held.element)) ref.data = held.bytes.data();
    tensors.set(name, ref);
  }
}

std::vector<float> DeviceTensors::download(std::string_view name) const {
  const Held& held = held_.find(name)->second;
  if (held.element != Element::i8) return held.floats.download();
  std::vector<std::int8_t> bytes(held.bytes.size());
  held.bytes.download(std::as_writable_bytes(std::span(bytes)));
  return {bytes.begin(), bytes.end()};
}

HostValues DeviceTensors::download() const {
  HostValues values;
  for (const auto& [name, held] : held_) {
    if (!is_integer(held.element)) values[name] = download(name);
  }
  return values;
}

bool DeviceTensors::gaps_are_nan() const {
  return std::all_of(held_.begin(), held_.end(), [](const auto& entry) {
    return !is_float(entry.second.element) || entry.second.floats.gaps_are_nan();
  });
}

void generate(Problem& problem, const TensorSpecs& inputs, std::uint64_t seed) {
  std::uint64_t stream = seed * 16;
  for (const TensorSpec& spec : inputs) {
    if (spec.derived || !spec.is_in(problem)) continue;
    ++stream;
    const auto size = static_cast<std::size_t>(spec.size(problem));
    if (spec.values) {
      problem.values[spec.name] = spec.values(problem);
    } else if (is_integer(spec.element)) {
      std::vector<std::int64_t>& indices = problem.integers[spec.name];
      for (std::size_t i = 0; i < size; ++i) {
        indices.push_back(spec.draw(testing::uniform(stream, i), problem));
      }
    } else {
      std::vector<float>& values = problem.values[spec.name];
      values.resize(size);
      const Dtype dtype = spec.dtype(problem);
      const float scale = spec.fan_in.empty()
                              ? spec.scale
                              : 1.0F / std::sqrt(static_cast<float>(problem.extent(spec.fan_in)));
      testing::fill(values, stream, dtype, scale);
      if (spec.mean == 0.0F) continue;
      for (float& value : values) value = round_to(dtype, value + spec.mean);
    }
  }
}

void add_shapes(Tensors& tensors, const TensorSpecs& specs, const Problem& problem) {
  constexpr std::size_t line = 256, most = 64;
  alignas(line) static std::array<std::byte, line * most> nothing;
  for (const TensorSpec& spec : specs) {
    if (!spec.is_in(problem)) continue;
    tensors.set(spec.name, {nothing.data() + line * (tensors.size() % most), spec.dtype(problem),
                            padded(spec, problem)});
  }
}

}  // namespace katt::bench
