#include "io/hdf5/case_file.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <new>
#include <set>
#include <span>
#include <utility>

#include "io/hdf5/hdf5_input.hpp"
#include "io/printable.hpp"

namespace katt::io {

namespace {

using impl::DatasetInfo;
using impl::ElementKind;
using impl::Hdf5Input;
using impl::holds;
using impl::printable;
using impl::Scalar;

using Shape = std::vector<std::int64_t>;

/// "(B, Hq, Sq, D)", and with given extents "(B, Hq, Sq, D) = (1, 4, any, 64)".
std::string expected_shape(const Shape& shape, std::string_view axes) {
  const bool known = std::ranges::any_of(shape, [](std::int64_t n) { return n >= 0; });
  return std::string(axes) + (known ? " = " + impl::shape_text(shape) : "");
}

/// Whether two words of four letters or more differ by one that is put in, left out or changed, or by
/// two neighbours that are swapped.
bool is_misspelt(std::string_view a, std::string_view b) {
  if (std::min(a.size(), b.size()) < 4) return false;
  const auto start = std::ranges::mismatch(a, b);
  a = {start.in1, a.end()};
  b = {start.in2, b.end()};
  while (!a.empty() && !b.empty() && a.back() == b.back()) {
    a.remove_suffix(1);
    b.remove_suffix(1);
  }
  const bool swapped = a.size() == 2 && b.size() == 2 && a[0] == b[1] && a[1] == b[0];
  return swapped || std::max(a.size(), b.size()) == 1;
}

/// Throws for the first of `held` that is one of `asked` that `held` lacks, misspelt.
template <class Reject>
void refuse_misspelt_name(const std::vector<std::string>& held, const std::set<std::string>& asked,
                          const Reject& reject) {
  for (const std::string& wanted : asked) {
    if (std::ranges::find(held, wanted) != held.end()) continue;
    for (const std::string& name : held) {
      if (asked.contains(name) || !is_misspelt(name, wanted)) continue;
      reject(printable(name), "unknown; did you mean " + wanted + "?");
    }
  }
}

DatasetInfo checked(const Hdf5Input& input, std::string_view name, const Shape& wanted,
                    std::string_view axes) {
  const std::string expected = expected_shape(wanted, axes);
  DatasetInfo info = input.describe(name, "shape " + expected);
  const Shape& held = info.shape;
  const auto agrees = [](std::int64_t extent, std::int64_t want) {
    return want < 0 || extent == want;
  };
  if (!std::ranges::equal(held, wanted, agrees)) {
    input.reject_dataset(name, "holds shape " + impl::shape_text(held) + ", expected " + expected);
  }
  if (std::ranges::find(held, 0) != held.end()) {
    input.reject_dataset(name, "holds shape " + impl::shape_text(held) + ", expected " + expected +
                                   " with no extent of 0");
  }
  return info;
}

template <class T>
std::vector<T> allocate(const Hdf5Input& input, std::string_view name, std::size_t count) {
  try {
    return std::vector<T>(count);
  } catch (const std::bad_alloc&) {
    input.reject_dataset(name, "needs " + std::to_string(count * sizeof(T)) +
                                   " bytes, more than could be allocated");
  }
}

}  // namespace

/// The file, and what it was asked for.
struct CaseFile::Impl {
  Impl(const std::filesystem::path& path, std::optional<Dtype> stand_in)
      : input(path), dtype(stand_in) {}

  /// The attribute, which must be there.
  Scalar required(std::string_view name, const std::string& expected) {
    asked_attributes.emplace(name);
    std::optional<Scalar> value = input.attribute(name);
    if (!value) input.reject_attribute(name, "is missing, expected " + expected);
    return *std::move(value);
  }

  Hdf5Input input;
  std::optional<Dtype> dtype;
  std::set<std::string> asked_datasets, asked_attributes;  ///< whether they are there
};

CaseFile::CaseFile(const std::filesystem::path& path, std::optional<Dtype> dtype)
    : impl_(std::make_unique<Impl>(path, dtype)) {}
CaseFile::~CaseFile() = default;

const std::filesystem::path& CaseFile::path() const { return impl_->input.path(); }

bool CaseFile::has(std::string_view dataset) const {
  impl_->asked_datasets.emplace(dataset);
  return impl_->input.has(dataset);
}

bool CaseFile::has_attribute(std::string_view name) const {
  impl_->asked_attributes.emplace(name);
  return impl_->input.has_attribute(name);
}

void CaseFile::refuse_misspelt() const {
  const auto [links, attributes] = impl_->input.root_names();
  refuse_misspelt_name(links, impl_->asked_datasets, [&](const auto& name, const auto& message) {
    impl_->input.reject_dataset(name, message);
  });
  refuse_misspelt_name(
      attributes, impl_->asked_attributes,
      [&](const auto& name, const auto& message) { impl_->input.reject_attribute(name, message); });
}

Dtype CaseFile::dtype() const {
  if (impl_->dtype) return *impl_->dtype;
  const std::string expected = "\"f32\", \"f16\" or \"bf16\"";
  const Scalar value = impl_->required("dtype", expected);
  if (const auto* name = std::get_if<std::string>(&value)) {
    if (const auto dtype = dtype_from_name(*name)) return *dtype;
  }
  impl_->input.reject_attribute("dtype", holds(value) + ", expected " + expected);
}

std::int64_t CaseFile::integer(std::string_view attribute) const {
  const Scalar value = impl_->required(attribute, "an integer");
  if (const auto* integer = std::get_if<std::int64_t>(&value)) return *integer;
  if (const auto* real = std::get_if<double>(&value)) {
    // 1.0 is an integer too, as long as float64 distinguishes it from its neighbours
    if (std::abs(*real) <= 0x1p53 && *real == std::trunc(*real)) {
      return static_cast<std::int64_t>(*real);
    }
  }
  impl_->input.reject_attribute(attribute, holds(value) + ", expected an integer");
}

std::int64_t CaseFile::integer(std::string_view attribute, std::int64_t fallback) const {
  return has_attribute(attribute) ? integer(attribute) : fallback;
}

std::int64_t CaseFile::flag(std::string_view attribute) const {
  const std::int64_t value = integer(attribute, 0);
  if (value != 0 && value != 1) {
    impl_->input.reject_attribute(attribute, holds(Scalar(value)) + ", expected 0 or 1");
  }
  return value;
}

double CaseFile::real(std::string_view attribute) const {
  const Scalar value = impl_->required(attribute, "a number");
  if (const auto* integer = std::get_if<std::int64_t>(&value)) return static_cast<double>(*integer);
  if (const auto* real = std::get_if<double>(&value)) return *real;
  impl_->input.reject_attribute(attribute, holds(value) + ", expected a number");
}

double CaseFile::real(std::string_view attribute, double fallback) const {
  return has_attribute(attribute) ? real(attribute) : fallback;
}

std::string CaseFile::text(std::string_view attribute, std::string_view fallback) const {
  impl_->asked_attributes.emplace(attribute);
  const std::optional<Scalar> value = impl_->input.attribute(attribute);
  if (!value) return std::string(fallback);
  if (const auto* text = std::get_if<std::string>(&*value)) return *text;
  impl_->input.reject_attribute(attribute, holds(*value) + ", expected text");
}

std::vector<std::int64_t> CaseFile::shape(std::string_view dataset, int rank,
                                          std::string_view axes) const {
  impl_->asked_datasets.emplace(dataset);
  const Shape any(static_cast<std::size_t>(rank), -1);
  return checked(impl_->input, dataset, any, axes).shape;
}

FloatTensor CaseFile::floats(std::string_view dataset, const Shape& shape,
                             std::string_view axes) const {
  impl_->asked_datasets.emplace(dataset);
  const Hdf5Input& input = impl_->input;
  DatasetInfo info = checked(input, dataset, shape, axes);
  if (info.kind != ElementKind::real) {
    input.reject_dataset(dataset, "holds " + info.type + ", expected floating point");
  }
  const std::size_t count = input.readable_count(dataset, info, sizeof(float));
  FloatTensor tensor{std::move(info.shape), allocate<float>(input, dataset, count)};
  if (info.type != "float64") {
    input.read(dataset, H5T_NATIVE_FLOAT, std::as_writable_bytes(std::span(tensor.values)));
    return tensor;
  }
  auto wide = allocate<double>(input, dataset, count);
  input.read(dataset, H5T_NATIVE_DOUBLE, std::as_writable_bytes(std::span(wide)));
  for (std::size_t i = 0; i < count; ++i) {
    tensor.values[i] = static_cast<float>(wide[i]);
    if (std::isinf(tensor.values[i]) && std::isfinite(wide[i])) {
      std::array<char, 32> number{};
      std::snprintf(number.data(), number.size(), "%.6g", wide[i]);
      input.reject_dataset(dataset, "holds " + std::string(number.data()) + " at element " +
                                        std::to_string(i) + ", expected numbers of float32");
    }
  }
  return tensor;
}

std::vector<float> CaseFile::column(std::string_view dataset) const {
  const Hdf5Input& input = impl_->input;
  const DatasetInfo info = input.describe(dataset, "shape (N)");
  if (info.shape == Shape{0}) return {};
  return floats(dataset, {-1}, "(N)").values;
}

IntTensor CaseFile::integers(std::string_view dataset, const Shape& shape,
                             std::string_view axes) const {
  impl_->asked_datasets.emplace(dataset);
  const Hdf5Input& input = impl_->input;
  DatasetInfo info = checked(input, dataset, shape, axes);
  const bool is_unsigned = info.kind == ElementKind::unsigned_integer;
  if (info.kind != ElementKind::integer && !is_unsigned) {
    input.reject_dataset(dataset, "holds " + info.type + ", expected integers");
  }
  const std::size_t count = input.readable_count(dataset, info, sizeof(std::int64_t));
  IntTensor tensor{std::move(info.shape), allocate<std::int64_t>(input, dataset, count)};
  input.read(dataset, is_unsigned ? H5T_NATIVE_UINT64 : H5T_NATIVE_INT64,
             std::as_writable_bytes(std::span(tensor.values)));
  if (is_unsigned && std::ranges::any_of(tensor.values, [](std::int64_t n) { return n < 0; })) {
    input.reject_dataset(dataset, "holds a value above 9223372036854775807, expected int64");
  }
  return tensor;
}

void CaseFile::reject(std::string_view name, const std::string& message) const {
  if (!has(name) && has_attribute(name)) impl_->input.reject_attribute(name, message);
  impl_->input.reject_dataset(name, message);
}

}  // namespace katt::io
