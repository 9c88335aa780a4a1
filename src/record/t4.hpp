#pragma once

#include <span>
#include <string>
#include <vector>

#include "io/hdf5/result_file.hpp"
#include "op/registry.hpp"

namespace katt::bench {

/// Rows of results as JSON in the T4 format, version 1.0.0, in which tuners share what they measured
/// (FAIR Sharing of Data in Autotuning Research, ICPE Companion 2024, doi 10.1145/3629527.3651429;
/// schema: github.com/odgaard/TuningSchema, branch T4). A result is a row of a variant with
/// parameters:
///
/// | member | is |
/// |---|---|
/// | configuration | the parameters by name, {"tile_q": 64, "tile_kv": 64} |
/// | times.runtimes | the samples, one a round, in milliseconds |
/// | times.benchmark | the milliseconds that all samples took |
/// | invalidity | correct; constraints: skipped; correctness: wrong outputs; runtime: other failures |
/// | correctness | 1 where the outputs were verified, else 0 |
/// | measurements | time, its interval, rounds, runs a sample |
/// | problem | operator, pass, variant, backend, dtype, threads and axes; not part of the schema |
///
/// `run`: attributes of the run that measured the rows.
[[nodiscard]] std::string t4_json(const Registry& registry, const std::vector<io::Column>& columns,
                                  std::span<const io::Row> rows, const io::Attributes& run);

}  // namespace katt::bench
