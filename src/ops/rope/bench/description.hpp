#pragma once

#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

#include "core/error.hpp"
#include "io/hdf5/case_file.hpp"
#include "io/printable.hpp"
#include "op/reference/expected.hpp"
#include "op/reference/sample.hpp"
#include "op/tensors.hpp"
#include "ops/rope/rope.hpp"
#include "ops/rope/rope_ref.hpp"
#include "ops/rope/schema.hpp"

namespace katt::rope {

/// The operator as sweeps, `katt run` and the tests see it (op/description/describe.hpp).
struct Description {
  KATT_PASSES_OF(rope)
  static constexpr const char* summary = "rotary position embedding of Q, or of Q and K";

  static std::vector<bench::AxisSpec> axes() {
    return {bench::integer_axis("batch", 1, 1, "sequences"),
            bench::integer_axis("heads", 32, 1, "heads of x"),
            bench::integer_axis("kv_heads", 0, 0,
                                "heads of a second tensor turned in the same launch; 0: none"),
            bench::integer_axis("seq_q", 2048, 1, "positions per sequence").also("seq"),
            bench::integer_axis("head_dim", 128, 2, "elements per head, even",
                                static_cast<double>(max_head_dim)),
            bench::flag_axis("interleaved", "1: pairs (2i, 2i+1); 0: (i, i + head_dim/2)"),
            bench::flag_axis("in_place", "1: the output is the input"),
            {.name = "layout",
             .fallback = std::string("bhsd"),
             .choices = {"bhsd", "bshd"},
             .help = "storage order of the tensors"},
            {.name = "positions",
             .fallback = std::string("sequence"),
             .choices = {"sequence", "random"},
             .help = "sequence: 0, 1, …; random: an explicit one per query"}};
  }

  static void complete(bench::Problem& p) {
    const std::int64_t positions = p.extent("batch") * p.extent("seq_q");
    const bool are_explicit = p.extent("positions") != 0;
    p.extents["cache_rows"] = are_explicit ? positions : p.extent("seq_q");
    if (!are_explicit) return;
    std::vector<std::int64_t>& rows = p.integers["rows"];
    rows.resize(static_cast<std::size_t>(positions));
    std::iota(rows.begin(), rows.end(), 0);
  }
  /// Frequencies of a file, or of LLaMA 3.1.
  static FrequencyArgs frequencies_of(const bench::Problem& p) {
    FrequencyArgs args{.theta = 500000.0, .scaling = Scaling::llama3};
    if (!p.parameters.contains("theta")) return args;
    args.theta = p.parameter("theta");
    if (!p.parameters.contains("rope_factor")) {
      args.scaling = Scaling::none;
      return args;
    }
    args.factor = p.parameter("rope_factor");
    args.low_freq_factor = p.parameter("low_freq_factor");
    args.high_freq_factor = p.parameter("high_freq_factor");
    args.original_max_position = static_cast<std::int64_t>(p.parameter("original_max_position"));
    return args;
  }
  template <class Exec>
  static void derive(const Exec& exec, const bench::Tensors& t) {
    build_cache(exec, frequencies_of(t.problem()), t.matrix("cache"), t.indices("positions"));
  }

  static bench::Work work(const ForwardArgs& args, Backend /*backend*/) {
    return {forward_flops(args), forward_bytes(args, args.cache.extent[0]), "", "copy"};
  }
  static bench::Work work(const BackwardArgs& args, Backend /*backend*/) {
    return {backward_flops(args), backward_bytes(args, args.cache.extent[0]), "", "copy"};
  }

  static void validate(const bench::Problem& p) {
    if (const std::int64_t d = p.extent("head_dim"); d % 2 != 0) {
      throw InputError("head_dim " + std::to_string(d) + ": expected an even number up to " +
                       std::to_string(max_head_dim));
    }
  }
  static bool is_foreign(const bench::Problem& p) {
    return p.extent("in_place") == 0 && p.extent("kv_heads") > 0;
  }

  static testing::Expected expected(const bench::Problem& problem) {
    testing::Expected result;
    const auto add = [&](const char* input, const char* output, const char* heads) {
      const HostProblem p{.batch = problem.extent("batch"),
                          .heads = problem.extent(heads),
                          .seq = problem.extent("seq_q"),
                          .head_dim = problem.extent("head_dim"),
                          .x = problem.floats(input),
                          .positions = problem.indices("positions"),
                          .frequencies = frequencies_of(problem),
                          .interleaved = problem.extent("interleaved") != 0,
                          .backward = problem.backward};
      if (p.x.empty()) return;
      testing::ExpectedPart& part = result.emplace_back(testing::ExpectedPart{output});
      for (const std::int64_t row : testing::sample(p.batch * p.heads * p.seq, 4096)) {
        const RowIndex at{row / p.seq / p.heads, row / p.seq % p.heads, row % p.seq};
        part.add(row * p.head_dim, reference_row(p, at), unfused_row(p, at, problem.dtype));
      }
    };
    add(problem.backward ? "dout" : "x", problem.backward ? "dx" : "out", "heads");
    add(problem.backward ? "dout2" : "x2", problem.backward ? "dx2" : "out2", "kv_heads");
    return result;
  }

  static void read(const io::CaseFile& file, bench::Problem& p) {
    p.extents["interleaved"] = file.flag("interleaved");
    p.parameters["theta"] = file.real("theta");
    const std::string scaling = file.text("rope_scaling", "");
    if (scaling == "llama3") {
      for (const char* factor : {"rope_factor", "low_freq_factor", "high_freq_factor"}) {
        p.parameters[factor] = file.real(factor);
      }
      p.parameters["original_max_position"] =
          static_cast<double>(file.integer("original_max_position"));
    } else if (!scaling.empty()) {
      file.reject("rope_scaling",
                  "holds " + io::impl::printable(scaling) + ", expected llama3 or none at all");
    }
    try {
      (void)frequencies(frequencies_of(p), p.extent("head_dim"));
    } catch (const InputError& error) {
      throw InputError(file.path().string() + ": " + error.what());
    }
    constexpr std::int64_t largest = std::int64_t{1} << 53U;
    for (const std::int64_t position : p.indices("positions")) {
      if (position > largest || position < -largest) {
        file.reject("positions", "holds " + std::to_string(position) + ", expected at most 2^53");
      }
    }
  }
};

}  // namespace katt::rope
