#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "katt/candidate.h"

/// A candidate's shared library and the case that it computes.
namespace katt::candidate {

/// The functions of a library that includes katt/candidate.h.
class Library {
 public:
  /// Loads the library with all its symbols. Throws std::runtime_error for one that cannot be
  /// loaded, has another version of the interface, or neither pass.
  explicit Library(const std::string& path);

  using Run = int (*)(const katt_problem*);
  Run forward = nullptr;   ///< nullptr: the library lacks the pass
  Run backward = nullptr;  ///< the same
  size_t (*workspace)(const katt_problem*) = nullptr;
  const char* (*supports)(const katt_problem*) = nullptr;
  std::string about;  ///< one line; empty when it says nothing
};

/// A case as the requests of a sweep describe it, on memory that both processes map.
class Problem {
 public:
  /// Throws std::runtime_error for a request that is none.
  Problem(const nlohmann::json& request, int input_file, int output_file);
  ~Problem();
  Problem(const Problem&) = delete;
  Problem& operator=(const Problem&) = delete;

  /// The problem without memory, for the questions that come before the first call.
  [[nodiscard]] katt_problem without_memory();
  /// The problem to compute, with as much workspace.
  [[nodiscard]] const katt_problem& with_memory(std::size_t workspace_bytes);

 private:
  struct Mapping {
    std::byte* data = nullptr;
    std::size_t bytes = 0;
  };
  void add(const nlohmann::json& list, const Mapping& memory, std::vector<katt_tensor>& tensors,
           std::vector<katt_tensor>& shapes);
  void add_values(const nlohmann::json& values);
  const char* keep(const std::string& text) { return texts_.emplace_back(text).c_str(); }

  Mapping inputs_, outputs_;
  void* workspace_ = nullptr;
  std::deque<std::string> texts_;
  std::vector<katt_tensor> input_tensors_, input_shapes_, output_tensors_, output_shapes_;
  std::vector<katt_value> values_;
  katt_problem problem_{};
};

}  // namespace katt::candidate
