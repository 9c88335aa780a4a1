#pragma once

#include <span>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "record/results.hpp"
#include "sweep/referee/task.hpp"

namespace katt::bench {

/// The verdict of `katt referee` on a candidate: one JSON document (docs/referee.md).
class Verdict {
 public:
  explicit Verdict(const RefereeTask& task) : task_(task) {}

  /// Adds the rows of a case.
  void add(const PlannedCase& planned, std::span<const RowResult> rows);

  /// "accepted" when the candidate was right, believable and within the limits at every point that
  /// it supports; "rejected" when it was not at one; "undecided" when the interval of a ratio holds
  /// its limit; "unsupported" when it supports no point; "interrupted" when a signal ended the
  /// measurement.
  [[nodiscard]] std::string status(bool interrupted) const;
  /// Why it is not accepted, a line for each point and limit.
  [[nodiscard]] std::vector<std::string> reasons() const;
  /// The document; `about` is what the candidate says of itself.
  [[nodiscard]] std::string json(bool interrupted, double elapsed_s, const std::string& sha256,
                                 const std::string& about) const;

 private:
  using Json = nlohmann::ordered_json;
  void hold_against_limits(const std::string& where, const RowResult& row, const Estimate& ratio);

  const RefereeTask& task_;
  std::vector<std::string> reasons_, doubts_;
  Json points_ = Json::array(), refused_ = Json::array();
  std::vector<double> ratios_, ratios_to_best_;
  int judged_ = 0;
};

}  // namespace katt::bench
