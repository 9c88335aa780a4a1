#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "core/tensor.hpp"
#include "place.hpp"

/// Arrays of Python as tensors: arrays of all libraries with DLPack (NumPy, PyTorch, CuPy, JAX, …),
/// in the memory of the host or of a CUDA device, without a copy.
namespace katt::python {

namespace nb = nanobind;

/// DLPack's description of an array.
struct Array {
  static constexpr int most_axes = 8;

  void* data = nullptr;
  nb::dlpack::dtype dtype;
  int rank = 0;
  std::array<std::int64_t, most_axes> extent{};
  std::array<std::int64_t, most_axes> stride{};  ///< in elements

  [[nodiscard]] std::int64_t size() const;
};

/// The arrays of one call of an operator, all at one place. Python's None means a missing array, a
/// reference without memory. All functions throw InputError "OP: NAME: holds …, expected …". Their
/// results are valid while this object and the Python arguments live.
class Arrays {
 public:
  explicit Arrays(const char* op) : op_(op) {}

  [[nodiscard]] const char* op() const { return op_; }
  /// The place of the arrays read so far; the host when there are none.
  [[nodiscard]] const Place& place() const { return place_; }

  /// DLPack's description of an array, of any dtype and strides ≥ 0.
  Array read(nb::handle object, const char* name);

  /// A tensor of f32, f16 or bf16 with Rank axes, of any strides ≥ 0 but for the last axis, which is contiguous.
  template <int Rank>
  TensorRef<Rank> tensor(nb::handle object, const char* name) {
    if (object.is_none()) return {};
    const Array array = read(object, name);
    if (array.rank != Rank) refuse_rank(name, array, Rank);
    TensorRef<Rank> ref = typed<Rank>(name, array);
    for (int axis = 0; axis < Rank; ++axis) {
      ref.extent[axis] = array.extent[axis];
      ref.stride[axis] = array.stride[axis];
    }
    return ref;
  }

  /// The rows (…, columns) of a tensor; its other axes must form one axis without a copy.
  TensorRef<2> rows(nb::handle object, const char* name);

  /// One number: a tensor without axes, or with one.
  TensorRef<1> scalar(nb::handle object, const char* name);

  /// Dense elements; their number must be `count`, or is any where that is −1.
  std::int64_t* integers(nb::handle object, const char* name, std::int64_t count);  ///< int64
  std::uint8_t* bytes(nb::handle object, const char* name, std::int64_t count);  ///< uint8 or bool
  std::int8_t* int8s(nb::handle object, const char* name, std::int64_t count);   ///< int8
  float* floats(nb::handle object, const char* name, std::int64_t count);        ///< f32

  /// Numbers and switches outside of arrays: Python's numbers, indices, True and False.
  [[nodiscard]] double real(nb::handle object, const char* name) const;
  [[nodiscard]] std::int64_t integer(nb::handle object, const char* name) const;
  [[nodiscard]] bool flag(nb::handle object, const char* name) const;

  /// Throws InputError "OP: NAME: holds WHAT, expected EXPECTED".
  [[noreturn]] void refuse(const char* name, const std::string& what,
                           const std::string& expected) const;

 private:
  struct Exported;
  Exported exported(nb::handle object, const char* name);
  /// Takes the place of the first array, and refuses one that lies elsewhere. `stream()` is that of its library.
  template <class StreamOf>
  void join(int device_type, int device, const char* name, StreamOf&& stream_of);
  [[noreturn]] void refuse_rank(const char* name, const Array& array, int expected) const;
  [[noreturn]] void refuse_value(const char* name, nb::handle object, const char* expected) const;
  void* dense(nb::handle object, const char* name, std::int64_t count,
              std::initializer_list<nb::dlpack::dtype> types, const char* expected);

  /// Memory and dtype of a tensor.
  template <int Rank>
  TensorRef<Rank> typed(const char* name, const Array& array) const {
    TensorRef<Rank> ref;
    ref.data = array.data;
    ref.dtype = element_type(name, array);
    return ref;
  }
  [[nodiscard]] Dtype element_type(const char* name, const Array& array) const;

  const char* op_;
  Place place_;
  const char* first_ = nullptr;            ///< the array that decided the place
  std::vector<nb::ndarray<nb::ro>> kept_;  ///< arrays that an exporter may have made for us
};

/// "(2, 3)" for this number of axes.
[[nodiscard]] std::string axes_text(const std::array<std::int64_t, Array::most_axes>& values,
                                    int rank);

/// "float32", "int64", …
[[nodiscard]] std::string dtype_text(nb::dlpack::dtype dtype);

/// The stream on which this thread's calls work, instead of the libraries' own; None: the
/// libraries' own. Returns the previous one.
[[nodiscard]] nb::object exchange_stream(nb::object stream);

/// New memory where `like` lies, as an array that other libraries can take by their from_dlpack():
/// with the dtype of `like`, or the named one (f32, u8, i8).
[[nodiscard]] nb::ndarray<nb::array_api> new_array(nb::handle like,
                                                   const std::vector<std::size_t>& shape,
                                                   const std::string& dtype);

}  // namespace katt::python
