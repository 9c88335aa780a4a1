#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "io/hdf5/case_file.hpp"
#include "io/printable.hpp"
#include "op/reference/expected.hpp"
#include "op/reference/sample.hpp"
#include "op/tensors.hpp"
#include "ops/convert_dtype/convert_dtype.hpp"
#include "ops/convert_dtype/convert_dtype_ref.hpp"
#include "ops/convert_dtype/schema.hpp"

namespace katt::convert_dtype {

/// The operator as sweeps, `katt run` and the tests see it (op/description/describe.hpp): from the
/// dtype of the point to that of the axis `to`, backward the other way.
struct Description {
  KATT_PASSES_OF(convert_dtype)
  static constexpr const char* summary = "a matrix in another dtype";

  static std::vector<bench::AxisSpec> axes() {
    return {bench::integer_axis("tokens", 4096, 1, "rows"),
            bench::integer_axis("hidden", 4096, 1, "columns"),
            {.name = "to",
             .fallback = std::string("bf16"),
             .choices = {"f32", "f16", "bf16"},
             .help = "dtype of the output"}};
  }

  static bench::Work work(const ForwardArgs& args, Backend /*backend*/) {
    return {0, bytes(args), "", "copy"};
  }

  /// A conversion has one right answer.
  static testing::Expected expected(const bench::Problem& p) {
    const auto given = p.floats(p.backward ? "dout" : "x");
    const Dtype to = p.backward ? p.dtype : all_dtypes[static_cast<std::size_t>(p.extent("to"))];
    testing::ExpectedPart part{.output = p.backward ? "dx" : "out", .is_exact = true};
    for (const std::int64_t i : testing::sample(p.extent("tokens") * p.extent("hidden"), 4096)) {
      const double value = reference_round(to, given[static_cast<std::size_t>(i)]);
      part.values.push_back({i, value, value});
    }
    return {part};
  }

  static void read(const io::CaseFile& file, bench::Problem& p) {
    const std::string to = file.text("to", "bf16");
    const auto dtype = dtype_from_name(to);
    if (!dtype)
      file.reject("to", "holds " + io::impl::printable(to) + ", expected f32, f16 or bf16");
    p.extents["to"] = std::find(all_dtypes.begin(), all_dtypes.end(), *dtype) - all_dtypes.begin();
  }
};

}  // namespace katt::convert_dtype
