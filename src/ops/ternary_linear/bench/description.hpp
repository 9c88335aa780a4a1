#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <utility>

#include "io/hdf5/case_file.hpp"
#include "op/matrix_ceiling.hpp"
#include "op/reference/expected.hpp"
#include "op/reference/sample.hpp"
#include "op/tensors.hpp"
#include "ops/ternary_linear/schema.hpp"
#include "ops/ternary_linear/ternary_linear.hpp"
#include "ops/ternary_linear/ternary_linear_ref.hpp"

namespace katt::ternary_linear {

/// The operator as sweeps, `katt run` and the tests see it (op/description/describe.hpp).
struct Description {
  KATT_PASSES_OF(ternary_linear)
  static constexpr const char* summary = "BitNet b1.58: ternary weights, 8-bit activations";

  static std::vector<bench::AxisSpec> axes() {
    return {bench::integer_axis("tokens", 1, 1, "rows of x"),
            bench::integer_axis("in_features", 4096, 1, "columns of x",
                                static_cast<double>(max_in_features)),
            bench::integer_axis("out_features", 4096, 1, "columns of out")};
  }

  /// The packed forms of the weight; the faster one is the last.
  static constexpr std::array<std::pair<const char*, PackFormat>, 2> formats{
      {{"packed5", PackFormat::five_per_byte}, {"packed2", PackFormat::two_bit}}};

  static void complete(bench::Problem& p) {
    for (const auto& [name, format] : formats) {
      p.extents[std::string(name) + "_bytes"] = static_cast<std::int64_t>(
          packed_bytes(format, p.extent("out_features"), p.extent("in_features")));
    }
  }

  template <class Args>
  static void bind(Args& args, const bench::Tensors& t) {
    for (const auto& [name, format] : formats) {
      if (t.bytes(name) != nullptr) args.packed = packed_of(t, t.bytes(name), format);
    }
  }

  template <class Exec>
  static void derive(const Exec& exec, const bench::Tensors& t) {
    constexpr Backend backend = backend_of<Exec>();
    const bench::Buffer workspace("katt::ternary_linear::workspace", backend,
                                  pack_workspace_bytes(t.problem().extent("out_features")));
    const TensorRef<2> dense = t.matrix("dense");
    const std::int64_t dense_bytes = dense ? t.problem().extent("packed2_bytes") : 0;
    const bench::Buffer bytes("katt::ternary_linear::packed", backend,
                              static_cast<std::size_t>(dense_bytes));
    const auto pack_into = [&](void* target, PackFormat format) {
      const PackedTernary packed = packed_of(t, target, format);
      pack(exec, t.matrix("weight"), packed, workspace.workspace());
      return packed;
    };
    for (const auto& [name, format] : formats) {
      if (t.bytes(name) != nullptr) pack_into(t.bytes(name), format);
    }
    if (dense) dequantise(exec, pack_into(bytes.data(), PackFormat::two_bit), 0, dense);
    exec.fence("katt::ternary_linear::derive");
  }

  /// No measured peak bounds the integer products.
  static bench::Work work(const ForwardArgs& args, Backend /*backend*/) {
    return {forward_flops(args), forward_bytes(args), ""};
  }
  static bench::Work work(const BackwardArgs& args, Backend backend) {
    return {backward_flops(args), backward_bytes(args),
            bench::matrix_ceiling(backend, args.x.dtype)};
  }

  static testing::Expected expected(const bench::Problem& problem) {
    const HostProblem p = host(problem);
    const Reference reference(p);
    const Dtype dtype = problem.dtype;
    testing::Expected result;
    // Elements of a rows × columns output, each a sum over `terms`.
    const auto add = [&](const char* output, std::int64_t rows, std::int64_t columns,
                         std::int64_t terms, const auto& exact, const auto& unfused) {
      testing::ExpectedPart& part = result.emplace_back(testing::ExpectedPart{output});
      for (const std::int64_t index :
           testing::sample(rows * columns, 4e6 / static_cast<double>(terms))) {
        const std::int64_t row = index / columns, column = index % columns;
        part.values.push_back({index, exact(row, column), unfused(row, column)});
      }
    };
    using Index = std::int64_t;
    if (!problem.backward) {
      add(
          "out", p.tokens, p.out_features, p.in_features,
          [&](Index t, Index o) { return reference.out(t, o); },
          [&](Index t, Index o) { return reference.unfused_out(t, o, dtype); });
      return result;
    }
    add(
        "dx", p.tokens, p.in_features, p.out_features,
        [&](Index t, Index i) { return reference.dx(t, i); },
        [&](Index t, Index i) { return reference.unfused_dx(t, i, dtype); });
    add(
        "dweight", p.out_features, p.in_features, p.tokens,
        [&](Index o, Index i) { return reference.dweight(o, i); },
        [&](Index o, Index i) { return reference.unfused_dweight(o, i, dtype); });
    return result;
  }

  static void read(const io::CaseFile& file, const bench::Problem& problem) {
    const HostProblem p = host(problem);
    if (p.in_features < 1 || p.in_features > max_in_features) {
      file.reject("x", "holds rows of " + std::to_string(p.in_features) + ", expected 1 to " +
                           std::to_string(max_in_features));
    }
    if (p.out_features < 1) file.reject("weight", "holds no rows, expected at least 1");
  }

  static HostProblem host(const bench::Problem& p) {
    return {.tokens = p.extent("tokens"),
            .in_features = p.extent("in_features"),
            .out_features = p.extent("out_features"),
            .x = p.floats("x"),
            .weight = p.floats("weight"),
            .dout = p.floats("dout")};
  }

 private:
  static PackedTernary packed_of(const bench::Tensors& t, void* bytes, PackFormat format) {
    return {static_cast<std::byte*>(bytes), format, t.problem().extent("out_features"),
            t.problem().extent("in_features")};
  }
};

}  // namespace katt::ternary_linear
