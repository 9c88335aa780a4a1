#include "nn/model/model.hpp"

#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <memory>

#include "bindings.hpp"
#include "nn/inference/sampling.hpp"
#include "nn/inference/session.hpp"
#include "runtime.hpp"

namespace katt::python {
namespace {

/// Something of Kokkos' memory that Python owns: freed when Python drops it, or when Kokkos ends.
template <class T>
class Owned final : public Resource {
 public:
  Owned() { Runtime::get().add(this); }
  ~Owned() override { Runtime::get().remove(this); }
  Owned(const Owned&) = delete;
  Owned& operator=(const Owned&) = delete;

  void release() override { value.reset(); }
  T& get() {
    if (!value) throw InputError("katt: the interpreter is ending, the model is gone");
    return *value;
  }

  std::unique_ptr<T> value;
};

class Model {
 public:
  Model(const std::string& folder, const std::string& dtype, std::uint64_t seed, int threads)
      : threads_(threads) {
    const auto type = dtype_from_name(dtype);
    if (!type) throw InputError("dtype " + dtype + ": unknown; expected f32, f16, bf16");
    Runtime::get().run(threads_, [&](const Host& exec) {
      model_.value = std::make_unique<nn::Llama<Host>>(nn::open_model(exec, folder, *type, seed));
    });
    note_ = nn::parameters_note(folder);
  }

  [[nodiscard]] nn::Llama<Host>& model() { return model_.get(); }
  [[nodiscard]] int threads() const { return threads_; }
  [[nodiscard]] const std::string& note() const { return note_; }

 private:
  int threads_;
  std::string note_;
  Owned<nn::Llama<Host>> model_;
};

/// A sequence that grows. Python keeps the model alive.
class Sequence {
 public:
  Sequence(Model& model, std::int64_t capacity, std::int64_t chunk,
           const nn::SamplingOptions& sampling)
      : threads_(model.threads()), sampler_(sampling) {
    Runtime::get().run(threads_, [&](const Host&) {
      session_.value = std::make_unique<nn::Session<Host>>(
          model.model(), nn::SessionOptions{.capacity = capacity, .chunk = chunk});
    });
  }

  std::int64_t append(const std::vector<std::int64_t>& ids) {
    std::int64_t next = 0;
    Runtime::get().run(threads_,
                       [&](const Host&) { next = sampler_.pick(session_.get().append(ids)); });
    return next;
  }

 private:
  int threads_;
  nn::Sampler sampler_;
  Owned<nn::Session<Host>> session_;
};

using Logits = nb::ndarray<nb::numpy, float, nb::ndim<2>>;

Logits logits(Model& model, const std::vector<std::int64_t>& ids) {
  if (ids.empty()) throw InputError("logits: ids: is empty, expected token ids");
  auto all = std::make_unique<std::vector<float>>();
  Runtime::get().run(model.threads(), [&](const Host&) {
    nn::Session<Host> session(model.model(), {.capacity = static_cast<std::int64_t>(ids.size())});
    *all = session.append(ids, true);
  });
  const std::size_t vocab_size = all->size() / ids.size();
  float* const data = all->data();
  const nb::capsule owner(
      all.release(), [](void* held) noexcept { delete static_cast<std::vector<float>*>(held); });
  return {data, {ids.size(), vocab_size}, owner};
}

}  // namespace

void bind_model(nb::module_& m) {
  nb::class_<Model>(m, "Model")
      .def(nb::init<const std::string&, const std::string&, std::uint64_t, int>(),
           nb::arg("folder"), nb::arg("dtype"), nb::arg("seed"), nb::arg("threads"))
      .def("logits", logits, nb::arg("ids"), "Logits of every position, (ids, vocabulary).")
      .def_prop_ro("config_json", [](Model& self) { return self.model().config().json; })
      .def_prop_ro("vocab_size", [](Model& self) { return self.model().config().vocab_size; })
      .def_prop_ro("eos_token_ids", [](Model& self) { return self.model().config().eos_token_ids; })
      .def_prop_ro("note", [](Model& self) { return self.note(); })
      .def_prop_ro("bytes", [](Model& self) { return self.model().bytes(); });
  nb::class_<Sequence>(m, "Sequence")
      .def(
          "__init__",
          [](Sequence* self, Model& model, std::int64_t capacity, std::int64_t chunk,
             double temperature, std::int64_t top_k, double top_p, std::uint64_t seed) {
            new (self) Sequence(
                model, capacity, chunk,
                {.temperature = temperature, .top_k = top_k, .top_p = top_p, .seed = seed});
          },
          nb::keep_alive<1, 2>(), nb::arg("model"), nb::arg("capacity"), nb::arg("chunk"),
          nb::arg("temperature"), nb::arg("top_k"), nb::arg("top_p"), nb::arg("seed"))
      .def("append", &Sequence::append, nb::arg("ids"),
           "Appends tokens and returns the one that follows.");
}

}  // namespace katt::python
