#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "io/hdf5/case_file.hpp"
#include "op/reference/expected.hpp"
#include "op/reference/sample.hpp"
#include "op/tensors.hpp"
#include "ops/embedding/embedding.hpp"
#include "ops/embedding/embedding_ref.hpp"
#include "ops/embedding/schema.hpp"

namespace katt::embedding {

/// The operator as sweeps, `katt run` and the tests see it (op/description/describe.hpp).
struct Description {
  KATT_PASSES_OF(embedding)
  static constexpr const char* summary = "rows of a table by index";

  static std::vector<bench::AxisSpec> axes() {
    return {bench::integer_axis("tokens", 4096, 1, "ids"),
            bench::integer_axis("vocab", 32000, 1, "rows of the table"),
            bench::integer_axis("hidden", 4096, 1, "columns of the table")};
  }

  static bench::Work work(const ForwardArgs& args, Backend /*backend*/) {
    return {0, forward_bytes(args), "", "copy"};
  }
  static bench::Work work(const BackwardArgs& args, Backend /*backend*/) {
    return {0, backward_bytes(args), "", "copy"};
  }

  /// Backward: rows without tokens, the rows of the first tokens, and the most frequent one, 0.
  static testing::Expected expected(const bench::Problem& p) {
    const std::int64_t hidden = p.extent("hidden");
    const auto ids = p.indices("ids");
    if (!p.backward) {
      testing::ExpectedPart out{.output = "out", .is_exact = true};
      for (const std::int64_t i : testing::sample(p.extent("tokens") * hidden, 4096)) {
        const std::int64_t id = ids[static_cast<std::size_t>(i / hidden)];
        const double value = p.floats("weight")[static_cast<std::size_t>(id * hidden + i % hidden)];
        out.values.push_back({i, value, value});
      }
      return {out};
    }
    auto rows = testing::sample(p.extent("vocab"), 16);
    rows.insert(rows.end(), ids.begin(),
                ids.begin() + std::min<std::ptrdiff_t>(16, std::ssize(ids)));
    testing::Expected result;
    for (const std::int64_t row : rows) {
      testing::ExpectedPart& part = result.emplace_back(testing::ExpectedPart{"dweight"});
      part.add(row * hidden, reference_dweight(p.floats("dout"), ids, hidden, row),
               unfused_dweight(p.floats("dout"), ids, hidden, row, p.dtype));
    }
    return result;
  }

  static void read(const io::CaseFile& file, const bench::Problem& p) {
    for (const std::int64_t id : p.indices("ids")) {
      if (id < 0 || id >= p.extent("vocab")) {
        file.reject("ids", "holds " + std::to_string(id) + ", expected 0 to " +
                               std::to_string(p.extent("vocab") - 1));
      }
    }
  }
};

}  // namespace katt::embedding
