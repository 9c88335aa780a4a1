#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "arrays.hpp"
#include "bindings.hpp"
#include "ops/linear_cross_entropy/linear_cross_entropy.hpp"
#include "runtime.hpp"

namespace katt::python {
namespace {

using Object = nb::handle;

struct Forward {
  using Args = linear_cross_entropy::ForwardArgs;
  template <class Exec>
  static auto& table() {
    return linear_cross_entropy::forward_variants<Exec>();
  }
};
struct Backward {
  using Args = linear_cross_entropy::BackwardArgs;
  template <class Exec>
  static auto& table() {
    return linear_cross_entropy::backward_variants<Exec>();
  }
};

void linear_cross_entropy_forward(Object hidden, Object weight, Object targets, Object loss,
                                  Object statistics, Object logits, Object ignore_index,
                                  const Call& call) {
  Arrays in("linear_cross_entropy");
  linear_cross_entropy::ForwardArgs args{.hidden = in.rows(hidden, "hidden"),
                                         .weight = in.tensor<2>(weight, "weight"),
                                         .loss = in.tensor<1>(loss, "loss"),
                                         .statistics = in.tensor<2>(statistics, "statistics"),
                                         .logits = in.rows(logits, "logits"),
                                         .ignore_index = in.integer(ignore_index, "ignore_index")};
  args.targets = in.integers(targets, "targets", args.tokens());
  run<Forward>(in, args, call);
}

void linear_cross_entropy_backward(Object hidden, Object weight, Object targets, Object statistics,
                                   Object logits, Object dhidden, Object dweight, Object dloss,
                                   Object ignore_index, const Call& call) {
  Arrays in("linear_cross_entropy");
  linear_cross_entropy::BackwardArgs args{.hidden = in.rows(hidden, "hidden"),
                                          .weight = in.tensor<2>(weight, "weight"),
                                          .statistics = in.tensor<2>(statistics, "statistics"),
                                          .logits = in.rows(logits, "logits"),
                                          .dhidden = in.rows(dhidden, "dhidden"),
                                          .dweight = in.tensor<2>(dweight, "dweight"),
                                          .dloss = static_cast<float>(in.real(dloss, "dloss")),
                                          .ignore_index = in.integer(ignore_index, "ignore_index")};
  args.targets = in.integers(targets, "targets", args.tokens());
  run<Backward>(in, args, call);
}

}  // namespace

void bind_losses(nb::module_& m) {
  const auto arg = [](const char* name) { return nb::arg(name); };
  const auto optional = [](const char* name) { return nb::arg(name).none(); };
  m.def("linear_cross_entropy_forward", linear_cross_entropy_forward, arg("hidden"), arg("weight"),
        arg("targets"), arg("loss"), arg("statistics"), optional("logits"),
        optional("ignore_index"), arg("call"));
  m.def("linear_cross_entropy_backward", linear_cross_entropy_backward, arg("hidden"),
        arg("weight"), arg("targets"), arg("statistics"), optional("logits"), arg("dhidden"),
        arg("dweight"), optional("dloss"), optional("ignore_index"), arg("call"));
}

}  // namespace katt::python
