#include "arrays.hpp"

#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>

#include <algorithm>
#include <map>
#include <new>
#include <optional>
#include <string_view>

#include "core/error.hpp"
#include "device.hpp"

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
#if defined(KATT_HAS_CUDA)
constexpr bool has_cuda = true;
#else
constexpr bool has_cuda = false;
#endif

/// The stream of `with katt.stream(…)` in this thread.
thread_local std::optional<void*> chosen_stream;

/// A stream as __dlpack__() wants it: 1 is the legacy default one.
std::int64_t dlpack_stream(void* stream) {
  return stream == nullptr ? 1 : reinterpret_cast<std::intptr_t>(stream);
}

/// A stream as libraries write it.
std::optional<void*> stream_from(nb::handle number) {
  if (number.is_none()) return std::nullopt;
  const auto handle = nb::cast<std::intptr_t>(number);
  return handle == 1 ? nullptr : reinterpret_cast<void*>(handle);
}

/// The stream on which the library of an array works on a device; nothing when it does not say.
std::optional<void*> library_stream(nb::handle array, int device) {
  return stream_from(nb::module_::import_("katt._streams").attr("current")(array, device));
}

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
  int (*current_stream)(int device_type, std::int32_t device, void** out);
};

/// How a type exports its arrays.
struct Exporter {
  const ExchangeApi* api = nullptr;  ///< null: it has none that we understand
  bool on_devices = has_cuda;        ///< true: its arrays may lie outside of NumPy's memory
};

/// Looked up once a type.
const Exporter& exporter_of(PyTypeObject* type) {
  static std::map<PyTypeObject*, Exporter> known;
  if (const auto found = known.find(type); found != known.end()) return found->second;
  Exporter made;
  const nb::handle handle(reinterpret_cast<PyObject*>(type));
  const nb::object capsule = nb::getattr(handle, "__dlpack_c_exchange_api__", nb::none());
  if (PyCapsule_IsValid(capsule.ptr(), "dlpack_exchange_api") != 0) {
    const auto* api =
        static_cast<const ExchangeApi*>(PyCapsule_GetPointer(capsule.ptr(), "dlpack_exchange_api"));
    if (api->header.major == 1 && api->export_borrowed != nullptr) made.api = api;
  }
  if (nb::str(nb::getattr(handle, "__module__", nb::str(""))).equal(nb::str("numpy"))) {
    made.on_devices = false;
  }
  Py_INCREF(type);  // its address must not become that of another type
  return known[type] = made;
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

void Arrays::refuse_value(const char* name, nb::handle object, const char* expected) const {
  PyErr_Clear();
  constexpr std::size_t most = 60;
  std::string text = nb::repr(object).c_str();
  if (text.size() > most) text = std::string("a ") + Py_TYPE(object.ptr())->tp_name;
  refuse(name, text, expected);
}

void Arrays::refuse_rank(const char* name, const Array& array, int expected) const {
  refuse(name, "shape " + axes_text(array.extent, array.rank), std::to_string(expected) + " axes");
}

template <class StreamOf>
void Arrays::join(int device_type, int device, const char* name, StreamOf&& stream_of) {
  Place here;
  if (device_type == nb::device::cuda::value || device_type == nb::device::cuda_managed::value) {
    here.device = device;
  } else if (device_type != host_device && device_type != nb::device::cuda_host::value) {
    refuse(name, "memory of DLPack device type " + std::to_string(device_type),
           "memory of the CPU or of CUDA");
  }
  if (!has_cuda && !here.on_host()) {
    refuse(name, "memory of " + to_text(here),
           "memory of the CPU: this package was built without CUDA");
  }
  if (first_ == nullptr) {
    first_ = name;
    place_ = here;
    if (!here.on_host()) {
      const std::optional<void*> stream = chosen_stream ? chosen_stream : stream_of();
      place_.stream = stream.value_or(nullptr);
      place_.waits = !stream;
    }
  } else if (here.device != place_.device) {
    refuse(name, "memory of " + to_text(here),
           "memory of " + to_text(place_) + ", as " + first_ + " has");
  }
}

/// The export of an array by its library.
struct Arrays::Exported {
  nb::dlpack::dltensor tensor;
  bool bits = false;  ///< true: 16-bit integers stand for bf16
};

Arrays::Exported Arrays::exported(nb::handle object, const char* name) {
  const Exporter& exporter = exporter_of(Py_TYPE(object.ptr()));
  if (const ExchangeApi* api = exporter.api) {
    Exported made;
    if (api->export_borrowed(object.ptr(), &made.tensor) != 0) throw nb::python_error();
    const auto [type, device] = made.tensor.device;
    join(type, device, name, [&]() -> std::optional<void*> {
      void* stream = nullptr;
      if (api->current_stream(type, device, &stream) != 0) throw nb::python_error();
      return stream;
    });
    return made;
  }
  nb::ndarray<nb::ro> array;
  bool bits = false;
  if (exporter.on_devices && nb::hasattr(object, "__dlpack_device__")) {
    const auto [type, device] = nb::cast<std::tuple<int, int>>(object.attr("__dlpack_device__")());
    if (type == nb::device::cuda::value || type == nb::device::cuda_managed::value) {
      join(type, device, name, [&]() { return library_stream(object, device); });
      // The library makes our stream wait for its own, if that is another.
      const nb::object capsule =
          object.attr("__dlpack__")(nb::arg("stream") = dlpack_stream(place_.stream));
      if (!nb::try_cast(capsule, array, false)) {
        refuse(name, std::string("a ") + Py_TYPE(object.ptr())->tp_name,
               "an array that can be exchanged by DLPack");
      }
    }
  }
  if (!array.is_valid() && !nb::try_cast(object, array, false)) {
    const nb::object viewed = as_bits(object);
    bits = viewed.is_valid();
    if (!bits || !nb::try_cast(viewed, array, false)) {
      refuse(name, std::string("a ") + Py_TYPE(object.ptr())->tp_name,
             "an array that can be exchanged by DLPack");
    }
  }
  join(array.device_type(), array.device_id(), name, [] { return std::nullopt; });
  const Exported made{{.data = array.data_handle(),
                       .device = {array.device_type(), array.device_id()},
                       .ndim = static_cast<std::int32_t>(array.ndim()),
                       .dtype = array.dtype(),
                       .shape = const_cast<std::int64_t*>(array.shape_ptr()),
                       .strides = const_cast<std::int64_t*>(array.stride_ptr()),
                       .byte_offset = array.byte_offset()},
                      bits};
  kept_.push_back(std::move(array));
  return made;
}

Array Arrays::read(nb::handle object, const char* name) {
  const auto [tensor, bits] = exported(object, name);
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
    // Strides mean nothing for an axis of extent 1 and for an array without elements, and libraries
    // give different ones.
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

TensorRef<1> Arrays::scalar(nb::handle object, const char* name) {
  const Array array = read(object, name);
  if (array.rank > 1) refuse_rank(name, array, 1);
  TensorRef<1> ref = typed<1>(name, array);
  ref.extent = {array.size()};
  ref.stride = {1};
  return ref;
}

TensorRef<2> Arrays::rows(nb::handle object, const char* name) {
  if (object.is_none()) return {};
  const Array array = read(object, name);
  if (array.rank < 1) refuse(name, "no axes", "(…, columns)");
  TensorRef<2> ref = typed<2>(name, array);
  const int last = array.rank - 1;
  ref.extent = {1, array.extent[last]};
  ref.stride = {array.extent[last], 1};
  bool has_rows = false;  // true: an axis of rows was met; its stride may be 0
  for (int axis = last - 1; axis >= 0; --axis) {
    if (array.extent[axis] == 1) continue;
    if (!has_rows) {
      has_rows = true;
      ref.stride[0] = array.stride[axis];
    } else if (array.stride[axis] != ref.extent[0] * ref.stride[0] && array.size() > 0) {
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
  const Array array = read(object, name);
  if (std::find(types.begin(), types.end(), array.dtype) == types.end()) {
    refuse(name, dtype_text(array.dtype), expected);
  }
  if (count < 0) count = array.size();
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

double Arrays::real(nb::handle object, const char* name) const {
  const double value = PyFloat_AsDouble(object.ptr());
  if (value == -1.0 && PyErr_Occurred() != nullptr) refuse_value(name, object, "a number");
  return value;
}

std::int64_t Arrays::integer(nb::handle object, const char* name) const {
  const nb::object index = nb::steal(PyNumber_Index(object.ptr()));
  const long long value = index.is_valid() ? PyLong_AsLongLong(index.ptr()) : -1;
  if (value == -1 && PyErr_Occurred() != nullptr) {
    refuse_value(name, object, "an integer of 64 bits");
  }
  return value;
}

bool Arrays::flag(nb::handle object, const char* name) const {
  const bool is_bool = PyBool_Check(object.ptr()) ||
                       std::string_view(Py_TYPE(object.ptr())->tp_name).starts_with("numpy.bool");
  if (is_bool) return PyObject_IsTrue(object.ptr()) == 1;
  const nb::object index = nb::steal(PyNumber_Index(object.ptr()));
  const long long value = index.is_valid() ? PyLong_AsLongLong(index.ptr()) : -1;
  if (value != 0 && value != 1) refuse_value(name, object, "True or False");
  return value == 1;
}

nb::object exchange_stream(nb::object stream) {
  const std::optional<void*> before = chosen_stream;
  chosen_stream = stream_from(stream);
  return before ? nb::object(nb::int_(dlpack_stream(*before))) : nb::none();
}

nb::ndarray<nb::array_api> new_array(nb::handle like, const std::vector<std::size_t>& shape,
                                     const std::string& name) {
  Arrays arrays("new_array");
  const dtype own = arrays.read(like, "like").dtype;
  dtype type = f32_type;
  if (name.empty()) {
    type = own;
  } else if (name != "f32") {
    type = type_of(name == "i8" ? dtype_code::Int : dtype_code::UInt, 8);
  }
  std::size_t bytes = (type.bits + 7U) / 8;
  for (const std::size_t extent : shape) bytes *= extent;
  bytes = std::max<std::size_t>(bytes, 1);
  if (const int device = arrays.place().device; device >= 0) {
    struct Memory {
      int device;
      void* data;
    };
    auto* const memory = new Memory{device, allocate_on(device, bytes)};
    const nb::capsule owner(memory, [](void* pointer) noexcept {
      auto* const held = static_cast<Memory*>(pointer);
      free_on(held->device, held->data);
      delete held;
    });
    return {memory->data, shape.size(), shape.data(), owner, nullptr, type, nb::device::cuda::value,
            device};
  }
  constexpr std::align_val_t alignment{64};
  void* memory = ::operator new(bytes, alignment);
  const nb::capsule owner(memory,
                          [](void* pointer) noexcept { ::operator delete(pointer, alignment); });
  return {memory, shape.size(), shape.data(), owner, nullptr, type, host_device};
}

}  // namespace katt::python
