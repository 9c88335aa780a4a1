#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings.hpp"
#include "core/error.hpp"
#include "ops/attention/rules/program_variants.hpp"
#include "ops/attention/schema.hpp"
#include "passes.hpp"

KATT_BIND_OPERATOR(attention)

/// Score rules as programs (katt/_rules), and attention with one.
namespace katt::python {
namespace {

using CpuArray = nb::ndarray<nb::ro, nb::device::cpu>;
using Words = std::vector<std::int32_t>;

/// A program and the arrays that it reads.
struct HeldProgram {
  std::vector<CpuArray> arrays;
  std::unique_ptr<attention::Program> program;
};

attention::Captured captured(const CpuArray& array) {
  attention::Captured made{.data = array.data()};
  if (array.dtype() == nb::dtype<float>()) {
    made.type = attention::Type::real;
  } else if (array.dtype() == nb::dtype<std::int32_t>()) {
    made.type = attention::Type::index;
  } else if (array.dtype() == nb::dtype<bool>()) {
    made.type = attention::Type::truth;
  } else {
    throw InputError("score_rule: captures " + dtype_text(array.dtype()) +
                     ", expected float32, int32 or bool");
  }
  for (std::size_t axis = 0; axis < array.ndim(); ++axis) {
    made.extent.push_back(static_cast<std::int64_t>(array.shape(axis)));
    made.stride.push_back(array.stride(axis));
  }
  return made;
}

/// The variants of a pass with a rule, which computes on the host alone.
template <bool Backward>
struct RuledTable {
  attention::ProgramRule rule;
  attention::CapturedGradients captured{};

  template <class Exec>
  [[nodiscard]] auto of() const {
    if constexpr (is_host_v<Exec>) {
      if constexpr (Backward) {
        return attention::backward_variants_of(rule, captured);
      } else {
        return attention::forward_variants_of(rule);
      }
    } else {
      throw InputError(
          "attention: score_rule: holds a rule of Python, which runs on the CPU alone");
      return TableOf<op::TypedPass<attention_operator, Backward>>{}.template of<Exec>();
    }
  }
};

void refuse_outside(std::initializer_list<const HeldProgram*> programs) {
  for (const HeldProgram* held : programs) {
    if (held == nullptr || !held->program->went_outside()) continue;
    throw InputError("attention: score_rule: takes an index outside of a captured tensor");
  }
}

/// The programs of a rule: score, slope, and both with the mask.
using RulePrograms =
    std::tuple<const HeldProgram*, const HeldProgram*, const HeldProgram*, const HeldProgram*>;

attention::ProgramRule rule_of(const RulePrograms& programs) {
  const auto& [score, slope, masked_score, masked_slope] = programs;
  return {.plain = {score->program.get(), slope->program.get()},
          .masked = {masked_score->program.get(), masked_slope->program.get()}};
}

void refuse_outside(const RulePrograms& programs, const HeldProgram* captured) {
  const auto& [score, slope, masked_score, masked_slope] = programs;
  refuse_outside({score, slope, masked_score, masked_slope, captured});
}

/// Elements between block masks of batch entries and K/V heads; empty: one mask whose blocks are not
/// partial.
using BlockStrides = std::vector<std::int64_t>;

void set_blocks(attention::MaskArgs& mask, const BlockStrides& strides) {
  if (strides.size() != 2) return;
  mask.block_batch_stride = strides[0];
  mask.block_head_stride = strides[1];
  mask.has_partial_blocks = true;
}

void attend(const RulePrograms& programs, const BlockStrides& strides, const nb::tuple& tensors,
            const nb::tuple& numbers, const Call& call) {
  impl::run_pass_of<attention_operator, false>(
      tensors, numbers, call, RuledTable<false>{rule_of(programs)},
      [&](Arrays&, attention::ForwardArgs& args) { set_blocks(args.mask, strides); });
  refuse_outside(programs, nullptr);
}

/// captured: the gradient's program, or None; targets: its dense f32 tensors, None for those that
/// have none; dlse: None, or (batch, heads, seq_q) f32.
void attend_backward(const RulePrograms& programs, const BlockStrides& strides,
                     const HeldProgram* captured, const nb::tuple& targets, nb::handle dlse,
                     const nb::tuple& tensors, const nb::tuple& numbers, const Call& call) {
  RuledTable<true> table{rule_of(programs)};
  Arrays rooms("attention");
  if (captured != nullptr) {
    table.captured.program = captured->program.get();
    const auto& known = captured->program->tensors();
    if (targets.size() != known.size()) throw InputError("attention: targets: one a tensor");
    for (std::size_t n = 0; n < known.size(); ++n) {
      std::int64_t size = 1;
      for (const std::int64_t extent : known[n].extent) size *= extent;
      const nb::handle target = targets[n];
      if (target.is_none() && captured->program->adds_to(static_cast<int>(n))) {
        throw InputError("attention: targets: None for a tensor that has a gradient");
      }
      table.captured.tensors.push_back(target.is_none() ? nullptr
                                                        : rooms.floats(target, "targets", size));
    }
  }
  impl::run_pass_of<attention_operator, true>(
      tensors, numbers, call, table, [&](Arrays& in, attention::BackwardArgs& args) {
        set_blocks(args.mask, strides);
        if (dlse.is_none()) return;
        args.dlse = in.tensor<3>(dlse, "dlse");
        if (args.dlse.dtype != Dtype::f32 || args.dlse.extent != args.lse.extent) {
          in.refuse("dlse", "another tensor", "float32 of the shape of lse");
        }
      });
  refuse_outside(programs, captured);
}

}  // namespace

void bind_rules(nb::module_& m) {
  nb::class_<HeldProgram>(m, "Program")
      .def(
          "__init__",
          [](HeldProgram* self, const Words& code, const Words& indices, const Words& constants,
             const Words& results, const Words& registers, std::vector<CpuArray> arrays) {
            std::vector<attention::Captured> tensors;
            tensors.reserve(arrays.size());
            for (const CpuArray& array : arrays) tensors.push_back(captured(array));
            auto program = std::make_unique<attention::Program>(code, indices, constants, results,
                                                                registers, std::move(tensors));
            new (self) HeldProgram{std::move(arrays), std::move(program)};
          },
          nb::arg("code"), nb::arg("indices"), nb::arg("constants"), nb::arg("results"),
          nb::arg("registers"), nb::arg("arrays"));
  m.def("attention_forward", &attend, nb::arg("programs"), nb::arg("block_strides"),
        nb::arg("tensors"), nb::arg("numbers"), nb::arg("call"));
  m.def("attention_backward", &attend_backward, nb::arg("programs"), nb::arg("block_strides"),
        nb::arg("captured").none(), nb::arg("targets"), nb::arg("dlse").none(), nb::arg("tensors"),
        nb::arg("numbers"), nb::arg("call"));
}

}  // namespace katt::python
