#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "ops/attention/rules/program.hpp"

namespace katt::attention {

/// The parts of a Program, and its captured tensors, dense.
struct ProgramParts {
  std::vector<std::int32_t> code, indices, constants, results, registers;
  std::vector<Captured> tensors;
};

/// The place of a score.
struct ExactPlace {
  std::int64_t batch = 0, head = 0, query = 0, key = 0;
};

/// A program in float64, one score at a time: the reference of Program. The parts outlive it and are
/// those of a Program, which has checked them.
class ExactProgram {
 public:
  explicit ExactProgram(const ProgramParts& parts) : parts_(&parts) {}

  /// The results of the program. Throws InputError for an index outside of its tensor.
  [[nodiscard]] std::vector<double> run(double score, const ExactPlace& at) const;

 private:
  const ProgramParts* parts_;
};

}  // namespace katt::attention
