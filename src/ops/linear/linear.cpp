#include "ops/linear/linear.hpp"

#include <algorithm>
#include <string>
#include <type_traits>
#include <utility>

#include "ops/linear/gemm/gemm.hpp"
#include "ops/linear/gemm/naive.hpp"
#include "ops/linear/linear_kernels.hpp"
#include "tile/rows/column_sums.hpp"
#include "tile/vec/vec.hpp"

namespace katt::linear {

namespace {

/// The products of the two passes. Without data they serve for sizes.
GemmArgs out_product(const ForwardArgs& args) {
  return {.a = args.x, .b = args.weight, .c = args.out, .trans_b = true, .bias = args.bias};
}

GemmArgs unbiased(const ForwardArgs& args) {
  GemmArgs product = out_product(args);
  product.bias = {};
  return product;
}

GemmArgs dx_product(const BackwardArgs& args) {
  return {.a = args.dout, .b = args.weight, .c = args.dx};
}

GemmArgs dweight_product(const BackwardArgs& args) {
  return {.a = args.dout, .b = args.x, .c = args.dweight, .trans_a = true};
}

/// Calls multiply(product, label) for every product of a pass that is asked for.
template <class F>
void for_each_product(const ForwardArgs& args, const F& multiply) {
  multiply(out_product(args), "katt::linear::forward");
}
template <class F>
void for_each_product(const BackwardArgs& args, const F& multiply) {
  if (args.dx.size() > 0) multiply(dx_product(args), "katt::linear::dx");
  if (args.dweight.size() > 0) multiply(dweight_product(args), "katt::linear::dweight");
}

/// "dx" of "katt::linear::dx".
std::string name_of(const std::string& label) { return label.substr(label.rfind(':') + 1); }

template <class Exec>
void add_dbias(const Exec& exec, const BackwardArgs& args) {
  if (args.dbias.size() == 0) return;
  visit_dtype(args.dout.dtype, [&]<class T>() {
    tile::column_sums(exec, "katt::linear::dbias", static_cast<const T*>(args.dout.data),
                      args.tokens(), args.out_features(), args.dout.stride[0],
                      static_cast<T*>(args.dbias.data));
  });
}

/// Which engine of gemm() multiplies a product.
template <class Exec>
struct Chosen {
  const GemmEngine<Exec>* always = nullptr;  ///< else the fastest of the unit, product by product
  const char* unit = "";

  const GemmEngine<Exec>& operator()(const GemmArgs& product) const {
    return always != nullptr ? *always : fastest_engine<Exec>(product, unit);
  }
};

/// A variant of engines of gemm(), with bias and rounding in their epilogue. Where gemm() would choose the same
/// for every product, an engine's rank is 3 and that of a unit 2.
template <class Exec, class Args>
Variant<Exec, Args> engine_variant(const char* name, const char* description,
                                   const Chosen<Exec>& chosen) {
  return {
      .name = name,
      .description = description,
      .rank =
          [chosen](const Args& args) {
            int rank = chosen.always != nullptr ? 3 : 2;
            for_each_product(args, [&](const GemmArgs& product, const char*) {
              if (&fastest_engine<Exec>(product) != &chosen(product)) rank = 1;
            });
            return rank;
          },
      .supports =
          [chosen](const Args& args) {
            Status status = Status::ok();
            for_each_product(args, [&](const GemmArgs& product, const char* label) {
              if (!status.is_ok()) return;
              status = gemm_supports(chosen(product), product);
              if (!status.is_ok() && std::is_same_v<Args, BackwardArgs>) {
                status = Status::skipped(name_of(label) + ": " + status.reason());
              }
            });
            return status;
          },
      .workspace_bytes =
          [chosen](const Exec& exec, const Args& args) {
            std::size_t bytes = 0;
            for_each_product(args, [&](const GemmArgs& product, const char*) {
              bytes = std::max(bytes, gemm_workspace_bytes(exec, product, &chosen(product)));
            });
            return bytes;
          },
      .run =
          [chosen](const Exec& exec, const Args& args, Workspace workspace) {
            for_each_product(args, [&](const GemmArgs& product, const char* label) {
              gemm(exec, product, workspace, label, &chosen(product));
            });
            if constexpr (std::is_same_v<Args, BackwardArgs>) add_dbias(exec, args);
          },
      // Engines that differ by their names.
      .engine =
          [chosen](const Exec&, const Args& args) {
            const GemmEngine<Exec>* first = nullptr;
            std::string names;
            for_each_product(args, [&](const GemmArgs& product, const char*) {
              const GemmEngine<Exec>& engine = chosen(product);
              if (first == nullptr) first = &engine;
              else if (first != &engine) names = std::string(first->name) + "+" + engine.name;
            });
            return !names.empty() || first == nullptr ? names : first->unit;
          },
  };
}

/// The table of a pass: "naive", on a host those of a unit with several engines, and every engine.
template <class Exec, class Args>
VariantTable<Exec, Args> with_engines(Variant<Exec, Args> naive) {
  const auto variant = engine_variant<Exec, Args>;
  VariantTable<Exec, Args> table{std::move(naive)};
  if constexpr (is_host_v<Exec>) {
    table.add(variant("fused", "each product on the fastest engine of the vectors",
                      {.unit = tile::vector_name}));
    table.add(variant("avx512_bf16", "each product on the fastest engine of AVX512-BF16",
                      {.unit = "avx512_bf16"}));
  }
  for (const GemmEngine<Exec>& engine : gemm_engines<Exec>()) {
    if (engine.forward_only && std::is_same_v<Args, BackwardArgs>) continue;
    table.add(variant(engine.name, engine.description, {.always = &engine}));
  }
  return table;
}

template <class Exec>
Variant<Exec, ForwardArgs> naive_forward() {
  return {
      .name = "naive",
      .description = "a product (the library's in f32), a pass for the bias",
      .workspace_bytes =
          [](const Exec& exec, const ForwardArgs& args) {
            return naive_gemm_workspace_bytes(exec, unbiased(args));
          },
      .run =
          [](const Exec& exec, const ForwardArgs& args, Workspace workspace) {
            naive_gemm(exec, unbiased(args), workspace, "katt::linear::naive");
            if (!args.bias) return;
            visit_dtype(args.out.dtype, [&]<class T>() {
              impl::add_bias(exec, "katt::linear::naive_bias", static_cast<T*>(args.out.data),
                             args.tokens(), args.out_features(), args.out.stride[0],
                             static_cast<const T*>(args.bias.data));
            });
          },
      .engine = [](const Exec& exec,
                   const ForwardArgs& args) { return naive_gemm_engine(exec, unbiased(args)); },
  };
}

template <class Exec>
Variant<Exec, BackwardArgs> naive_backward() {
  return {
      .name = "naive",
      .description = "products (the library's in f32)",
      .workspace_bytes =
          [](const Exec& exec, const BackwardArgs& args) {
            std::size_t bytes = 0;
            for_each_product(args, [&](const GemmArgs& product, const char*) {
              bytes = std::max(bytes, naive_gemm_workspace_bytes(exec, product));
            });
            return bytes;
          },
      .run =
          [](const Exec& exec, const BackwardArgs& args, Workspace workspace) {
            for_each_product(args, [&](const GemmArgs& product, const char* label) {
              naive_gemm(exec, product, workspace, label);
            });
            add_dbias(exec, args);
          },
      .engine =
          [](const Exec& exec, const BackwardArgs& args) {
            std::string engine;
            for_each_product(args, [&](const GemmArgs& product, const char*) {
              engine = naive_gemm_engine(exec, product);
            });
            return engine;
          },
  };
}

}  // namespace

KATT_DEFINE_VARIANTS(forward, ForwardArgs, with_engines(naive_forward<Exec>()))
KATT_DEFINE_VARIANTS(backward, BackwardArgs, with_engines(naive_backward<Exec>()))
KATT_DEFINE_PASS(forward, ForwardArgs)
KATT_DEFINE_PASS(backward, BackwardArgs)

}  // namespace katt::linear
