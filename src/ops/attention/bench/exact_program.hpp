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

/// A score and its derivative by the score before it.
struct ExactScore {
  double score = 0, slope = 0;
};

/// A program in float64, one score at a time, differentiated forward with dual numbers: a reference
/// that shares no code with Program, nor with what differentiates programs. The parts outlive it and
/// are those of a Program of one result, which has checked them.
class ExactProgram {
 public:
  explicit ExactProgram(const ProgramParts& parts) : parts_(&parts) {}

  /// Throws InputError for an index outside of its tensor.
  [[nodiscard]] ExactScore run(double score, const ExactPlace& at) const;

 private:
  const ProgramParts* parts_;
};

}  // namespace katt::attention
