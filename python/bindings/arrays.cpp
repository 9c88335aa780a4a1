#include "arrays.hpp"

#include <nanobind/stl/string.h>

#include <algorithm>
#include <map>
#include <new>

#include "core/error.hpp"

namespace katt::python {
namespace {

using nb::dlpack::dtype;
using nb::dlpack::dtype_code;

constexpr dtype type_of(dtype_code code, int bits) {
  return {static_cast<std::uint8_t>(code), static_cast<std::uint8_t>(bits), 1};
}
constexpr dtype f32_type = type_of(dtype_code::Float, 32);
constexpr dtype f16_type = type_of(dtype_code::Float, 16);
constexpr dtype bf16_type = type_of(dtype_code::Bfloat, 16);
constexpr int host_device = nb::device::cpu::value;

/// The part that we use of DLPack's table of C functions for tensors of a type (dlpack.h, DLPackExchangeAPI, 1.3):
/// PyTorch fills a DLTensor through it in a tenth of the time that its __dlpack__() takes.
struct ExchangeApi {
  struct Header {
    std::uint32_t major, minor;
    Header* previous;
  } header;
  void* allocate;
  void* export_managed;
  void* import_managed;
  int (*export_borrowed)(void* object, nb::dlpack::dltensor* out);
  void* current_stream;
};

/// The table of a type; null where it has none that we understand. Looked up once a type.
const ExchangeApi* exchange_api(PyTypeObject* type) {
  static std::map<PyTypeObject*, const ExchangeApi*> known;
  if (const auto found = known.find(type); found != known.end()) return found->second;
  const ExchangeApi* api = nullptr;
  const nb::object capsule = nb::getattr(nb::handle(reinterpret_cast<PyObject*>(type)),
                                         "__dlpack_c_exchange_api__", nb::none());
  if (PyCapsule_IsValid(capsule.ptr(), "dlpack_exchange_api") != 0) {
    api =
        static_cast<const ExchangeApi*>(PyCapsule_GetPointer(capsule.ptr(), "dlpack_exchange_api"));
    if (api->header.major != 1 || api->export_borrowed == nullptr) api = nullptr;
  }
  Py_INCREF(type);  // its address must not come to mean another type
  known[type] = api;
  return api;
}

/// bf16 of ml_dtypes as 16-bit integers: NumPy does not export it.
nb::object as_bits(nb::handle object) {
  const nb::object type = nb::getattr(object, "dtype", nb::none());
  const nb::object name = nb::getattr(type, "name", nb::none());
  if (!nb::isinstance<nb::str>(name) || nb::cast<std::string>(name) != "bfloat16") return {};
  return object.attr("view")("uint16");
}

}  // namespace

std::int64_t Array::size() const {
  std::int64_t count = 1;
  for (int axis = 0; axis < rank; ++axis) count *= extent[axis];
  return count;
}

std::string axes_text(const std::array<std::int64_t, Array::most_axes>& values, int rank) {
  std::string text = "(";
  for (int axis = 0; axis < rank; ++axis)
    text += (axis > 0 ? ", " : "") + std::to_string(values[axis]);
  return text + (rank == 1 ? ",)" : ")");
}

std::string dtype_text(dtype type) {
  const auto name = [&]() -> std::string {
    switch (static_cast<dtype_code>(type.code)) {
      case dtype_code::Int: return "int";
      case dtype_code::UInt: return "uint";
      case dtype_code::Float: return "float";
      case dtype_code::Bfloat: return "bfloat";
      case dtype_code::Complex: return "complex";
      case dtype_code::Bool: return "bool";
      default: return "elements of DLPack code " + std::to_string(type.code) + ", bits ";
    }
  }();
  return static_cast<dtype_code>(type.code) == dtype_code::Bool ? name
                                                                : name + std::to_string(type.bits);
}

void Arrays::refuse(const char* name, const std::string& what, const std::string& expected) const {
  throw InputError(std::string(op_) + ": " + name + ": holds " + what + ", expected " + expected);
}

void Arrays::refuse_rank(const char* name, const Array& array, int expected) const {
  refuse(name, "shape " + axes_text(array.extent, array.rank), std::to_string(expected) + " axes");
}

Array Arrays::import(nb::handle object, const char* name) {
  nb::dlpack::dltensor tensor;
  bool bits = false;
  if (const ExchangeApi* api = exchange_api(Py_TYPE(object.ptr()))) {
    if (api->export_borrowed(object.ptr(), &tensor) != 0) throw nb::python_error();
  } else {
    nb::ndarray<nb::ro> array;
    if (!nb::try_cast(object, array, false)) {
      const nb::object viewed = as_bits(object);
      bits = viewed.is_valid();
      if (!bits || !nb::try_cast(viewed, array, false)) {
        refuse(name, std::string("a ") + Py_TYPE(object.ptr())->tp_name,
               "an array that can be exchanged by DLPack");
      }
    }
    tensor = {.data = array.data_handle(),
              .device = {array.device_type(), array.device_id()},
              .ndim = static_cast<std::int32_t>(array.ndim()),
              .dtype = array.dtype(),
              .shape = const_cast<std::int64_t*>(array.shape_ptr()),
              .strides = const_cast<std::int64_t*>(array.stride_ptr()),
              .byte_offset = array.byte_offset()};
    kept_.push_back(std::move(array));
  }
  if (tensor.device.device_type != host_device) {
    refuse(name, "memory of DLPack device type " + std::to_string(tensor.device.device_type),
           "memory of the host (this module computes on the CPU)");
  }
  if (tensor.ndim > Array::most_axes) {
    refuse(name, std::to_string(tensor.ndim) + " axes",
           "at most " + std::to_string(Array::most_axes));
  }
  Array array;
  array.data = static_cast<std::byte*>(tensor.data) + tensor.byte_offset;
  array.dtype = bits ? bf16_type : tensor.dtype;
  array.rank = tensor.ndim;
  std::copy_n(tensor.shape, array.rank, array.extent.begin());
  const bool empty = array.size() == 0;
  std::int64_t step = 1;
  for (int axis = array.rank - 1; axis >= 0; --axis) {
    // Of an axis of extent 1, and without elements, strides mean nothing, and libraries differ in what they say.
    array.stride[axis] =
        tensor.strides == nullptr || empty || array.extent[axis] == 1 ? step : tensor.strides[axis];
    step = array.stride[axis] * std::max<std::int64_t>(1, array.extent[axis]);
    if (array.stride[axis] < 0) {
      refuse(name,
             "stride " + std::to_string(array.stride[axis]) + " on axis " + std::to_string(axis),
             "strides of at least 0");
    }
  }
  return array;
}

Dtype Arrays::element_type(const char* name, const Array& array) const {
  const int last = array.rank - 1;
  if (last >= 0 && array.extent[last] > 1 && array.stride[last] != 1) {
    refuse(name, "stride " + std::to_string(array.stride[last]) + " on its last axis",
           "1, a contiguous last axis");
  }
  if (array.dtype == f32_type) return Dtype::f32;
  if (array.dtype == f16_type) return Dtype::f16;
  if (array.dtype == bf16_type) return Dtype::bf16;
  refuse(name, dtype_text(array.dtype), "float32, float16 or bfloat16");
}

TensorRef<2> Arrays::rows(nb::handle object, const char* name) {
  if (object.is_none()) return {};
  const Array array = import(object, name);
  if (array.rank < 1) refuse(name, "no axes", "(…, columns)");
  TensorRef<2> ref = typed<2>(name, array);
  const int last = array.rank - 1;
  ref.extent = {1, array.extent[last]};
  ref.stride = {array.extent[last], 1};
  std::int64_t step = 0;  // from a row to the next, once there is an axis of rows
  for (int axis = last - 1; axis >= 0; --axis) {
    if (array.extent[axis] == 1) continue;
    if (step == 0) {
      step = array.stride[axis];
      ref.stride[0] = step;
    } else if (array.stride[axis] != ref.extent[0] * step && array.size() > 0) {
      refuse(name,
             "shape " + axes_text(array.extent, array.rank) + " with strides " +
                 axes_text(array.stride, array.rank),
             "rows at equal distances; make it contiguous");
    }
    ref.extent[0] *= array.extent[axis];
  }
  return ref;
}

void* Arrays::dense(nb::handle object, const char* name, std::int64_t count,
                    std::initializer_list<dtype> types, const char* expected) {
  if (object.is_none()) return nullptr;
  const Array array = import(object, name);
  if (std::find(types.begin(), types.end(), array.dtype) == types.end()) {
    refuse(name, dtype_text(array.dtype), expected);
  }
  if (array.size() != count) {
    refuse(name, "shape " + axes_text(array.extent, array.rank),
           std::to_string(count) + " elements");
  }
  std::int64_t step = 1;
  for (int axis = array.rank - 1; axis >= 0; --axis) {
    if (array.extent[axis] > 1 && array.stride[axis] != step && count > 0) {
      refuse(name, "strides " + axes_text(array.stride, array.rank), "a contiguous array");
    }
    step *= array.extent[axis];
  }
  return array.data;
}

std::int64_t* Arrays::integers(nb::handle object, const char* name, std::int64_t count) {
  return static_cast<std::int64_t*>(
      dense(object, name, count, {type_of(dtype_code::Int, 64)}, "int64"));
}

std::uint8_t* Arrays::bytes(nb::handle object, const char* name, std::int64_t count) {
  return static_cast<std::uint8_t*>(
      dense(object, name, count, {type_of(dtype_code::UInt, 8), type_of(dtype_code::Bool, 8)},
            "uint8 or bool"));
}

std::int8_t* Arrays::int8s(nb::handle object, const char* name, std::int64_t count) {
  return static_cast<std::int8_t*>(
      dense(object, name, count, {type_of(dtype_code::Int, 8)}, "int8"));
}

float* Arrays::floats(nb::handle object, const char* name, std::int64_t count) {
  return static_cast<float*>(dense(object, name, count, {f32_type}, "float32"));
}

nb::ndarray<nb::array_api> new_array(nb::handle like, const std::vector<std::size_t>& shape,
                                     const std::string& name) {
  dtype type = f32_type;
  if (name.empty()) {
    nb::ndarray<nb::ro> array;
    if (!nb::try_cast(like, array, false))
      throw InputError("an array: expected one that DLPack can exchange");
    type = array.dtype();
  } else if (name != "f32") {
    type = type_of(name == "i8" ? dtype_code::Int : dtype_code::UInt, 8);
  }
  std::size_t bytes = (type.bits + 7U) / 8;
  for (const std::size_t extent : shape) bytes *= extent;
  constexpr std::align_val_t alignment{64};
  void* memory = ::operator new(std::max<std::size_t>(bytes, 1), alignment);
  const nb::capsule owner(memory,
                          [](void* pointer) noexcept { ::operator delete(pointer, alignment); });
  return nb::ndarray<nb::array_api>(memory, shape.size(), shape.data(), owner, nullptr, type,
                                    host_device);
}

}  // namespace katt::python
